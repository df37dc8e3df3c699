//! Looped breadth-first: each stage runs all micro-batches before the rank turns to its next stage.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the looped breadth-first plan with `n_virtual` stages a rank, dealt out in rounds over the ranks.
///
/// Each rank runs all micro-batches forward through its first stage, then through its second, and so on, and
/// backward in exactly the opposite order. It keeps all `m` micro-batches in flight at every stage; for
/// `m >= p` the bubble is `(p-1)(F+B)/v` of a whole rank's times. With sharded weights each stage's weights
/// are gathered once a direction.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, no stage, or a plan above the size limit.
///
/// # Source
/// Lamy-Poirier, "Breadth-First Pipeline Parallelism" (arXiv 2211.05953), section 4;
/// `torch.distributed.pipelining`, `ScheduleLoopedBFS`.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, looped_bfs};
/// let plan = looped_bfs(Shape { n_ranks: 2, n_micro_batches: 2 }, 2)?;
/// let row: Vec<String> = plan.row(PipeRank(0)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["0F0", "0F1", "2F0", "2F1", "2B1", "2B0", "0B1", "0B0"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn looped_bfs(shape: Shape, n_virtual: u32) -> Result<Plan, ScheduleError> {
    shape.admit(n_virtual, 2)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, n_virtual, rank).collect()).collect();
    Ok(Plan::new(Placement::looped(shape.n_ranks, n_virtual)?, shape.n_micro_batches, rows)?)
}

pub(crate) fn row(shape: Shape, n_virtual: u32, rank: u32) -> impl Iterator<Item = Action> + use<> {
    let m = shape.n_micro_batches;
    let stage = move |local| Stage(local * shape.n_ranks + rank);
    let forwards = (0..n_virtual).flat_map(move |local| {
        (0..m).map(move |mb| Action::from(Compute::forward(stage(local), MicroBatch(mb))))
    });
    let backwards = (0..n_virtual).rev().flat_map(move |local| {
        (0..m).rev().map(move |mb| Action::from(Compute::backward(stage(local), MicroBatch(mb))))
    });
    forwards.chain(backwards)
}
