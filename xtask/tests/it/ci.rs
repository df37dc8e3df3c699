//! The verdict of `ci` and how a skipped step shows.

use std::time::Duration;

use xtask::ci::{Ended, Outcome, Skip, is_sound};

fn ended(outcome: Outcome) -> Ended {
    Ended { name: "deny", outcome, took: Duration::from_millis(1250) }
}

fn skipped(forgiven: bool) -> Outcome {
    let remedy = Some("cargo install it".to_owned());
    Outcome::Skipped(Skip { why: "it is not installed".to_owned(), remedy, forgiven })
}

#[test]
fn one_failed_step_fails_the_run() {
    let steps = [ended(Outcome::Passed), ended(Outcome::Failed), ended(Outcome::Passed)];
    assert!(!is_sound(&steps, false));
    assert!(is_sound(&steps[..1], true));
}

#[test]
fn a_skip_fails_only_a_strict_run_and_only_when_it_could_be_mended() {
    let mendable = [ended(Outcome::Passed), ended(skipped(false))];
    assert!(is_sound(&mendable, false));
    assert!(!is_sound(&mendable, true));
    let forgiven = [ended(Outcome::Passed), ended(skipped(true))];
    assert!(is_sound(&forgiven, true));
}

#[test]
fn a_skip_is_named_with_the_line_that_mends_it() {
    assert_eq!(
        ended(skipped(false)).to_string(),
        "deny       SKIPPED     1.2 s  it is not installed; install it with: cargo install it"
    );
    assert_eq!(ended(Outcome::Failed).to_string(), "deny       FAILED      1.2 s");
}

/// The CI script and the advice that xtask gives must install the same version.
#[test]
fn the_script_installs_what_the_advice_names() {
    let script = include_str!("../../../.ci/run");
    let version = script.lines().find_map(|line| line.strip_prefix("deny_version=")).expect("a version");
    assert_eq!(xtask::deny::INSTALL, format!("cargo install --locked cargo-deny@{version}"));
}
