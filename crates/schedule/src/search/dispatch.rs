//! A dispatch rule: ranks take, at each moment, the step that it scores best.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::model::{Kind, Model, Step};

/// The parameters of the rule. A step's score is when it could start plus its bias; the least wins.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// Bias of forward passes, for each local stage.
    pub(crate) forward: Vec<f64>,
    /// Bias of input gradients, for each local stage.
    pub(crate) input_grad: Vec<f64>,
    /// Bias of weight gradients.
    pub(crate) weight_grad: f64,
    /// Bias of weight gradients while memory holds up a forward pass.
    pub(crate) weight_grad_urgent: f64,
    /// Added to the bias of a forward pass after a forward pass, and of an input gradient after another.
    pub(crate) repeat: f64,
    /// How far ahead a rank sees that memory will hold up a forward pass.
    pub(crate) foresight_s: f64,
    /// Each rank starts at most so many micro-batches more than it has begun to take back.
    pub(crate) most_ahead: Vec<usize>,
    /// Whether the last rank decides first among ranks that decide at the same time.
    pub(crate) last_first: bool,
}

/// Rows, and what they cost.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Vec<Step>>,
    pub(crate) cost_s: f64,
}

/// A time in the order of the heap; no time here is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

struct Rank {
    first_s: f64,
    free_s: f64,
    memory: u64,
    pending: VecDeque<(usize, usize)>,
    /// The last step that was no weight gradient.
    last: Option<Kind>,
    row: Vec<Step>,
}

struct Dispatch<'a> {
    model: &'a Model,
    rule: &'a Rule,
    /// Ends of forward passes and input gradients, by stage and micro-batch; infinite while unknown.
    forward_end: Vec<f64>,
    input_grad_end: Vec<f64>,
    n_forward: Vec<usize>,
    n_input_grad: Vec<usize>,
    ranks: Vec<Rank>,
    events: BinaryHeap<Reverse<(Time, usize)>>,
}

/// Applies the rule; nothing when it stops before all is done, or when the result is no better than `best`.
pub(crate) fn dispatch(model: &Model, rule: &Rule, best_s: f64) -> Option<Rows> {
    let n_visits = model.n_visits();
    let rank = |rank| Rank {
        first_s: 0.0,
        free_s: 0.0,
        memory: 0,
        pending: VecDeque::new(),
        last: None,
        row: Vec::with_capacity(model.n_steps_of(rank)),
    };
    let mut dispatch = Dispatch {
        model,
        rule,
        forward_end: vec![f64::INFINITY; n_visits],
        input_grad_end: vec![f64::INFINITY; n_visits],
        n_forward: vec![0; model.n_stages],
        n_input_grad: vec![0; model.n_stages],
        ranks: (0..model.n_ranks).map(rank).collect(),
        events: BinaryHeap::new(),
    };
    for rank in 0..model.n_ranks {
        dispatch.wake(0.0, rank);
    }
    dispatch.run(best_s);
    let mut ranks = dispatch.ranks.iter().enumerate();
    let complete = ranks.all(|(rank, run)| run.row.len() == model.n_steps_of(rank));
    let cost_s = model.cost_s(dispatch.ranks.iter().map(|rank| (rank.first_s, rank.free_s)));
    (complete && cost_s < best_s)
        .then(|| Rows { rows: dispatch.ranks.into_iter().map(|rank| rank.row).collect(), cost_s })
}

