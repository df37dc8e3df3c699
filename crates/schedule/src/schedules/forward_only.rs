//! Forward-only: evaluation and inference.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the plan of evaluation and inference: every micro-batch forward through every stage, in order.
///
/// Lowering gives it two buffers a rank, used in turn, so that a transport may still read one while the
/// next micro-batch arrives in the other.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// The order of DeepSpeed's `InferenceSchedule`.
///
/// # Examples
/// ```
/// use brigade_schedule::{Shape, forward_only};
/// let plan = forward_only(Shape { n_ranks: 3, n_micro_batches: 1 })?;
/// assert!(plan.is_forward_only());
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn forward_only(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(1, 1)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, rank).collect()).collect();
    Ok(Plan::new(Placement::linear(shape.n_ranks)?, shape.n_micro_batches, rows)?)
}

pub(crate) fn row(shape: Shape, rank: u32) -> impl Iterator<Item = Action> + use<> {
    (0..shape.n_micro_batches).map(move |mb| Compute::forward(Stage(rank), MicroBatch(mb)).into())
}
