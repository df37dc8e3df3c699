//! The problem that the search solves: stages with times and memory on ranks with a limit.

use brigade_topology::{Direction, PipeRank, Placement, Stage};

use super::dispatch::Rows;
use super::problem::Problem;
use super::refine::Rework;
use crate::action::{Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::shape::Shape;

/// What a stage costs and keeps for one micro-batch, as the search sees it.
///
/// # Units
/// Times in any unit, memory in any unit, each the same everywhere.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StageModel {
    /// Time of the forward pass.
    pub forward_s: f64,
    /// Time of the input gradient.
    pub input_grad_s: f64,
    /// Time of the weight gradient.
    pub weight_grad_s: f64,
    /// Memory from the start of the forward pass until the input gradient is done.
    pub activation: u64,
    /// Memory from then until the weight gradient is done; at most `activation`.
    pub weight_grad: u64,
}

impl StageModel {
    /// One unit for each time; two units of memory for an activation, of which one stays until the weight
    /// gradient is done.
    pub const UNIT: Self =
        Self { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, activation: 2, weight_grad: 1 };
}

/// The whole problem.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) placement: Placement,
    pub(crate) n_ranks: usize,
    /// The most stages of a rank.
    pub(crate) n_virtual: usize,
    /// Stages of all chains together. A chain is the way of a micro-batch from its first stage to its last. In a
    /// bidirectional placement there are two, numbered one after the other: the stages on the way down, for even
    /// micro-batches, then those on the way up, for odd ones. Else there is one.
    pub(crate) n_stages: usize,
    /// Stages of a chain.
    pub(crate) n_chain: usize,
    /// The most micro-batches of a stage.
    pub(crate) n_micro_batches: usize,
    /// The first visit of each stage, and the end: the visits of a stage follow each other.
    pub(crate) first_visit: Vec<usize>,
    pub(crate) stages: Vec<StageModel>,
    pub(crate) rank_of: Vec<usize>,
    /// The stages of each rank, earlier ones of a chain first.
    pub(crate) stages_of: Vec<Vec<usize>>,
    pub(crate) latency_s: f64,
    pub(crate) limit: Vec<u64>,
    /// The work of each rank.
    pub(crate) work_s: Vec<f64>,
    /// What a unit of idle time within the span of the rank that idles most adds to the cost of rows.
    pub(crate) span_weight: f64,
    pub(crate) lower_bound_s: f64,
}

/// The longest time of a step, so that sums stay exact enough.
const MAX_TIME_S: f64 = 1e15;

/// The most memory of a visit, so that sums do not overflow.
const MAX_MEMORY: u64 = 1 << 40;

