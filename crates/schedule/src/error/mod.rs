//! The errors of this crate, one enum an operation.

mod check;
mod facts;
mod lower;
mod plan;

pub use check::CheckError;
pub use facts::{Envelope, Missing, Need, Pending};
pub use lower::LowerError;
pub use plan::{ActionFault, ActionParseError, CostError, PlanError, PlanParseError, ScheduleError};
