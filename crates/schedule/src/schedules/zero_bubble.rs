//! What the zero-bubble schedules share: a search at equal times within a limit of visits in flight.

use brigade_topology::Placement;

use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::search::{Effort, Goal, Problem, StageModel, find};

/// The plan that a search finds for F = I = W and no latency, with at most `n_in_flight` visits of a micro-batch
/// to a stage between forward pass and weight gradient on any rank.
pub(super) fn at_equal_times(
    placement: Placement,
    n_micro_batches: u32,
    n_in_flight: u32,
    goal: Goal,
) -> Result<Plan, ScheduleError> {
    let stage = StageModel {
        forward_s: 1.0,
        input_grad_s: 1.0,
        weight_grad_s: 1.0,
        // A visit counts whole until its weight gradient is done.
        activation: 1,
        weight_grad: 1,
    };
    let problem = Problem {
        placement,
        n_micro_batches,
        stages: placement.ranks().map(|_| stage).collect(),
        latency_s: 0.0,
        memory_limits: (0..placement.n_ranks()).map(|_| u64::from(n_in_flight)).collect(),
    };
    Ok(find(&problem, Effort::QUICK, goal)?.plan)
}