impl Model {
    pub(crate) fn new(problem: &Problem, span_weight: f64) -> Result<Self, ScheduleError> {
        let Problem { placement, n_micro_batches, ref stages, latency_s, ref memory_limits } = *problem;
        Shape { n_ranks: placement.n_ranks(), n_micro_batches }.admit(placement.stages_per_rank(), 3)?;
        let n_chain = Stage(placement.n_stages()).index();
        let n_chains: usize = if placement.is_bidirectional() { 2 } else { 1 };
        let rank_of: Vec<usize> = [Direction::Down, Direction::Up]
            .into_iter()
            .take(n_chains)
            .flat_map(|direction| {
                let ranks = (0..placement.n_stages())
                    .map(move |stage| placement.rank_towards(Stage(stage), direction));
                ranks.flatten().map(PipeRank::index)
            })
            .collect();
        let n_ranks = memory_limits.len();
        if u32::try_from(n_ranks) != Ok(placement.n_ranks()) {
            return Err(ScheduleError::Problem { what: "one memory limit for each rank" });
        }
        if stages.len() != n_chain {
            return Err(ScheduleError::Problem { what: "costs of one stage for each stage" });
        }
        let times = stages.iter().flat_map(|s| [s.forward_s, s.input_grad_s, s.weight_grad_s]);
        if times.chain([latency_s]).any(|time_s| !(0.0..=MAX_TIME_S).contains(&time_s)) {
            return Err(ScheduleError::Problem { what: "times from 0 to 1e15" });
        }
        if stages.iter().any(|s| s.weight_grad > s.activation || s.activation > MAX_MEMORY) {
            return Err(ScheduleError::Problem { what: "weight_grad <= activation <= 2^40" });
        }
        // Even micro-batches go down, odd ones up; without directions all of them take the one chain.
        let n_all = usize::try_from(n_micro_batches).unwrap_or(usize::MAX);
        let n_of = |stage: usize| (n_all + n_chains - 1 - stage / n_chain) / n_chains;
        let mut stages_of: Vec<Vec<usize>> = vec![Vec::new(); n_ranks];
        for (stage, &rank) in rank_of.iter().enumerate() {
            stages_of[rank].push(stage);
        }
        for local in &mut stages_of {
            local.sort_by_key(|stage| stage % n_chain);
        }
        let first_visit: Vec<usize> = (0..=rank_of.len())
            .scan(0, |next, stage| Some(std::mem::replace(next, *next + n_of(stage))))
            .collect();
        for ((rank, local), &limit) in (0..).map(PipeRank).zip(&stages_of).zip(memory_limits) {
            let visited = local.iter().filter(|&&stage| n_of(stage) > 0);
            let needed = visited.map(|&stage| stages[stage % n_chain].activation).sum();
            if limit < needed {
                return Err(ScheduleError::TooLittleMemory { rank, limit, needed });
            }
        }
        let mut model = Self {
            placement,
            n_ranks,
            n_virtual: stages_of.first().map_or(0, Vec::len),
            n_stages: rank_of.len(),
            n_chain,
            n_micro_batches: n_of(0),
            first_visit,
            stages: stages.iter().copied().cycle().take(rank_of.len()).collect(),
            rank_of,
            stages_of,
            latency_s,
            limit: memory_limits.clone(),
            work_s: Vec::new(),
            span_weight,
            lower_bound_s: 0.0,
        };
        model.work_s = (0..n_ranks).map(|rank| model.work_of(rank)).collect();
        model.lower_bound_s = model.bound_s();
        Ok(model)
    }

    /// When the last of the ranks ends that run `rows`.
    pub(crate) fn makespan_s(&self, rows: &Rows) -> Option<f64> {
        if self.span_weight == 0.0 || self.is_at_bound(rows.cost_s) {
            return Some(rows.cost_s);
        }
        let plain = Self { span_weight: 0.0, ..self.clone() };
        Rework::new(&plain).cost_s(&rows.rows)
    }

    /// The time after the end of work at `from` when `to`, on the same or another rank, has it.
    pub(crate) fn hop_s(&self, from: usize, to: usize) -> f64 {
        if self.rank_of[from] == self.rank_of[to] { 0.0 } else { self.latency_s }
    }

    /// How many micro-batches visit a stage.
    pub(crate) fn n_of(&self, stage: usize) -> usize {
        self.first_visit[stage + 1] - self.first_visit[stage]
    }

    /// How many visits there are.
    pub(crate) fn n_visits(&self) -> usize {
        self.first_visit[self.n_stages]
    }

    /// The number of the visit of a stage's `nth` micro-batch.
    pub(crate) fn visit(&self, stage: usize, nth: usize) -> usize {
        self.first_visit[stage] + nth
    }

    /// The stage before a stage in its chain.
    pub(crate) fn previous(&self, stage: usize) -> Option<usize> {
        if stage.is_multiple_of(self.n_chain) { None } else { stage.checked_sub(1) }
    }

    /// The stage after a stage in its chain.
    pub(crate) fn next(&self, stage: usize) -> Option<usize> {
        Some(stage + 1).filter(|next| !next.is_multiple_of(self.n_chain))
    }

    /// How many steps a rank has.
    pub(crate) fn n_steps_of(&self, rank: usize) -> usize {
        3 * self.stages_of[rank].iter().map(|&stage| self.n_of(stage)).sum::<usize>()
    }

