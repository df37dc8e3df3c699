//! Sequence-split 1F1B: each micro-batch in pieces along its sequence.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the plan of 1F1B over pieces of sequences: each micro-batch is cut into `n_pieces` along its sequence, as
/// causal models allow; pieces go forward in order, and backward in the opposite order within a micro-batch.
///
/// Piece `k` of micro-batch `i` is micro-batch `i * n_pieces + k` of the plan, which has `n_pieces` times as many.
/// Rank `r` starts with `p - 1 - r + n_pieces` pieces, so that it holds about `1 / n_pieces` of what 1F1B holds
/// beyond one whole micro-batch. What a stage keeps from piece to piece, such as keys and values, is its own affair.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, no piece, or a plan above the size limit.
///
/// # Source
/// Sun et al., "Seq1F1B" (arXiv 2406.03488), section 3; order as in sail-sg's `seq1f1b.py`.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, seq_one_f_one_b};
/// let plan = seq_one_f_one_b(Shape { n_ranks: 2, n_micro_batches: 2 }, 2)?;
/// let row: Vec<String> = plan.row(PipeRank(1)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["1F0", "1F1", "1B1", "1F2", "1B0", "1F3", "1B3", "1B2"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn seq_one_f_one_b(shape: Shape, n_pieces: u32) -> Result<Plan, ScheduleError> {
    shape.admit(n_pieces, 2)?;
    let n_all = shape.n_micro_batches * n_pieces;
    let row = |rank: u32| {
        let stage = Stage(rank);
        let n_warm_up = (shape.n_ranks - 1 - rank + n_pieces).min(n_all);
        let forward = |piece| Action::from(Compute::forward(stage, MicroBatch(piece)));
        let backwards = (0..shape.n_micro_batches)
            .flat_map(|mb| (0..n_pieces).rev().map(move |piece| mb * n_pieces + piece))
            .map(|piece| Action::from(Compute::backward(stage, MicroBatch(piece))));
        let mut row: Vec<Action> = (0..n_warm_up).map(forward).collect();
        let mut rest = (n_warm_up..n_all).map(forward);
        for backward in backwards {
            row.push(backward);
            row.extend(rest.next());
        }
        row
    };
    let rows = (0..shape.n_ranks).map(row).collect();
    Ok(Plan::new(Placement::linear(shape.n_ranks)?, n_all, rows)?)
}
