//! The best plan for measured costs: every named schedule and a search, under the same memory limit.

use brigade_topology::Placement;

use crate::check::{Capacity, check_plan};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::replay::{Costs, LinkCosts, StageCosts, replay};
use crate::schedules::Schedule;
use crate::search::{Effort, Problem, StageModel, find_plan};
use crate::shape::Shape;

/// One way to lay the model out: a placement, and what each of its stages costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Where each stage lives.
    pub placement: Placement,
    /// One for each stage, as measured for this cut of the model.
    pub stages: Vec<StageModel>,
}

/// What [`auto`] is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Auto {
    /// Micro-batches of a batch.
    pub n_micro_batches: u32,
    /// Time of a message from rank to rank.
    pub latency_s: f64,
    /// The most memory that each rank may hold; one for each rank.
    pub memory_limits: Vec<u64>,
    /// The layouts to choose from, for example linear, looped with 2 stages a rank, V, and bidirectional, which
    /// takes the weights twice.
    pub candidates: Vec<Candidate>,
}

/// What [`auto`] answers.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoFound {
    /// The best plan.
    pub plan: Plan,
    /// Index of the candidate that it is for.
    pub candidate: usize,
    /// The schedule that made it; nothing when the search did.
    pub schedule: Option<Schedule>,
    /// When its last rank ends.
    pub makespan_s: f64,
    /// No plan for any candidate can end before this.
    pub lower_bound_s: f64,
    /// Every plan that was looked at and fits the memory: candidate, schedule, makespan.
    pub considered: Vec<(usize, Option<Schedule>, f64)>,
}

impl AutoFound {
    /// How far the makespan is above the lower bound, as a share of the bound.
    #[must_use]
    pub fn gap(&self) -> f64 {
        if self.lower_bound_s > 0.0 { self.makespan_s / self.lower_bound_s - 1.0 } else { 0.0 }
    }
}

/// Finds the best plan for the costs: over all candidates, every named schedule that fits the memory, and a
/// search. So the result is at least as good as each of them.
///
/// An overlapped pair of DualPipe and DualPipeV counts as its two passes one after the other.
///
/// # Errors
/// [`ScheduleError::Problem`] without a candidate, else the error of the search when no candidate can be planned.
///
/// # Examples
/// ```
/// use brigade_schedule::{Auto, Candidate, Effort, Placement, StageModel, auto};
/// let stages = |n| vec![StageModel { weight_grad_s: 0.5, ..StageModel::UNIT }; n];
/// let found = auto(
///     &Auto {
///         n_micro_batches: 8,
///         latency_s: 0.0,
///         memory_limits: vec![16; 4],
///         candidates: vec![
///             Candidate { placement: Placement::linear(4)?, stages: stages(4) },
///             Candidate { placement: Placement::v(4)?, stages: stages(8) },
///         ],
///     },
///     Effort::QUICK,
/// )?;
/// assert!(found.makespan_s >= found.lower_bound_s);
/// assert!(found.considered.iter().all(|&(.., makespan_s)| found.makespan_s <= makespan_s));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn auto(problem: &Auto, effort: Effort) -> Result<AutoFound, ScheduleError> {
    let mut best: Option<AutoFound> = None;
    let mut considered = Vec::new();
    let mut lower_bound_s = f64::INFINITY;
    let mut failure = ScheduleError::Problem { what: "at least 1 candidate" };
    for (index, candidate) in problem.candidates.iter().enumerate() {
        let searched = Problem {
            placement: candidate.placement,
            n_micro_batches: problem.n_micro_batches,
            stages: candidate.stages.clone(),
            latency_s: problem.latency_s,
            memory_limits: problem.memory_limits.clone(),
        };
        let found = match find_plan(&searched, effort) {
            Ok(found) => found,
            Err(error) => {
                failure = error;
                continue;
            }
        };
        lower_bound_s = lower_bound_s.min(found.lower_bound_s);
        let mut plans = vec![(None, found.plan, found.makespan_s)];
        for schedule in named(candidate.placement) {
            let shape =
                Shape { n_ranks: candidate.placement.n_ranks(), n_micro_batches: problem.n_micro_batches };
            // A schedule that does not take the shape is none to compare with.
            let Ok(plan) = schedule.plan(shape) else { continue };
            if let Some(makespan_s) = makespan_within(&searched, &plan) {
                plans.push((Some(schedule), plan, makespan_s));
            }
        }
        for (schedule, plan, makespan_s) in plans {
            considered.push((index, schedule, makespan_s));
            if best.as_ref().is_none_or(|best| makespan_s < best.makespan_s) {
                best = Some(AutoFound {
                    plan,
                    candidate: index,
                    schedule,
                    makespan_s,
                    lower_bound_s: 0.0,
                    considered: Vec::new(),
                });
            }
        }
    }
    best.map(|best| AutoFound { lower_bound_s, considered, ..best }).ok_or(failure)
}

/// The schedules that lay stages out as `placement` does.
fn named(placement: Placement) -> Vec<Schedule> {
    let n_virtual = placement.stages_per_rank();
    let all = [
        Schedule::GPipe,
        Schedule::OneFOneB,
        Schedule::ZbH1,
        Schedule::ZbH2,
        Schedule::Interleaved { n_virtual },
        Schedule::LoopedBfs { n_virtual },
        Schedule::InterleavedZb { n_virtual },
        Schedule::ZbV,
        Schedule::VHalf,
        Schedule::VMin,
        Schedule::DualPipe,
        Schedule::DualPipeV,
    ];
    let (linear, v) = (n_virtual == 1, Placement::v(placement.n_ranks()) == Ok(placement));
    let looped = Placement::looped(placement.n_ranks(), n_virtual) == Ok(placement);
    let fits = |schedule: &Schedule| match schedule {
        Schedule::GPipe | Schedule::OneFOneB | Schedule::ZbH1 | Schedule::ZbH2 => linear,
        Schedule::Interleaved { .. } | Schedule::LoopedBfs { .. } | Schedule::InterleavedZb { .. } => {
            looped && !linear
        }
        Schedule::DualPipe => Placement::bidirectional(placement.n_ranks()) == Ok(placement),
        _ => v,
    };
    all.into_iter().filter(fits).collect()
}

/// When a plan ends at the costs of the problem, if it keeps to the memory.
fn makespan_within(problem: &Problem, plan: &Plan) -> Option<f64> {
    let stage = |model: &StageModel| StageCosts {
        forward_s: model.forward_s,
        input_grad_s: model.input_grad_s,
        weight_grad_s: model.weight_grad_s,
        activation_bytes: model.activation,
        weight_grad_bytes: model.weight_grad,
        ..StageCosts::default()
    };
    let costs = Costs {
        stages: problem.stages.iter().map(stage).collect(),
        link: LinkCosts { latency_s: problem.latency_s, bytes_per_s: None },
        ..Costs::default()
    };
    let checked = check_plan(plan, Capacity(u32::MAX)).ok()?;
    let timeline = replay(&checked, &costs).ok()?;
    let fits =
        timeline.ranks().iter().zip(&problem.memory_limits).all(|(rank, &limit)| rank.peak_bytes <= limit);
    fits.then(|| timeline.makespan_s())
}
