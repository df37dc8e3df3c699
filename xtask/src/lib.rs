//! Automation of the Brigade workspace: the checks that guard a change, the golden tests, fuzzing, benchmarks.
//!
//! ```text
//! cargo metadata ──► Workspace ─┐
//!                               ├─► tidy rules ──► violations: file, line, rule, what to do
//! source tree ─────► Source ────┘
//!
//! ci: fmt ─► tidy ─► clippy ─► test ─► doc ─► deny ─► advisories ──► summary, exit code
//! ```
//!
//! # Invariants
//! - No crate of the workspace is a dependency: the automation builds in seconds and before any of them compiles.
//! - No step is silent: each command is printed as it can be typed, and a step that cannot run is named as skipped.
//! - No test command passes by running nothing: a filter that matches no test is a failure.
//! - No dependency turns on a feature that a crate of the workspace would see: `cargo test --workspace` and
//!   `cargo test -p CRATE` share one build of Burn.
//!
//! # Examples
//! ```
//! use xtask::tally::Tally;
//!
//! let mut tally = Tally::default();
//! tally.read("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s");
//! assert_eq!((tally.passed, tally.failed), (3, 0));
//! ```

pub mod bench;
pub mod cases;
pub mod ci;
pub mod deny;
pub mod fuzz;
pub mod process;
pub mod tally;
pub mod tidy;
pub mod workspace;