impl Dispatch<'_> {
    fn wake(&mut self, time_s: f64, rank: usize) {
        let key = if self.rule.last_first { self.model.n_ranks - 1 - rank } else { rank };
        self.events.push(Reverse((Time(time_s), key)));
    }

    fn run(&mut self, best_s: f64) {
        while let Some(Reverse((Time(now_s), key))) = self.events.pop() {
            let rank = if self.rule.last_first { self.model.n_ranks - 1 - key } else { key };
            if now_s < self.ranks[rank].free_s {
                continue;
            }
            if now_s >= best_s {
                return;
            }
            self.decide(rank, now_s);
        }
    }

    fn decide(&mut self, rank: usize, now_s: f64) {
        let Some((start_s, step)) = self.best_step(rank, now_s) else { return };
        if start_s > now_s {
            self.wake(start_s, rank);
            return;
        }
        self.take(rank, step, start_s);
    }

    fn best_step(&self, rank: usize, now_s: f64) -> Option<(f64, Step)> {
        let mut best: Option<(f64, f64, Step)> = None;
        let mut offer = |start_s: f64, bias: f64, step: Step| {
            let score = start_s + bias;
            if start_s < f64::INFINITY && best.is_none_or(|(least, ..)| score < least) {
                best = Some((score, start_s, step));
            }
        };
        let mut held_up = false;
        let repeat = |kind| if self.ranks[rank].last == Some(kind) { self.rule.repeat } else { 0.0 };
        let (forward_again, input_grad_again) = (repeat(Kind::Forward), repeat(Kind::InputGrad));
        for (local, &stage) in self.model.stages_of[rank].iter().enumerate() {
            let micro_batch = self.n_input_grad[stage];
            if micro_batch < self.n_forward[stage] {
                let start_s = self.input_grad_ready(stage, micro_batch).max(now_s);
                offer(
                    start_s,
                    input_grad_again + self.rule.input_grad[local],
                    Step { kind: Kind::InputGrad, stage, micro_batch },
                );
            }
            let micro_batch = self.n_forward[stage];
            if micro_batch < self.model.n_of(stage) {
                let start_s = self.forward_ready(stage, micro_batch).max(now_s);
                if start_s == f64::INFINITY {
                    continue;
                }
                if !self.fits(rank, local) {
                    held_up |= start_s <= now_s + self.rule.foresight_s;
                    continue;
                }
                offer(
                    start_s,
                    forward_again + self.rule.forward[local],
                    Step { kind: Kind::Forward, stage, micro_batch },
                );
            }
        }
        if let Some(&(stage, micro_batch)) = self.ranks[rank].pending.front() {
            let bias = if held_up { self.rule.weight_grad_urgent } else { self.rule.weight_grad };
            offer(now_s, bias, Step { kind: Kind::WeightGrad, stage, micro_batch });
        }
        best.map(|(_, start_s, step)| (start_s, step))
    }

    /// Whether the rank has memory for the forward pass of a local stage, and for the stages after it: the
    /// oldest micro-batch can then always go on.
    fn fits(&self, rank: usize, local: usize) -> bool {
        let stages = &self.model.stages_of[rank];
        if local == 0 {
            let first = stages[0];
            let last = stages[stages.len() - 1];
            let ahead = self.n_forward[first].saturating_sub(self.n_input_grad[last]);
            if ahead >= self.rule.most_ahead[rank] {
                return false;
            }
        }
        let needed: u64 = stages[local..]
            .iter()
            .filter(|&&stage| self.n_forward[stage] < self.model.n_of(stage))
            .map(|&stage| self.model.stages[stage].activation)
            .sum();
        self.ranks[rank].memory + needed <= self.model.limit[rank]
    }

    fn forward_ready(&self, stage: usize, micro_batch: usize) -> f64 {
        match self.model.previous(stage) {
            None => 0.0,
            Some(previous) => {
                let end_s = self.forward_end[self.model.visit(previous, micro_batch)];
                end_s + self.model.hop_s(previous, stage)
            }
        }
    }

    fn input_grad_ready(&self, stage: usize, micro_batch: usize) -> f64 {
        match self.model.next(stage) {
            None => self.forward_end[self.model.visit(stage, micro_batch)],
            Some(next) => {
                self.input_grad_end[self.model.visit(next, micro_batch)] + self.model.hop_s(next, stage)
            }
        }
    }

    fn take(&mut self, at: usize, step: Step, start_s: f64) {
        let Step { kind, stage, micro_batch } = step;
        let costs = self.model.stages[stage];
        let index = self.model.visit(stage, micro_batch);
        let rank = &mut self.ranks[at];
        let (end_s, neighbour) = match kind {
            Kind::Forward => {
                let end_s = start_s + costs.forward_s;
                rank.memory += costs.activation;
                self.forward_end[index] = end_s;
                self.n_forward[stage] += 1;
                (end_s, self.model.next(stage))
            }
            Kind::InputGrad => {
                let end_s = start_s + costs.input_grad_s;
                rank.memory -= costs.activation - costs.weight_grad;
                rank.pending.push_back((stage, micro_batch));
                self.input_grad_end[index] = end_s;
                self.n_input_grad[stage] += 1;
                (end_s, self.model.previous(stage))
            }
            Kind::WeightGrad => {
                rank.memory -= costs.weight_grad;
                rank.pending.pop_front();
                (start_s + costs.weight_grad_s, None)
            }
        };
        if rank.row.is_empty() {
            rank.first_s = start_s;
        }
        rank.free_s = end_s;
        if kind != Kind::WeightGrad {
            rank.last = Some(kind);
        }
        rank.row.push(step);
        self.wake(end_s, at);
        if let Some(neighbour) = neighbour {
            let rank = self.model.rank_of[neighbour];
            if rank != at {
                // Even when it cannot start yet: the rank may now rather wait for it.
                let known_s = start_s.max(self.ranks[rank].free_s);
                self.wake(known_s, rank);
            }
        }
    }
}
