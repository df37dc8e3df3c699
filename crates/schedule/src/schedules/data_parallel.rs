//! Data-parallel accumulation: the whole model on one rank.

use super::one_f_one_b;
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the plan of gradient accumulation without a pipeline: the one stage runs each micro-batch forward and
/// backward in turn. It is the plan of every replica of data parallelism.
///
/// # Errors
/// [`ScheduleError`] for no micro-batch or a plan above the size limit.
///
/// # Source
/// The order of DeepSpeed's `DataParallelSchedule`: 1F1B on one rank.
///
/// # Examples
/// ```
/// let plan = brigade_schedule::data_parallel(2)?;
/// assert_eq!(plan.to_csv(), "0F0,0B0,0F1,0B1\n");
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn data_parallel(n_micro_batches: u32) -> Result<Plan, ScheduleError> {
    one_f_one_b(Shape { n_ranks: 1, n_micro_batches })
}
