//! GPipe: all micro-batches forward, then all of them backward.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the GPipe plan: each stage runs every micro-batch forward, then every one backward, both in order.
///
/// It keeps all `m` micro-batches in flight; with equal passes the bubble is `(p-1)(F+B)`.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// Huang et al., "GPipe" (arXiv 1811.06965), section 2.3. The backward passes go in forward order, as in
/// `torch.distributed.pipelining`, so that gradients are summed in the order of the micro-batches.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, gpipe};
/// let plan = gpipe(Shape { n_ranks: 2, n_micro_batches: 2 })?;
/// let row: Vec<String> = plan.row(PipeRank(1)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["1F0", "1F1", "1B0", "1B1"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn gpipe(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(1, 2)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, rank).collect()).collect();
    Ok(Plan::new(Placement::linear(shape.n_ranks)?, shape.n_micro_batches, rows)?)
}

pub(crate) fn row(shape: Shape, rank: u32) -> impl Iterator<Item = Action> + use<> {
    let micro_batches = || (0..shape.n_micro_batches).map(MicroBatch);
    let stage = Stage(rank);
    let forwards = micro_batches().map(move |mb| Action::from(Compute::forward(stage, mb)));
    let backwards = micro_batches().map(move |mb| Action::from(Compute::backward(stage, mb)));
    forwards.chain(backwards)
}
