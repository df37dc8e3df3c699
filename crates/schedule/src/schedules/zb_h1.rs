//! ZB-H1: split backward passes within the memory of 1F1B.

use brigade_topology::Placement;

use super::zero_bubble::at_equal_times;
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::search::Goal;
use crate::shape::Shape;

/// Makes a ZB-H1 plan: backward passes are split, and weight gradients fill what 1F1B leaves idle, with at most
/// `min(p, m)` micro-batches in flight on any rank, the peak of 1F1B.
///
/// With times F, I, W and `m >= p` the bubble is `(p-1)(F+I-W)`, a third of that of 1F1B when they are equal.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), section 2.2; the order comes from the search
/// of [`crate::find_plan`] at F = I = W.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, zb_h1};
/// let plan = zb_h1(Shape { n_ranks: 2, n_micro_batches: 2 })?;
/// let row: Vec<String> = plan.row(PipeRank(0)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn zb_h1(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(1, 3)?;
    let n_in_flight = shape.n_ranks.min(shape.n_micro_batches);
    at_equal_times(Placement::linear(shape.n_ranks)?, shape.n_micro_batches, n_in_flight, Goal::Makespan)
}
