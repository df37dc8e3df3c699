//! Layers that do more in a pipeline than Burn's own; each has Burn's numbers within rounding.

mod dropout;
mod linear;

pub use dropout::{Dropout, ProbabilityError};
pub use linear::Linear;
