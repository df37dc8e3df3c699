//! Lowering: from the order of work to instructions with messages and buffers.

mod peer;
mod planned;
mod rank;

use brigade_topology::PipeRank;

use crate::action::Action;
use crate::error::LowerError;
use crate::plan::Plan;
use crate::program::Program;
pub(crate) use rank::{Planned, RankLowering};

/// Adds messages, loads, buffers and the steps at the end of a batch to a plan.
///
/// - A send follows its computation at once. A receive stands directly before the first computation that
///   needs it, or earlier where the peer sends an earlier message over the same link: links keep order.
/// - Between two stages of one rank there is no message but a hand-over from buffer to buffer.
/// - Buffers are reused in the order in which they become free; a rank has as many as it ever holds at once.
///   A buffer is free again when its micro-batch is done at the stage: after the last of the backward pass
///   and its message, or after the output has left in a forward-only plan, which has two where it has two
///   micro-batches.
/// - A plan that places any message itself keeps all of its messages where they stand; none is added. So it is
///   with loads, and with the steps at the end of a batch.
/// - Markers stay where they stand. Waits for sends are dropped: a send has left when it returns.
///
/// # Errors
/// [`LowerError`] names rank and position of the first cell that cannot be carried out: work of a stage that
/// lives elsewhere, work done twice, work before what it needs on the same rank, or a message that no rank
/// sends. What only shows across ranks, such as a deadlock, is for [`crate::check`].
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, lower, one_f_one_b};
/// let program = lower(&one_f_one_b(Shape { n_ranks: 2, n_micro_batches: 4 })?)?;
/// assert_eq!((program.n_buffers(PipeRank(0)), program.n_buffers(PipeRank(1))), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lower(plan: &Plan) -> Result<Program, LowerError> {
    let any = |which: fn(&Action) -> bool| plan.rows().iter().flatten().any(which);
    let planned = Planned {
        messages: any(|action| matches!(action, Action::Message { .. })),
        loads: any(|action| matches!(action, Action::Load { .. })),
        ends: any(Action::ends_batch),
    };
    let row_of = |rank: PipeRank| plan.row(rank).iter().copied();
    let mut streams = Vec::with_capacity(plan.rows().len());
    for rank in (0..plan.placement().n_ranks()).map(PipeRank) {
        let mut lowering = RankLowering::new(
            plan.placement(),
            plan.n_micro_batches(),
            rank,
            plan.is_forward_only(),
            planned,
            row_of,
        );
        // Most computations bring a receive and a send; the end of the batch is three more.
        let mut stream = Vec::with_capacity(plan.row(rank).len().saturating_mul(3).saturating_add(3));
        for action in plan.row(rank) {
            lowering.push(*action, &mut stream)?;
        }
        lowering.finish(&mut stream);
        streams.push(stream);
    }
    Ok(Program::of_plan(plan.clone(), streams))
}
