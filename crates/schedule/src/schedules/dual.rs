//! What DualPipe and DualPipeV share: the sections of a rank that works in two phases at once.

use std::collections::VecDeque;

use crate::action::{Action, Compute, Visit};
use crate::shape::Shape;

/// One of the two stages of a rank, seen from the end of the pipeline that lies nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The stage on the way from the nearer end to the middle of the pipeline (DualPipeV: to the last rank).
    Down,
    /// The stage on the way from there to the end.
    Up,
}

impl Phase {
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }
}

/// One operation of a rank. Micro-batches are implied: each kind takes them in order within its phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Forward(Phase),
    Backward {
        phase: Phase,
        split: bool,
    },
    /// A forward and a backward pass that overlap.
    Pair {
        forward: Phase,
        backward: Phase,
    },
    /// The oldest weight gradient that a split backward pass left.
    Weight,
    RecvForward(Phase),
    SendForward(Phase),
    RecvBackward(Phase),
    SendBackward(Phase),
    /// Starts all queued messages and waits for them.
    Commit,
}

/// The steps of one rank, in the eight sections of the schedule, one at a time. Messages into and out of the ends
/// of the pipeline, and across the turn of the V, are listed too; the user leaves them out.
///
/// There must be at least twice as many micro-batches as ranks.
pub(crate) fn steps(rank: u32, shape: Shape) -> impl Iterator<Item = Vec<Op>> {
    use Phase::{Down, Up};
    let after = shape.n_ranks - 1 - rank;
    // 1: forward only.
    let first = (0..2 * after)
        .map(|_| vec![Op::RecvForward(Down), Op::Commit, Op::Forward(Down), Op::SendForward(Down)]);
    // 2: forward in both phases.
    let second = (0..=rank).map(move |i| {
        let mut step =
            vec![Op::Commit, Op::Forward(Down), Op::RecvForward(Down), Op::RecvForward(Up), Op::Commit];
        step.push(Op::Forward(Up));
        if after > 0 || i < rank {
            step.push(Op::SendForward(Up));
        }
        step.push(Op::SendForward(Down));
        step
    });
    // 3: backward, weight gradient and forward of the upward phase.
    let third = (0..after).map(|_| {
        let mut step = backward(Up, true);
        step.push(Op::RecvForward(Up));
        step.extend([Op::Commit, Op::Weight, Op::Commit, Op::Forward(Up), Op::SendForward(Up)]);
        step
    });
    // 4: the steady state.
    let fourth = (0..shape.n_micro_batches - 2 * shape.n_ranks + rank + 1).map(move |i| {
        let mut step = match (i, after) {
            (0, 0) => turn(),
            (0, _) => pair(Down, Up, false),
            _ => pair(Down, Up, true),
        };
        step.extend(pair(Up, Down, true));
        step
    });
    // 5: the upward phase runs out of forwards last.
    let fifth = (0..after).map(|_| {
        let mut step = backward(Up, false);
        step.extend(pair(Up, Down, true));
        step
    });
    // 6: backward in both phases; the second half leaves weight gradients for the end.
    let half = rank.div_ceil(2);
    let sixth = (0..=rank).map(move |i| {
        let mut step = backward(Up, i > half || i == half && !rank.is_multiple_of(2));
        step.extend(backward(Down, i >= half));
        step
    });
    // 7 and 8: what is left of the downward phase, then of the weight gradients.
    let seventh = (0..after).map(|_| {
        let mut step = vec![Op::Commit, Op::Weight];
        step.extend(backward(Down, true));
        step
    });
    let eighth = (0..=rank).map(|_| vec![Op::Commit, Op::Weight]);
    let start = first.chain([vec![Op::RecvForward(Down)]]).chain(second).chain(third);
    start.chain(fourth).chain(fifth).chain(sixth).chain(seventh).chain(eighth)
}

/// The first step of the steady state on the last rank, where the phases meet: nothing overlaps yet.
fn turn() -> Vec<Op> {
    use Phase::{Down, Up};
    vec![
        Op::Commit,
        Op::Forward(Down),
        Op::SendForward(Up),
        Op::RecvBackward(Up),
        Op::Commit,
        Op::Backward { phase: Up, split: false },
        Op::SendForward(Down),
        Op::SendBackward(Up),
    ]
}

fn backward(phase: Phase, split: bool) -> Vec<Op> {
    vec![Op::RecvBackward(phase), Op::Commit, Op::Backward { phase, split }, Op::SendBackward(phase)]
}

fn pair(forward: Phase, backward: Phase, receive: bool) -> Vec<Op> {
    let mut step = Vec::with_capacity(6);
    if receive {
        step.push(Op::RecvForward(forward));
    }
    step.extend([Op::RecvBackward(backward), Op::Commit, Op::Pair { forward, backward }]);
    step.extend([Op::SendForward(forward), Op::SendBackward(backward)]);
    step
}

/// The actions of a row for the first `n_micro_batches` micro-batches alone. What is left of a sound plan is sound.
pub(crate) fn below(row: impl Iterator<Item = Action>, n_micro_batches: u32) -> impl Iterator<Item = Action> {
    row.filter_map(move |action| {
        let is_there = |compute: &Compute| compute.micro_batch.0 < n_micro_batches;
        let mut left = action.computes().filter(is_there);
        match (left.next(), left.next()) {
            (Some(_), Some(_)) => Some(action),
            (one, _) => one.map(Action::from),
        }
    })
}

/// The row of a rank, one action at a time; `visit` names stage and micro-batch of the n-th one of a phase.
///
/// Fewer micro-batches than twice the ranks are made up to that number.
pub(crate) fn row(
    rank: u32,
    shape: Shape,
    visit: impl Fn(Phase, u32) -> Visit,
) -> impl Iterator<Item = Action> {
    let Shape { n_ranks, n_micro_batches } = shape;
    let shape = Shape { n_ranks, n_micro_batches: n_micro_batches.max(n_ranks.saturating_mul(2)) };
    let mut n_forward = [0; 2];
    let mut n_backward = [0; 2];
    // No more than the ranks after this one, or before it, ever wait.
    let mut weights = VecDeque::new();
    let take = move |phase: Phase, counters: &mut [u32; 2]| {
        let counter = &mut counters[phase.index()];
        *counter += 1;
        visit(phase, *counter - 1)
    };
    steps(rank, shape).flatten().filter_map(move |op| match op {
        Op::Forward(phase) => {
            let Visit { stage, micro_batch } = take(phase, &mut n_forward);
            Some(Compute::forward(stage, micro_batch).into())
        }
        Op::Backward { phase, split } => {
            let Visit { stage, micro_batch } = take(phase, &mut n_backward);
            if split {
                weights.push_back(Compute::weight_grad(stage, micro_batch));
                Some(Compute::input_grad(stage, micro_batch).into())
            } else {
                Some(Compute::backward(stage, micro_batch).into())
            }
        }
        Op::Pair { forward, backward } => {
            let forward = take(forward, &mut n_forward);
            Some(Action::Overlap { forward, backward: take(backward, &mut n_backward) })
        }
        Op::Weight => weights.pop_front().map(Action::from),
        _ => None,
    })
}
