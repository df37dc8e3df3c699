//! 1F1B: one forward, one backward, so that few micro-batches are in flight.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the 1F1B plan: after a warm-up of `min(p - 1 - r, m)` forwards, rank `r` alternates one forward
/// and one backward, then drains.
///
/// Rank `r` has at most `min(p - r, m)` micro-batches in flight; with equal passes the bubble is that of
/// GPipe, `(p-1)(F+B)`. Any `m >= 1` is right, also `m < p`.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, or a plan above the size limit.
///
/// # Source
/// Narayanan et al., "PipeDream-Flush" (arXiv 2006.09503), section 3.1; the order of DeepSpeed's
/// `TrainSchedule`.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, one_f_one_b};
/// let plan = one_f_one_b(Shape { n_ranks: 3, n_micro_batches: 3 })?;
/// let row: Vec<String> = plan.row(PipeRank(1)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["1F0", "1F1", "1B0", "1F2", "1B1", "1B2"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn one_f_one_b(shape: Shape) -> Result<Plan, ScheduleError> {
    shape.admit(1, 2)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, rank).collect()).collect();
    Ok(Plan::new(Placement::linear(shape.n_ranks)?, shape.n_micro_batches, rows)?)
}

pub(crate) fn row(shape: Shape, rank: u32) -> impl Iterator<Item = Action> + use<> {
    let m = shape.n_micro_batches;
    let stage = Stage(rank);
    let n_warm_up = (shape.n_ranks - 1 - rank).min(m);
    let warm_up = (0..n_warm_up).map(move |mb| Action::from(Compute::forward(stage, MicroBatch(mb))));
    let rest = (0..m).flat_map(move |mb| {
        let forward = mb.checked_add(n_warm_up).filter(|&next| next < m);
        let forward = forward.map(|next| Compute::forward(stage, MicroBatch(next)));
        forward.into_iter().chain([Compute::backward(stage, MicroBatch(mb))]).map(Action::from)
    });
    warm_up.chain(rest)
}
