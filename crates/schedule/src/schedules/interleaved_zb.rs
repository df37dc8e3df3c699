//! Interleaved zero-bubble: several stages a rank, and split backward passes.

use brigade_topology::Placement;

use super::interleaved::first_group;
use super::zero_bubble::at_equal_times;
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::search::Goal;
use crate::shape::Shape;

/// Makes an interleaved zero-bubble plan with `n_virtual` stages a rank, dealt out in rounds, and split backward
/// passes.
///
/// A rank holds at most `(v-1)g + p` visits of a micro-batch to a stage, where `g` is the size of a group, `p`
/// when `p` divides `m`. Then the bubble at F = I = W of a whole rank is `(p-1)F/v`.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, no stage, or a plan above the size limit.
///
/// # Source
/// `torch.distributed.pipelining`, `ScheduleInterleavedZeroBubble`, whose memory it keeps to; the order comes from
/// the search of [`crate::find_plan`] at F = I = W.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Shape, check_plan, interleaved_zb};
/// let plan = interleaved_zb(Shape { n_ranks: 2, n_micro_batches: 4 }, 2)?;
/// assert!(check_plan(&plan, Capacity(8)).is_ok());
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn interleaved_zb(shape: Shape, n_virtual: u32) -> Result<Plan, ScheduleError> {
    shape.admit(n_virtual, 3)?;
    let placement = Placement::looped(shape.n_ranks, n_virtual)?;
    at_equal_times(placement, shape.n_micro_batches, n_in_flight(shape, n_virtual), Goal::Makespan)
}

/// The most visits in flight on a rank.
pub(super) fn n_in_flight(shape: Shape, n_virtual: u32) -> u32 {
    let n_visits = n_virtual.saturating_mul(shape.n_micro_batches);
    let groups = n_virtual.saturating_sub(1).saturating_mul(first_group(shape));
    groups.saturating_add(shape.n_ranks).min(n_visits)
}
