//! What a search is asked, and what it answers.

use brigade_topology::Placement;

use super::dispatch::Rows;
use super::model::{Model, StageModel, Step};
use super::search;
use crate::action::Action;
use crate::error::ScheduleError;
use crate::plan::Plan;

/// A problem to search a plan for.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Where each stage lives.
    pub placement: Placement,
    /// Micro-batches of a batch.
    pub n_micro_batches: u32,
    /// One for each stage.
    pub stages: Vec<StageModel>,
    /// Time of a message from rank to rank.
    pub latency_s: f64,
    /// The most memory that each rank may hold, in the unit of the stages; one for each rank.
    pub memory_limits: Vec<u64>,
}

/// How long a search goes on: about so many steps of candidate plans are timed.
///
/// The same effort gives the same plan on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effort(pub u64);

impl Effort {
    /// About a fiftieth of a second for 8 ranks and 16 micro-batches.
    pub const QUICK: Self = Self(400_000);
    /// About a quarter of a second for 8 ranks and 16 micro-batches.
    pub const THOROUGH: Self = Self(8_000_000);

    pub(super) fn n_rules(self, model: &Model) -> usize {
        // Very large problems make do with one plain rule, and the seeds.
        let fewest = if self.per_plan(model, 1) == 0 { 1 } else { 16 };
        self.per_plan(model, 8).clamp(fewest, 800)
    }

    pub(super) fn n_moves(self, model: &Model) -> usize {
        self.per_plan(model, 1).min(40_000)
    }

    fn per_plan(self, model: &Model, divisor: u64) -> usize {
        let n_steps = u64::try_from(3 * model.n_stages * model.n_micro_batches).unwrap_or(u64::MAX);
        usize::try_from(self.0 / divisor / n_steps.max(1)).unwrap_or(usize::MAX)
    }
}

/// A plan that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The plan.
    pub plan: Plan,
    /// When its last rank ends.
    pub makespan_s: f64,
    /// No plan for the problem can end before this.
    pub lower_bound_s: f64,
}

/// What a search makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The makespan.
    Makespan,
    /// The makespan, then the most that a rank idles between its first and its last step.
    MakespanThenSpan,
}

/// Searches a plan with split backward passes that ends early and keeps every rank within its memory.
///
/// Ranks are simulated under many dispatch rules; the best results, and regular plans of the literature that
/// fit the memory, are then improved by small moves on their critical paths. Everything is deterministic.
///
/// # Errors
/// [`ScheduleError::Problem`] when the lists do not fit the placement or a number is out of range,
/// [`ScheduleError::TooLittleMemory`] when a rank does not hold one micro-batch at each of its stages, and
/// [`ScheduleError::TooLong`] above the size limit of plans.
///
/// # Source
/// Own search; seeds after Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241) and "Pipeline
/// Parallelism with Controllable Memory" (arXiv 2405.15362).
///
/// # Examples
/// ```
/// use brigade_schedule::{Effort, Placement, Problem, StageModel, find_plan};
/// let found = find_plan(
///     &Problem {
///         placement: Placement::linear(4)?,
///         n_micro_batches: 8,
///         stages: vec![StageModel::UNIT; 4],
///         latency_s: 0.0,
///         memory_limits: vec![14; 4],
///     },
///     Effort::QUICK,
/// )?;
/// assert_eq!((found.makespan_s, found.lower_bound_s), (27.0, 27.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn find_plan(problem: &Problem, effort: Effort) -> Result<Found, ScheduleError> {
    find(problem, effort, Goal::Makespan)
}

pub(crate) fn find(problem: &Problem, effort: Effort, goal: Goal) -> Result<Found, ScheduleError> {
    let span_weight = match goal {
        Goal::Makespan => 0.0,
        Goal::MakespanThenSpan => 1e-4,
    };
    let model = Model::new(problem, span_weight)?;
    // A rule that lets the oldest micro-batch go first always gets to the end: see `Dispatch::fits`.
    let rows = search(&model, effort)
        .ok_or(ScheduleError::Problem { what: "the search to end, which is a bug of it" })?;
    let makespan_s = model.makespan_s(&rows).unwrap_or(f64::INFINITY);
    let cells = |row: &Vec<Step>| row.iter().map(|step| Action::from(model.compute(*step))).collect();
    let Rows { rows, .. } = rows;
    let plan = Plan::new(model.placement, problem.n_micro_batches, rows.iter().map(cells).collect())?;
    Ok(Found { plan, makespan_s, lower_bound_s: model.lower_bound_s })
}
