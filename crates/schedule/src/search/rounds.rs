//! Seeds for stages in a V, built in rounds: each rank takes one micro-batch back, then one forward.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::dispatch::Rows;
use super::model::{Kind, Model, Step};

/// Builds rows in which all ranks keep in step: a round takes one input gradient and one forward pass a rank.
/// Weight gradients fill what would be idle; where they fill it only in part, a rank takes one when it idles
/// more than the others do. A second pass knows from the first how much each rank idles at all.
///
/// Several variants are built and offered, until there is enough of them; those that get stuck or run out of memory
/// are left out.
///
/// # Source
/// The idea of ZB-V: Qi et al., "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362).
pub(crate) fn rounds(model: &Model, mut offer: impl FnMut(Rows) -> ControlFlow<()>) -> ControlFlow<()> {
    for fill_forward in [true, false] {
        for fill_input_grad in [true, false] {
            let mut expected = None;
            for _ in 0..N_PASSES {
                let Some(built) = Rounds::build(model, fill_forward, fill_input_grad, expected.as_deref())
                else {
                    break;
                };
                // The same idle times as expected give the same rows again.
                let is_last = expected.as_ref() == Some(&built.idle);
                expected = Some(built.idle);
                offer(built.rows)?;
                if is_last {
                    break;
                }
            }
        }
    }
    ControlFlow::Continue(())
}

const N_PASSES: usize = 4;

struct Built {
    rows: Rows,
    idle: Vec<f64>,
}

struct Rounds<'a> {
    model: &'a Model,
    fill_forward: bool,
    fill_input_grad: bool,
    expected: Option<&'a [f64]>,
    /// The most that any rank is expected to idle, and has idled so far.
    most_expected: f64,
    most_idle: f64,
    /// Ends of forward passes and input gradients, by stage and micro-batch.
    forward_end: Vec<Option<f64>>,
    input_grad_end: Vec<Option<f64>>,
    n_forward: Vec<usize>,
    n_input_grad: Vec<usize>,
    now_s: Vec<f64>,
    idle: Vec<f64>,
    memory: Vec<u64>,
    pending: Vec<VecDeque<(usize, usize)>>,
    rows: Vec<Vec<Step>>,
    /// When each rank starts.
    first_s: Vec<f64>,
}

impl<'a> Rounds<'a> {
    fn build(
        model: &'a Model,
        fill_forward: bool,
        fill_input_grad: bool,
        expected: Option<&'a [f64]>,
    ) -> Option<Built> {
        let n_visits = model.n_stages * model.n_micro_batches;
        let p = model.n_ranks;
        let mut rounds = Self {
            model,
            fill_forward,
            fill_input_grad,
            expected,
            most_expected: expected.map_or(0.0, |idle| idle.iter().copied().fold(0.0, f64::max)),
            most_idle: 0.0,
            forward_end: vec![None; n_visits],
            input_grad_end: vec![None; n_visits],
            n_forward: vec![0; model.n_stages],
            n_input_grad: vec![0; model.n_stages],
            now_s: vec![0.0; p],
            idle: vec![0.0; p],
            memory: vec![0; p],
            pending: vec![VecDeque::new(); p],
            rows: (0..p).map(|rank| Vec::with_capacity(model.n_steps_of(rank))).collect(),
            first_s: vec![0.0; p],
        };
        rounds.start()?;
        for _ in 0..2 * model.n_micro_batches {
            rounds.round_back()?;
            rounds.round_forward()?;
        }
        for rank in 0..p {
            while !rounds.pending[rank].is_empty() {
                rounds.weight_grad(rank)?;
            }
        }
        let n_steps = 6 * model.n_micro_batches;
        let complete = rounds.rows.iter().all(|row| row.len() == n_steps);
        let cost_s = model.cost_s(rounds.first_s.into_iter().zip(rounds.now_s));
        complete.then_some(Built { rows: Rows { rows: rounds.rows, cost_s }, idle: rounds.idle })
    }

    fn down(rank: usize) -> usize {
        rank
    }

    fn up(&self, rank: usize) -> usize {
        self.model.n_stages - 1 - rank
    }

