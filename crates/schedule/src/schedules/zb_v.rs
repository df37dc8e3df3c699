//! ZB-V: two stages a rank in a V, and split backward passes within the memory of 1F1B.

use brigade_topology::Placement;

use super::zero_bubble::at_equal_times;
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::search::Goal;
use crate::shape::Shape;

/// Makes a ZB-V plan: two stages a rank in a V, split backward passes, and at most `2p` visits in flight on a rank,
/// which is the memory of 1F1B.
///
/// With F = I = W and `m >= 2p - 1` the bubble within spans is 0; with a barrier at the end of a step, `(p-1)F` of a
/// stage remains.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), section 6; the order comes from the search of
/// [`crate::find_plan`] at F = I = W.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, replay, zb_v};
/// let plan = check_plan(&zb_v(Shape { n_ranks: 2, n_micro_batches: 3 })?, Capacity(6))?;
/// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
/// assert_eq!(replay(&plan, &Costs::uniform(4, unit))?.bubble_span_s(), 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn zb_v(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(2, 3)?;
    let placement = Placement::v(shape.n_ranks)?;
    at_equal_times(placement, shape.n_micro_batches, n_in_flight(shape), Goal::MakespanThenSpan)
}

/// The most visits in flight on a rank.
pub(super) fn n_in_flight(shape: Shape) -> u32 {
    shape.n_ranks.min(shape.n_micro_batches).saturating_mul(2)
}
