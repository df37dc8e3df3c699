//! Tests of the crate as its users see it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod golden;
mod tree;
