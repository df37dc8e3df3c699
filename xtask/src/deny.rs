//! Licences, banned crates, sources and known vulnerabilities of the dependencies, by cargo-deny.

use std::time::Duration;

use anyhow::Result;

use crate::ci::{Outcome, Skip, passed};
use crate::process::Run;

/// The line that installs the version of cargo-deny that `deny.toml` is written for.
pub const INSTALL: &str = "cargo install --locked cargo-deny@0.20.2";
/// The advisory database is a Git repository of a few megabytes; a network without it may swallow the request.
const FETCH_LIMIT: Duration = Duration::from_secs(120);

/// Checks licences, bans and sources, which needs nothing but the crates themselves.
///
/// # Errors
/// When Cargo cannot be started.
pub fn policy() -> Result<Outcome> {
    if let Some(skipped) = missing() {
        return Ok(skipped);
    }
    Ok(passed(check(&["licenses", "bans", "sources"]).status()?))
}

/// Checks the advisories on the dependencies where their database can be fetched.
///
/// A database out of reach is forgiven even where skips are failures: it says nothing of the change and nothing of
/// what is installed, and a run that depends on a foreign server could not be repeated.
///
/// # Errors
/// When Cargo cannot be started.
pub fn advisories() -> Result<Outcome> {
    if let Some(skipped) = missing() {
        return Ok(skipped);
    }
    if !Run::cargo(["deny", "--locked", "fetch", "db"]).status_within(FETCH_LIMIT)? {
        let why = "the advisory database cannot be fetched from here".to_owned();
        return Ok(Outcome::Skipped(Skip { why, remedy: None, forgiven: true }));
    }
    Ok(passed(check(&["advisories"]).status()?))
}

/// Without the graphs that show how each duplicate comes in: dozens of lines for what only warns.
fn check(what: &[&str]) -> Run {
    Run::cargo(["deny", "--locked", "check", "--hide-inclusion-graph"]).args(what.iter().copied())
}

fn missing() -> Option<Outcome> {
    let skip = || Skip {
        why: "cargo-deny is not installed".to_owned(),
        remedy: Some(INSTALL.to_owned()),
        forgiven: false,
    };
    (!Run::cargo(["deny", "--version"]).works()).then(|| Outcome::Skipped(skip()))
}
