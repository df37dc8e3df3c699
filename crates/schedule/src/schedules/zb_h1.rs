//! ZB-H1: split backward passes within the memory of 1F1B.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, ComputeKind, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes a ZB-H1 plan: backward passes are split, and weight gradients fill what 1F1B leaves idle, with at most
/// `min(p, m)` micro-batches in flight on any rank, the peak of 1F1B.
///
/// Rank r warms up as 1F1B does and takes each weight gradient r micro-batches after its input gradient, so
/// that the gradients go upstream first. With times F, I, W, where W is at most I, and `m >= p` the bubble is
/// `(p-1)(F+I-W)`: a third of that of 1F1B when they are equal.
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
/// use brigade_schedule::{PipeRank, Shape, zb_h1};
/// let plan = zb_h1(Shape { n_ranks: 2, n_micro_batches: 2 })?;
/// let row: Vec<String> = plan.row(PipeRank(0)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn zb_h1(shape: Shape) -> Result<Plan, ScheduleError> {
    late_weight_grads(shape, 1)
}

/// The plan of rows with weight gradients that come late.
pub(super) fn late_weight_grads(shape: Shape, reach: u32) -> Result<Plan, ScheduleError> {
    shape.admit(1, 3)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, reach, rank).collect()).collect();
    Ok(Plan::new(Placement::linear(shape.n_ranks)?, shape.n_micro_batches, rows)?)
}

/// A row of 1F1B with `reach` times its warm-up, whose weight gradients come `reach` micro-batches a rank late.
pub(crate) fn row(shape: Shape, reach: u32, rank: u32) -> impl Iterator<Item = Action> + use<> {
    let Shape { n_ranks, n_micro_batches: m } = shape;
    let action =
        move |kind, mb| Action::from(Compute { kind, stage: Stage(rank), micro_batch: MicroBatch(mb) });
    let n_warm_up = reach.saturating_mul(n_ranks - 1 - rank).min(m);
    let late = reach.saturating_mul(rank);
    let warm_up = (0..n_warm_up).map(move |mb| action(ComputeKind::Forward, mb));
    let steady = (0..m).flat_map(move |mb| {
        let ahead = n_warm_up.saturating_add(mb);
        let forward = (ahead < m).then(|| action(ComputeKind::Forward, ahead));
        let weight_grad = mb.checked_sub(late).map(|mb| action(ComputeKind::WeightGrad, mb));
        forward.into_iter().chain([action(ComputeKind::InputGrad, mb)]).chain(weight_grad)
    });
    let rest = (m.saturating_sub(late)..m).map(move |mb| action(ComputeKind::WeightGrad, mb));
    warm_up.chain(steady).chain(rest)
}
