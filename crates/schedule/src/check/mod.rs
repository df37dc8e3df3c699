//! The checker: carries a program out without computing anything, and says what would go wrong.

mod checked;
mod links;
mod rank;
mod run;

use crate::error::CheckError;
use crate::lower::lower;
use crate::plan::Plan;
use crate::program::Program;
pub use checked::CheckedPlan;
use run::Run;

/// How many messages a directed link, from one rank to another, holds before its sender waits.
///
/// Every link holds messages in order, whatever they carry. At [`Capacity::RENDEZVOUS`] a sender waits
/// until its message is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Capacity(pub u32);

impl Capacity {
    /// No message is held: sender and receiver meet.
    pub const RENDEZVOUS: Self = Self(0);
}

/// Proves that `program` is sound over links of `capacity`.
///
/// Each micro-batch goes forward once at each stage, and backward once (whole, or input gradient before
/// weight gradient) if any does; everything runs on the rank of its stage, after what it needs; loads,
/// messages and hand-overs are there, once, to the right peer, and each link delivers in the order in which
/// its receiver asks; no buffer is taken while it holds another micro-batch that is still needed; the steps
/// at the end of a batch are the same on all ranks, after all backward passes; and no rank waits for ever.
///
/// Over ordered links each rank's next step does not depend on timing, so one run that ends proves that
/// every run ends.
///
/// # Errors
/// [`CheckError`] names rank, position in the stream and instruction; a deadlock lists what every rank
/// waits for and the ranks that wait for each other.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, PipeRank, Shape, check, lower, one_f_one_b};
/// let program = lower(&one_f_one_b(Shape { n_ranks: 4, n_micro_batches: 8 })?)?;
/// let checked = check(program, Capacity(1))?;
/// assert_eq!(checked.in_flight(PipeRank(0)), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check(program: Program, capacity: Capacity) -> Result<CheckedPlan, CheckError> {
    let proof = Run::new(&program, capacity)?.finish()?;
    Ok(CheckedPlan::new(program, capacity, proof))
}

/// Lowers `plan` and proves the result sound: [`lower`], then [`check`].
///
/// # Errors
/// [`CheckError::Lower`] when the plan cannot be lowered, else as for [`check`].
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, CheckError, Plan, check_plan};
/// let plan: Plan = "placement linear:1; micro-batches 1\n0F0,0W0\n".parse()?;
/// let error = check_plan(&plan, Capacity(1)).expect_err("no input gradient");
/// assert!(matches!(error, CheckError::Lower(_)), "{error}");
/// # Ok::<(), brigade_schedule::PlanParseError>(())
/// ```
pub fn check_plan(plan: &Plan, capacity: Capacity) -> Result<CheckedPlan, CheckError> {
    check(lower(plan)?, capacity)
}
