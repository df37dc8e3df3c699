//! V-Min: two stages a rank in a V, and split backward passes within a third of the memory of 1F1B.

use brigade_topology::Placement;

use super::zero_bubble::at_equal_times;
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::search::Goal;
use crate::shape::Shape;

/// Makes a V-Min plan: two stages a rank in a V, split backward passes, and at most `2((p+1)/3 + 1)` visits in flight on a
/// rank (division rounds down): about a third of the memory of 1F1B, which holds `2p`.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// Qi et al., "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362), section 4; the order comes from the
/// search of [`crate::find_plan`] at F = I = W, which starts from building blocks as in section 3.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, PipeRank, Shape, check_plan, v_min};
/// let plan = check_plan(&v_min(Shape { n_ranks: 4, n_micro_batches: 8 })?, Capacity(16))?;
/// assert!(plan.in_flight(PipeRank(0)) <= 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn v_min(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(2, 3)?;
    at_equal_times(Placement::v(shape.n_ranks)?, shape.n_micro_batches, n_in_flight(shape), Goal::Makespan)
}

/// The most visits in flight on a rank.
pub(super) fn n_in_flight(shape: Shape) -> u32 {
    (shape.n_ranks.saturating_add(1) / 3 + 1).min(shape.n_micro_batches).saturating_mul(2)
}
