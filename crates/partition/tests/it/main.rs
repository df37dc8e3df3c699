//! The tests of brigade-partition.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod balanced;
mod cases;
mod constraints;
mod faults;
mod golden;
mod support;
mod text;
