//! The tests of brigade-topology.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod faults;
mod golden;
mod property;
mod support;
