//! DualPipeV: two stages a rank in a V, the two directions overlapped.

use brigade_topology::{Placement, Stage};

use super::dual::{self, Phase};
use crate::action::{Action, MicroBatch, Visit};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the DualPipeV plan: stages in a V, two a rank; in the steady state the forward pass of one of a
/// rank's stages overlaps with the backward pass of the other.
///
/// With per-stage times F, B, W and an overlapped pair FB, the bubble is `(p-1)(FB + B - 3W)`; each rank
/// keeps at most `2p + 1` visits of a micro-batch to a stage in flight.
///
/// Any `m >= 1` is right: below `2p`, which the original refuses, the rows are those of `2p` micro-batches less the
/// ones that are not there.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// DeepSeek-AI, DualPipe, "DualPipeV"; the sections are those of DeepSpeed's `DualPipeVSchedule`.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, dual_pipe_v};
/// let plan = dual_pipe_v(Shape { n_ranks: 2, n_micro_batches: 4 })?;
/// assert!(plan.row(PipeRank(0)).iter().any(|action| action.to_string() == "(0F3;3B1)OVERLAP_F_B"));
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn dual_pipe_v(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(2, 3)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, rank).collect()).collect();
    Ok(Plan::new(Placement::v(shape.n_ranks)?, shape.n_micro_batches, rows)?)
}

/// Refuses shapes with too few micro-batches for the original.
pub(crate) fn admit(shape: Shape) -> Result<(), ScheduleError> {
    let Shape { n_ranks, n_micro_batches } = shape;
    let n_needed = n_ranks.saturating_mul(2);
    if n_micro_batches < n_needed {
        return Err(ScheduleError::TooFewMicroBatches {
            schedule: "DeepSpeed's DualPipeV",
            n_ranks,
            n_micro_batches,
            n_needed,
            instead: "the plan of dual_pipe_v",
        });
    }
    Ok(())
}

pub(crate) fn row(shape: Shape, rank: u32) -> impl Iterator<Item = Action> {
    let row = dual::row(rank, shape, move |phase, micro_batch| {
        let stage = match phase {
            Phase::Down => rank,
            Phase::Up => 2 * shape.n_ranks - 1 - rank,
        };
        Visit { stage: Stage(stage), micro_batch: MicroBatch(micro_batch) }
    });
    dual::below(row, shape.n_micro_batches)
}
