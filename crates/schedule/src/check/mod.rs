//! The checker: carries a program out without computing anything, and says what would go wrong.

mod checked;
mod links;
mod rank;
mod run;
mod stages;

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
/// at the end of a batch are the same on all ranks, after all backward passes; both holders of a stage sum its
/// gradients, once, in the same order; where a plan gathers weights, passes run while they are gathered, and where it
/// reduces a stage's gradients early, all of them are there; and no rank waits for ever.
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

/// Finds the least capacity of links at which `program` is sound.
///
/// More capacity never makes a sound program unsound, so any capacity from this one on is right; a larger
/// one lets senders run further ahead.
///
/// # Errors
/// [`CheckError`] when `program` is not sound at any capacity.
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Shape, least_capacity, looped_bfs, lower, one_f_one_b};
/// let shape = Shape { n_ranks: 4, n_micro_batches: 8 };
/// assert_eq!(least_capacity(&lower(&one_f_one_b(shape)?)?)?, Capacity(1));
/// // Rank 0 sends all micro-batches of its first stage before it takes the first for its second one.
/// assert!(least_capacity(&lower(&looped_bfs(shape, 2)?)?)? > Capacity(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn least_capacity(program: &Program) -> Result<Capacity, CheckError> {
    let proof = Run::new(program, Capacity(u32::MAX))?.finish()?;
    // What one run over unlimited links has held is enough.
    let (mut too_small, mut enough) = (None, u32::try_from(proof.deepest).unwrap_or(u32::MAX));
    loop {
        let low = too_small.map_or(0, |capacity: u32| capacity + 1);
        if low >= enough {
            return Ok(Capacity(enough));
        }
        let middle = low + (enough - low) / 2;
        match Run::new(program, Capacity(middle))?.finish() {
            Ok(_) => enough = middle,
            Err(_) => too_small = Some(middle),
        }
    }
}
