//! Tests of the automation: every rule on a fixture that keeps it and on ones that break it.

mod bench;
mod boundaries;
mod cases;
mod ci;
mod documents;
mod features;
mod files;
mod fixture;
mod layout;
mod process;
mod purity;
mod tally;
mod testdata;
mod tree;
