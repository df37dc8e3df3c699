//! Replay: runs a checked plan against a cost model and says what it would take.

mod costs;
mod run;
mod timeline;

use crate::check::CheckedPlan;
use crate::error::CostError;
pub use costs::{Costs, LinkCosts, MarkerCosts, StageCosts};
pub use timeline::{RankTimeline, Span, SpanId, Timeline};

/// Runs `plan` against `costs` as an event simulation and returns when everything happens.
///
/// A rank takes its instructions in order, each as soon as it can. Computations, loads, markers and the
/// steps at the end of a batch take the rank's time; hand-overs take none. A message leaves when it is sent, crosses
/// its link after those before it (bytes over bandwidth, then latency), and lies there until it is taken.
/// A sender waits while its link holds as many messages as [`CheckedPlan::link_capacity`] allows; at
/// rendezvous both ends wait for each other and for the transfer.
///
/// # Errors
/// [`CostError`] when there is not one cost a stage, or a time or bandwidth is negative or not a number.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, gpipe, replay};
/// let checked = check_plan(&gpipe(Shape { n_ranks: 2, n_micro_batches: 3 })?, Capacity(3))?;
/// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
/// let timeline = replay(&checked, &Costs::uniform(2, unit))?;
/// assert_eq!((timeline.makespan_s(), timeline.bubble_wall_s()), (12.0, 3.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replay(plan: &CheckedPlan, costs: &Costs) -> Result<Timeline, CostError> {
    costs.admit(plan.placement().n_stages())?;
    Ok(run::Run::new(plan, costs).finish())
}
