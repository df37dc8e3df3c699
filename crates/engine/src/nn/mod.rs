//! Layers that do more in a pipeline than Burn's own; each has Burn's numbers within rounding.

mod linear;

pub use linear::Linear;
