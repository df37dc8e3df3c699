//! DualPipeV: two stages a rank in a V, the two directions overlapped.

use std::collections::VecDeque;

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch, Visit};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// One of the two stages of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The stage on the way from rank 0 to the last rank.
    Down,
    /// The stage on the way back.
    Up,
}

impl Phase {
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }

    pub(crate) fn stage(self, rank: u32, n_ranks: u32) -> Stage {
        match self {
            Self::Down => Stage(rank),
            Self::Up => Stage(2 * n_ranks - 1 - rank),
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

/// The steps of one rank, in the eight sections of the schedule. Messages into and out of the ends of the
/// pipeline, and across the turn of the V, are listed too; the user leaves them out.
pub(crate) fn steps(rank: u32, shape: Shape) -> Vec<Vec<Op>> {
    use Op::Commit;
    use Phase::{Down, Up};
    let after = shape.n_ranks - 1 - rank;
    let is_last = after == 0;
    let mut steps = Vec::new();
    // 1: forward only.
    for _ in 0..2 * after {
        steps.push(vec![Op::RecvForward(Down), Commit, Op::Forward(Down), Op::SendForward(Down)]);
    }
    // 2: forward in both phases.
    steps.push(vec![Op::RecvForward(Down)]);
    for i in 0..=rank {
        let mut step = vec![Commit, Op::Forward(Down), Op::RecvForward(Down), Op::RecvForward(Up), Commit];
        step.push(Op::Forward(Up));
        if !is_last || i < rank {
            step.push(Op::SendForward(Up));
        }
        step.push(Op::SendForward(Down));
        steps.push(step);
    }
    // 3: backward, weight gradient and forward of the upward phase.
    for _ in 0..after {
        let mut step = backward(Up, true);
        step.push(Op::RecvForward(Up));
        step.extend([Commit, Op::Weight, Commit, Op::Forward(Up), Op::SendForward(Up)]);
        steps.push(step);
    }
    // 4: the steady state.
    for i in 0..shape.n_micro_batches - 2 * shape.n_ranks + rank + 1 {
        let mut step = match (i, is_last) {
            (0, true) => vec![
                Commit,
                Op::Forward(Down),
                Op::SendForward(Up),
                Op::RecvBackward(Up),
                Commit,
                Op::Backward { phase: Up, split: false },
                Op::SendForward(Down),
                Op::SendBackward(Up),
            ],
            (0, false) => pair(Down, Up, false),
            _ => pair(Down, Up, true),
        };
        step.extend(pair(Up, Down, true));
        steps.push(step);
    }
    // 5: the upward phase runs out of forwards last.
    for _ in 0..after {
        let mut step = backward(Up, false);
        step.extend(pair(Up, Down, true));
        steps.push(step);
    }
    // 6: backward in both phases; the second half leaves weight gradients for the end.
    let mut split = false;
    for i in 0..=rank {
        let half = i == rank.div_ceil(2);
        split |= half && !rank.is_multiple_of(2);
        let mut step = backward(Up, split);
        split |= half && rank.is_multiple_of(2);
        step.extend(backward(Down, split));
        steps.push(step);
    }
    // 7 and 8: what is left of the downward phase, then of the weight gradients.
    for _ in 0..after {
        let mut step = vec![Commit, Op::Weight];
        step.extend(backward(Down, true));
        steps.push(step);
    }
    for _ in 0..=rank {
        steps.push(vec![Commit, Op::Weight]);
    }
    steps
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

/// Makes the DualPipeV plan: stages in a V, two a rank; in the steady state the forward pass of one of a
/// rank's stages overlaps with the backward pass of the other.
///
/// With per-stage times F, B, W and an overlapped pair FB, the bubble is `(p-1)(FB + B - 3W)`; each rank
/// keeps at most `2p + 1` visits of a micro-batch to a stage in flight.
///
/// # Errors
/// [`ScheduleError::TooFewMicroBatches`] for `m < 2p`, which ZB-V runs; else as for every schedule.
///
/// # Source
/// DeepSeek-AI, DualPipe, "DualPipeV"; the sections are those of DeepSpeed's `DualPipeVSchedule`.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, dual_pipe_v};
/// let plan = dual_pipe_v(Shape { n_ranks: 2, n_micro_batches: 4 })?;
/// assert!(plan.row(PipeRank(0)).iter().any(|action| action.to_string() == "(0F3;3B1)OVERLAP_F_B"));
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn dual_pipe_v(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(2, 3)?;
    admit(shape)?;
    let rows = (0..shape.n_ranks).map(|rank| row(rank, shape)).collect();
    Ok(Plan::new(Placement::v(shape.n_ranks)?, shape.n_micro_batches, rows)?)
}

/// Refuses shapes with too few micro-batches.
pub(crate) fn admit(shape: Shape) -> Result<(), ScheduleError> {
    let Shape { n_ranks, n_micro_batches } = shape;
    let n_needed = n_ranks.saturating_mul(2);
    if n_micro_batches < n_needed {
        return Err(ScheduleError::TooFewMicroBatches {
            schedule: "dual-pipe-v",
            n_ranks,
            n_micro_batches,
            n_needed,
            instead: "zb-v",
        });
    }
    Ok(())
}

fn row(rank: u32, shape: Shape) -> Vec<Action> {
    let mut n_forward = [0; 2];
    let mut n_backward = [0; 2];
    let mut weights = VecDeque::new();
    let visit = |phase: Phase, counters: &mut [u32; 2]| {
        let counter = &mut counters[phase.index()];
        *counter += 1;
        Visit { stage: phase.stage(rank, shape.n_ranks), micro_batch: MicroBatch(*counter - 1) }
    };
    let mut row = Vec::new();
    for op in steps(rank, shape).into_iter().flatten() {
        match op {
            Op::Forward(phase) => {
                let Visit { stage, micro_batch } = visit(phase, &mut n_forward);
                row.push(Compute::forward(stage, micro_batch).into());
            }
            Op::Backward { phase, split } => {
                let Visit { stage, micro_batch } = visit(phase, &mut n_backward);
                if split {
                    row.push(Compute::input_grad(stage, micro_batch).into());
                    weights.push_back(Compute::weight_grad(stage, micro_batch));
                } else {
                    row.push(Compute::backward(stage, micro_batch).into());
                }
            }
            Op::Pair { forward, backward } => {
                let forward = visit(forward, &mut n_forward);
                row.push(Action::Overlap { forward, backward: visit(backward, &mut n_backward) });
            }
            Op::Weight => row.extend(weights.pop_front().map(Action::from)),
            _ => {}
        }
    }
    row
}