    /// The computation that a step stands for.
    pub(crate) fn compute(&self, step: Step) -> Compute {
        let Step { kind, stage, micro_batch } = step;
        let n_chains = self.n_stages / self.n_chain;
        let micro_batch = micro_batch * n_chains + stage / self.n_chain;
        let stage = Stage(u32::try_from(stage % self.n_chain).unwrap_or(u32::MAX));
        let micro_batch = MicroBatch(u32::try_from(micro_batch).unwrap_or(u32::MAX));
        match kind {
            Kind::Forward => Compute::forward(stage, micro_batch),
            Kind::InputGrad => Compute::input_grad(stage, micro_batch),
            Kind::WeightGrad => Compute::weight_grad(stage, micro_batch),
        }
    }

    fn work_of(&self, rank: usize) -> f64 {
        let time = |&stage: &usize| {
            let costs = &self.stages[stage];
            #[expect(
                clippy::as_conversions,
                clippy::cast_precision_loss,
                reason = "micro-batches are far below 2^53"
            )]
            let m = self.n_of(stage) as f64;
            m * (costs.forward_s + costs.input_grad_s + costs.weight_grad_s)
        };
        self.stages_of[rank].iter().map(time).sum()
    }

    /// What rows cost: when the last rank ends, and a little for idle time within spans. `spans` are the
    /// start and the end of each rank.
    pub(crate) fn cost_s(&self, spans: impl Iterator<Item = (f64, f64)>) -> f64 {
        let (mut makespan_s, mut idle_s): (f64, f64) = (0.0, 0.0);
        for ((start_s, end_s), work_s) in spans.zip(&self.work_s) {
            makespan_s = makespan_s.max(end_s);
            idle_s = idle_s.max(end_s - start_s - work_s);
        }
        // A rounding error is no idle time.
        let idle_s = if idle_s > makespan_s * 1e-9 { idle_s } else { 0.0 };
        makespan_s + self.span_weight * idle_s
    }

    /// Whether no rows can cost less.
    pub(crate) fn is_at_bound(&self, cost_s: f64) -> bool {
        cost_s <= self.lower_bound_s * (1.0 + 1e-12)
    }

    /// Whether the stages are dealt out in rounds, one or more a rank.
    pub(crate) fn is_looped(&self) -> bool {
        self.n_chain == self.n_stages
            && self.rank_of.iter().enumerate().all(|(stage, &rank)| rank == stage % self.n_ranks)
    }

    /// Whether the stages lie in a V, two on each of several ranks.
    pub(crate) fn is_v(&self) -> bool {
        self.n_ranks > 1
            && self.n_chain == self.n_stages
            && self.n_stages == 2 * self.n_ranks
            && self.rank_of.iter().rev().eq(&self.rank_of)
            && self.rank_of.iter().take(self.n_ranks).copied().eq(0..self.n_ranks)
    }

    /// No plan can end before this: each rank must be reached, do all its work, and let the last gradient
    /// travel back to the first stage.
    fn bound_s(&self) -> f64 {
        let mut bound: f64 = 0.0;
        for (stages, work_s) in self.stages_of.iter().zip(&self.work_s) {
            let reach = |&stage: &usize| -> f64 {
                let chain = stage - stage % self.n_chain;
                (chain..stage).map(|s| self.stages[s].forward_s + self.hop_s(s, s + 1)).sum()
            };
            let visited = stages.iter().filter(|&&stage| self.n_of(stage) > 0);
            let first_s = visited.map(reach).fold(f64::INFINITY, f64::min);
            bound = bound.max(if first_s.is_finite() { first_s + work_s } else { 0.0 });
        }
        let way: f64 = (0..self.n_chain)
            .map(|s| {
                let hop = self.next(s).map_or(0.0, |next| 2.0 * self.hop_s(s, next));
                self.stages[s].forward_s + self.stages[s].input_grad_s + hop
            })
            .sum();
        bound.max(way + self.stages.first().map_or(0.0, |stage| stage.weight_grad_s))
    }
}

/// A computation in the search's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Forward,
    InputGrad,
    WeightGrad,
}

/// One step of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) stage: usize,
    pub(crate) micro_batch: usize,
}
