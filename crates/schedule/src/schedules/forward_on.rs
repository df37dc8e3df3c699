//! Forward-only over any placement: evaluation between the steps of a schedule with several stages a rank.

use brigade_topology::{PipeRank, Placement};

use crate::action::{Action, Compute, MicroBatch, Visit};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// Makes the plan of evaluation and inference over the stages of `placement`.
///
/// With one stage a rank it is [`forward_only`](crate::forward_only). With more, each rank takes its stages
/// in turn for as many micro-batches as there are ranks, so that no rank waits for one micro-batch to come
/// round. Over both directions, each rank takes micro-batches in the order in which they reach it when both ends
/// start one after the other without a pause.
///
/// # Errors
/// [`ScheduleError`] for no micro-batch, or a plan above the size limit.
///
/// # Source
/// Own, after the warm-up of interleaved 1F1B.
///
/// # Examples
/// ```
/// use brigade_schedule::{Placement, forward_only_on};
/// let plan = forward_only_on(Placement::looped(2, 2)?, 3)?;
/// assert_eq!(plan.row(brigade_schedule::PipeRank(1)).len(), 6);
/// assert!(plan.to_string().contains("1F0,1F1,3F0,3F1,1F2,3F2"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn forward_only_on(placement: Placement, n_micro_batches: u32) -> Result<Plan, ScheduleError> {
    let n_ranks = placement.n_ranks();
    Shape { n_ranks, n_micro_batches }.admit(placement.stages_per_rank(), 1)?;
    let mut rows = Vec::new();
    for rank in (0..n_ranks).map(PipeRank) {
        if placement.is_bidirectional() {
            rows.push(both_ways(placement, rank, n_micro_batches));
            continue;
        }
        let stages: Vec<_> = placement.stages_of(rank).into_iter().flatten().collect();
        let mut row: Vec<Action> = Vec::new();
        let mut first = 0;
        while first < n_micro_batches {
            let end = first.saturating_add(n_ranks).min(n_micro_batches);
            for &stage in &stages {
                row.extend((first..end).map(|mb| Action::from(Compute::forward(stage, MicroBatch(mb)))));
            }
            first = end;
        }
        rows.push(row);
    }
    Ok(Plan::new(placement, n_micro_batches, rows)?)
}

/// Each direction starts a micro-batch every two steps, and every stage takes one step.
fn both_ways(placement: Placement, rank: PipeRank, n_micro_batches: u32) -> Vec<Action> {
    let arrival = |visit: Visit| (u64::from(visit.micro_batch.0 / 2) * 2 + u64::from(visit.stage.0), visit);
    let mut visits: Vec<(u64, Visit)> = placement
        .stages_of(rank)
        .into_iter()
        .flatten()
        .flat_map(|stage| (0..n_micro_batches).map(move |mb| Visit { stage, micro_batch: MicroBatch(mb) }))
        .filter(|visit| visit.rank_in(placement) == Ok(rank))
        .map(arrival)
        .collect();
    visits.sort_unstable();
    visits.into_iter().map(|(_, visit)| Compute::forward(visit.stage, visit.micro_batch).into()).collect()
}
