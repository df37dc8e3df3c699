//! ZB-H2: split backward passes with about twice the memory of 1F1B.

use super::zb_h1::late_weight_grads;
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes a ZB-H2 plan: backward passes are split, and up to `2p - 1` micro-batches are in flight on a rank, so
/// that no rank has to wait between its first and its last step.
///
/// With F = I = W and `m >= 2p - 1` the bubble within spans is 0; the ranks still start one after the other, so
/// that a step which ends with a barrier over all ranks takes `(p-1)F` longer than the work of one rank.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), section 2.2; the
/// rows are our own closed form.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, replay, zb_h2};
/// let plan = check_plan(&zb_h2(Shape { n_ranks: 4, n_micro_batches: 8 })?, Capacity(8))?;
/// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
/// assert_eq!(replay(&plan, &Costs::uniform(4, unit))?.bubble_span_s(), 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn zb_h2(shape: Shape) -> Result<Plan, ScheduleError> {
    late_weight_grads(shape, 2)
}