    /// The first micro-batch goes down and up; further ones go down while that takes no time from it.
    fn start(&mut self) -> Option<()> {
        let (p, m) = (self.model.n_ranks, self.model.n_micro_batches);
        for rank in 0..p {
            self.forward(Self::down(rank))?;
        }
        self.forward(self.up(p - 1))?;
        for rank in (0..p - 1).rev() {
            let up = self.up(rank);
            let there_s = self.forward_end[(up - 1) * m]? + self.model.hop_s(up - 1, up);
            let activation = self.model.stages[Self::down(rank)].activation;
            let ahead = activation * u64::try_from(2 * rank + 2).ok()?;
            while self.memory[rank] + ahead <= self.model.limit[rank]
                && self.now_s[rank] + self.model.stages[Self::down(rank)].forward_s <= there_s
                && self.n_forward[Self::down(rank)] < m
            {
                for before in 0..=rank {
                    self.forward(Self::down(before))?;
                }
            }
            self.forward(up)?;
        }
        // Later ranks catch up with the ones before them, down and up in turn.
        let mut go_down = true;
        for rank in 1..p {
            loop {
                let count = |of: usize| {
                    let up = self.n_forward[self.up(of)];
                    (self.n_forward[Self::down(of)] + up, up)
                };
                let ((all, up), (all_before, up_before)) = (count(rank), count(rank - 1));
                if !(all < all_before || up <= up_before && up_before < m) {
                    break;
                }
                for later in (rank..p).rev() {
                    let stage = if go_down { Self::down(later) } else { self.up(later) };
                    if self.n_forward[stage] < m {
                        self.forward(stage)?;
                    }
                }
                go_down = !go_down;
            }
        }
        Some(())
    }

    /// One input gradient a rank: of the stage on the way down where its gradient has come, else of the other.
    fn round_back(&mut self) -> Option<()> {
        let (p, m) = (self.model.n_ranks, self.model.n_micro_batches);
        let goes_down = |rank: usize| {
            let (down, up) = (Self::down(rank), self.up(rank));
            let micro_batch = self.n_input_grad[down];
            micro_batch < self.n_input_grad[up]
                && (rank + 1 == p
                    || self.input_grad_end[(down + 1) * m + micro_batch].is_some()
                    || self.n_input_grad[up] >= m)
        };
        let (downs, ups): (Vec<usize>, Vec<usize>) = (0..p).partition(|&rank| goes_down(rank));
        for rank in downs.into_iter().rev() {
            let stage = Self::down(rank);
            let there_s = if rank + 1 < p { self.input_grad_there(stage) } else { None };
            self.fill(rank, there_s, true)?;
            self.input_grad(stage)?;
        }
        for rank in ups {
            let stage = self.up(rank);
            if self.n_input_grad[stage] >= m {
                return None;
            }
            let there_s = if rank > 0 { self.input_grad_there(stage) } else { None };
            self.fill(rank, there_s, self.fill_input_grad)?;
            self.input_grad(stage)?;
        }
        Some(())
    }

    /// One forward pass a rank: of the stage on the way up where its input has come, else of the other.
    fn round_forward(&mut self) -> Option<()> {
        let (p, m) = (self.model.n_ranks, self.model.n_micro_batches);
        for rank in 0..p {
            let (down, up) = (Self::down(rank), self.up(rank));
            let (n_down, n_up) = (self.n_forward[down], self.n_forward[up]);
            if n_up >= m {
                continue;
            }
            let stage = if n_up >= n_down {
                down
            } else if rank + 1 == p || self.forward_end[(up - 1) * m + n_up].is_some() {
                up
            } else if n_down < m && (rank == 0 || self.forward_end[(down - 1) * m + n_down].is_some()) {
                down
            } else {
                continue;
            };
            while self.memory[rank] + self.model.stages[stage].activation > self.model.limit[rank] {
                self.weight_grad(rank)?;
            }
            let from_here = if stage == down { rank == 0 } else { rank + 1 == p };
            let there_s = if from_here { None } else { self.forward_there(stage) };
            self.fill(rank, there_s, self.fill_forward)?;
            self.forward(stage)?;
        }
        Some(())
    }

