//! Interleaved 1F1B: several stages a rank, dealt out in rounds.

use brigade_topology::{Placement, Stage};

use crate::action::{Action, Compute, MicroBatch};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the interleaved 1F1B plan with `n_virtual` stages a rank, dealt out in rounds over the ranks.
///
/// Micro-batches go through in groups of about `p`; a group passes all stages of a rank before the next one
/// starts. When `p` divides `m` the bubble is `(p-1)(F+B)/v` of a whole rank's times, a `v`-th of that of
/// 1F1B, for `v` times the messages. Any `m >= 1` is right: groups then differ in size by one.
///
/// # Errors
/// [`ScheduleError`] for no rank, no micro-batch, no stage, or a plan above the size limit.
///
/// # Source
/// Narayanan et al., "Efficient Large-Scale Language Model Training" (arXiv 2104.04473), section 2.2; group
/// sizes and warm-up as in `torch.distributed.pipelining`, `ScheduleInterleaved1F1B`.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, interleaved_one_f_one_b};
/// let plan = interleaved_one_f_one_b(Shape { n_ranks: 2, n_micro_batches: 2 }, 2)?;
/// let row: Vec<String> = plan.row(PipeRank(1)).iter().map(ToString::to_string).collect();
/// assert_eq!(row, ["1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "1B0", "1B1"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn interleaved_one_f_one_b(shape: Shape, n_virtual: u32) -> Result<Plan, ScheduleError> {
    shape.admit(n_virtual, 2)?;
    let rows = (0..shape.n_ranks).map(|rank| row(shape, n_virtual, rank).collect()).collect();
    Ok(Plan::new(Placement::looped(shape.n_ranks, n_virtual)?, shape.n_micro_batches, rows)?)
}

/// Some forwards, then a forward and a backward in turn, then the remaining backwards.
pub(crate) fn row(shape: Shape, n_virtual: u32, rank: u32) -> impl Iterator<Item = Action> + use<> {
    let stage = move |local| Stage(local * shape.n_ranks + rank);
    let forwards = move || {
        visits(shape, n_virtual).map(move |(local, mb)| Action::from(Compute::forward(stage(local), mb)))
    };
    let backwards = visits(shape, n_virtual)
        .map(move |(local, mb)| Action::from(Compute::backward(stage(n_virtual - 1 - local), mb)));
    let after = shape.n_ranks - 1 - rank;
    let n_warm_up = u64::from(n_virtual - 1) * u64::from(first_group(shape)) + 2 * u64::from(after);
    let n_warm_up = usize::try_from(n_warm_up).unwrap_or(usize::MAX);
    let rest = forwards().skip(n_warm_up).map(Some).chain(std::iter::repeat(None)).zip(backwards);
    forwards()
        .take(n_warm_up)
        .chain(rest.flat_map(|(forward, backward)| forward.into_iter().chain([backward])))
}

/// The local stages and micro-batches of a rank in forward order, group by group.
pub(crate) fn visits(shape: Shape, n_virtual: u32) -> impl Iterator<Item = (u32, MicroBatch)> + use<> {
    groups(shape).flat_map(move |(first, size)| {
        (0..n_virtual).flat_map(move |local| (first..first + size).map(move |mb| (local, MicroBatch(mb))))
    })
}

/// First micro-batch and size of each group: as many groups as `p` fits into `m`, at least one, the larger
/// ones first.
fn groups(shape: Shape) -> impl Iterator<Item = (u32, u32)> + use<> {
    let m = shape.n_micro_batches;
    let n_groups = n_groups(shape);
    let (size, n_larger) = (m / n_groups, m % n_groups);
    (0..n_groups).map(move |group| (group * size + group.min(n_larger), size + u32::from(group < n_larger)))
}

/// How many groups there are.
pub(crate) fn n_groups(shape: Shape) -> u32 {
    (shape.n_micro_batches / shape.n_ranks.max(1)).max(1)
}

/// The size of the first group, the largest.
pub(crate) fn first_group(shape: Shape) -> u32 {
    groups(shape).next().map_or(0, |(_, size)| size)
}
