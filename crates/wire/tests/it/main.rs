//! Tests of the crate as its users see it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;
mod common;
mod faults;
mod frame;
mod golden;
mod liveness;
mod memory;
mod property;
mod text;
mod tree;