    /// Weight gradients that end before `there_s`, and one more that does not where the rank idles too much.
    fn fill(&mut self, rank: usize, there_s: Option<f64>, in_part: bool) -> Option<()> {
        let Some(there_s) = there_s else { return Some(()) };
        while let Some(&(stage, _)) = self.pending[rank].front() {
            if self.now_s[rank] + self.model.stages[stage].weight_grad_s > there_s {
                break;
            }
            self.weight_grad(rank)?;
        }
        let gap_s = there_s - self.now_s[rank];
        if in_part && !self.pending[rank].is_empty() && gap_s > self.most_idle(rank) - self.idle[rank] {
            self.weight_grad(rank)?;
        }
        Some(())
    }

    /// How much the rank may idle without being the one that idles most.
    fn most_idle(&self, rank: usize) -> f64 {
        let expected = self.expected.and_then(|expected| expected.get(rank));
        self.most_idle.max(expected.map_or(0.0, |idle| self.most_expected - idle))
    }

    /// When the input of the stage's next forward pass is there, if that is known.
    fn forward_there(&self, stage: usize) -> Option<f64> {
        let micro_batch = self.n_forward[stage];
        let previous = stage.checked_sub(1)?;
        let end_s = (*self.forward_end.get(previous * self.model.n_micro_batches + micro_batch)?)?;
        Some(end_s + self.model.hop_s(previous, stage))
    }

    /// When the gradient for the stage's next input gradient is there, if that is known.
    fn input_grad_there(&self, stage: usize) -> Option<f64> {
        let micro_batch = self.n_input_grad[stage];
        let m = self.model.n_micro_batches;
        if stage + 1 == self.model.n_stages {
            return *self.forward_end.get(stage * m + micro_batch)?;
        }
        let end_s = (*self.input_grad_end.get((stage + 1) * m + micro_batch)?)?;
        Some(end_s + self.model.hop_s(stage + 1, stage))
    }

    fn forward(&mut self, stage: usize) -> Option<()> {
        let rank = self.model.rank_of[stage];
        let micro_batch = self.n_forward[stage];
        let costs = self.model.stages[stage];
        let there_s = if stage == 0 { 0.0 } else { self.forward_there(stage)? };
        if micro_batch >= self.model.n_micro_batches
            || self.memory[rank] + costs.activation > self.model.limit[rank]
        {
            return None;
        }
        self.memory[rank] += costs.activation;
        let end_s =
            self.advance(rank, there_s, costs.forward_s, Step { kind: Kind::Forward, stage, micro_batch });
        self.forward_end[stage * self.model.n_micro_batches + micro_batch] = Some(end_s);
        self.n_forward[stage] += 1;
        Some(())
    }

    fn input_grad(&mut self, stage: usize) -> Option<()> {
        let rank = self.model.rank_of[stage];
        let micro_batch = self.n_input_grad[stage];
        let costs = self.model.stages[stage];
        let there_s = self.input_grad_there(stage)?;
        if micro_batch >= self.n_forward[stage] {
            return None;
        }
        let step = Step { kind: Kind::InputGrad, stage, micro_batch };
        let end_s = self.advance(rank, there_s, costs.input_grad_s, step);
        self.input_grad_end[stage * self.model.n_micro_batches + micro_batch] = Some(end_s);
        self.n_input_grad[stage] += 1;
        self.memory[rank] -= costs.activation - costs.weight_grad;
        self.pending[rank].push_back((stage, micro_batch));
        Some(())
    }

    fn weight_grad(&mut self, rank: usize) -> Option<()> {
        let (stage, micro_batch) = self.pending[rank].pop_front()?;
        let costs = self.model.stages[stage];
        self.advance(rank, 0.0, costs.weight_grad_s, Step { kind: Kind::WeightGrad, stage, micro_batch });
        self.memory[rank] -= costs.weight_grad;
        Some(())
    }

    /// Appends a step and returns its end; what a rank idles before its first step does not count.
    fn advance(&mut self, rank: usize, there_s: f64, time_s: f64, step: Step) -> f64 {
        let start_s = self.now_s[rank].max(there_s);
        if self.rows[rank].is_empty() {
            self.first_s[rank] = start_s;
        } else {
            self.idle[rank] += start_s - self.now_s[rank];
            self.most_idle = self.most_idle.max(self.idle[rank]);
        }
        self.now_s[rank] = start_s + time_s;
        self.rows[rank].push(step);
        self.now_s[rank]
    }
}
