//! DualPipe: two pipelines through the same ranks, one down and one up, over two copies of each stage.

use brigade_topology::{Placement, Stage};

use super::dual::{self, Phase};
use super::zero_bubble::at_equal_times;
use crate::action::{Action, MicroBatch, Visit};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::search::Goal;
use crate::shape::Shape;

/// Makes the DualPipe plan: rank `r` holds stage `r` for even micro-batches, which go down the ranks, and stage
/// `p - 1 - r` for odd ones, which go up; in the steady state the forward pass of one direction overlaps with the
/// backward pass of the other.
///
/// With per-stage times F, B, W and an overlapped pair FB, for even `m >= 2p` the bubble is
/// `(p/2-1)(FB + B - 3W)`; each rank keeps at most `p + 1` micro-batches in flight. The price is two copies of
/// the weights, whose gradients are summed at the end of a batch
/// ([`ReduceCopies`](crate::Instruction::ReduceCopies)).
///
/// Any `m >= 1` is right: with an odd number, or fewer than `2p`, the rows are those of the next number that the
/// original takes, less the micro-batches that are not there. The original wants an even number of ranks too; for
/// an odd one, whose middle rank holds one stage for both directions, the order is searched within the same memory,
/// with split backward passes and without pairs.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv 2412.19437), section 3.2.1; order as in their `DualPipe`,
/// where the halves of a batch take the two directions instead of even and odd micro-batches.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, dual_pipe};
/// let plan = dual_pipe(Shape { n_ranks: 4, n_micro_batches: 8 })?;
/// assert_eq!(plan.placement().to_string(), "bidirectional:4");
/// let row: Vec<String> = plan.row(PipeRank(0)).iter().take(5).map(ToString::to_string).collect();
/// assert_eq!(row, ["0F0", "0F2", "0F4", "3F1", "3I1"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn dual_pipe(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(1, 3)?;
    let Shape { n_ranks, n_micro_batches } = shape;
    let placement = Placement::bidirectional(n_ranks)?;
    if !has_rows(shape) {
        return at_equal_times(placement, n_micro_batches, n_in_flight(shape), Goal::Makespan);
    }
    let rows = (0..n_ranks).map(|rank| row(shape, rank).collect()).collect();
    Ok(Plan::new(placement, n_micro_batches, rows)?)
}

/// The most micro-batches in flight on a rank.
pub(super) fn n_in_flight(shape: Shape) -> u32 {
    shape.n_ranks.saturating_add(1).min(shape.n_micro_batches)
}

/// Whether the rows of the shape are a closed form.
pub(crate) fn has_rows(shape: Shape) -> bool {
    shape.n_ranks.is_multiple_of(2)
}

/// The row of a rank among an even number of them: that of DualPipeV on half the ranks with half the
/// micro-batches, once for each half of the ranks.
pub(crate) fn row(shape: Shape, rank: u32) -> impl Iterator<Item = Action> {
    let Shape { n_ranks, n_micro_batches } = shape;
    let from_below = rank >= n_ranks / 2;
    let other = n_ranks - 1 - rank;
    let half = Shape { n_ranks: n_ranks / 2, n_micro_batches: n_micro_batches.div_ceil(2) };
    let row = dual::row(rank.min(other), half, move |phase, nth| {
        // The nearer end of the lower half is where micro-batches go up from.
        let goes_up = (phase == Phase::Up) != from_below;
        let (stage, micro_batch) = if goes_up {
            (other, nth.saturating_mul(2).saturating_add(1))
        } else {
            (rank, nth.saturating_mul(2))
        };
        Visit { stage: Stage(stage), micro_batch: MicroBatch(micro_batch) }
    });
    dual::below(row, n_micro_batches)
}
