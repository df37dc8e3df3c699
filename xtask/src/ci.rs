//! Every check of the workspace, cheapest first, with a summary and one verdict.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::{Run, say};
use crate::tally::Tally;
use crate::{deny, tidy};

/// How one step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and found nothing.
    Passed,
    /// It ran and found something.
    Failed,
    /// It could not run.
    Skipped(Skip),
}

/// Why a step did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// What is missing.
    pub why: String,
    /// The line that brings it, where one does.
    pub remedy: Option<String>,
    /// Whether it is accepted even where skips are failures.
    pub forgiven: bool,
}

/// A step that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Name of the step.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// Wall time.
    pub took: Duration,
}

/// Runs every step, also after a failed one, and says whether the workspace is sound.
///
/// With `no_skip` a step that a missing tool keeps from running counts as failed.
///
/// # Errors
/// When Cargo itself cannot be started.
pub fn run(no_skip: bool) -> Result<bool> {
    let mut tally = Tally::default();
    let mut ended = Vec::new();
    let mut step = |name: &'static str, body: &mut dyn FnMut() -> Result<Outcome>| -> Result<()> {
        say(format_args!("\n== {name}"));
        let start = Instant::now();
        let outcome = body()?;
        let this = Ended { name, outcome, took: start.elapsed() };
        say(&this);
        ended.push(this);
        Ok(())
    };
    step("fmt", &mut || component("rustfmt", "fmt", &Run::cargo(["fmt", "--all", "--check"])))?;
    step("tidy", &mut || {
        say("$ cargo xtask tidy");
        Ok(passed(tidy::run()?))
    })?;
    step("clippy", &mut || component("clippy", "clippy", &clippy()))?;
    step("test", &mut || Ok(passed(test(&mut tally)?)))?;
    step("doc", &mut || Ok(passed(doc().status()?)))?;
    step("deny", &mut || deny::policy())?;
    step("advisories", &mut || deny::advisories())?;

    say("\n== summary");
    ended.iter().for_each(say);
    let sound = is_sound(&ended, no_skip);
    if !sound && no_skip && is_sound(&ended, false) {
        say("a step was skipped, which counts as a failure here; install what it needs");
    }
    say(if sound { "the workspace is sound" } else { "the workspace is not sound" });
    say(format_args!("tests: {} passed, {} failed", tally.passed, tally.failed));
    Ok(sound)
}

/// Whether nothing failed and, with `no_skip`, nothing was left out that could have been run.
#[must_use]
pub fn is_sound(ended: &[Ended], no_skip: bool) -> bool {
    ended.iter().all(|step| match &step.outcome {
        Outcome::Passed => true,
        Outcome::Failed => false,
        Outcome::Skipped(skip) => skip.forgiven || !no_skip,
    })
}

/// Turns a command's success into an outcome.
#[must_use]
pub fn passed(success: bool) -> Outcome {
    if success { Outcome::Passed } else { Outcome::Failed }
}

fn component(component: &str, subcommand: &str, run: &Run) -> Result<Outcome> {
    if Run::cargo([subcommand, "--version"]).works() {
        return Ok(passed(run.status()?));
    }
    Ok(Outcome::Skipped(Skip {
        why: format!("cargo {subcommand} is not installed"),
        remedy: Some(format!("rustup component add {component}")),
        forgiven: false,
    }))
}

fn clippy() -> Run {
    Run::cargo(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
}

/// `cargo doc` alone would resolve without development dependencies, so with fewer features on shared crates, and
/// check Burn a second time. Asking for the examples too makes it reuse what clippy has checked.
fn doc() -> Run {
    Run::cargo(["doc", "--workspace", "--no-deps", "--lib", "--examples", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings")
}

/// All tests, examples in documentation among them; none may be ignored, and some must have run.
fn test(tally: &mut Tally) -> Result<bool> {
    let success =
        Run::cargo(["test", "--workspace", "--locked", "--no-fail-fast"]).tee(|line| tally.read(line))?;
    if tally.ignored > 0 {
        say(format_args!("{} tests are ignored; make them pass or delete them", tally.ignored));
    }
    if tally.passed == 0 {
        say("no test ran");
    }
    Ok(success && tally.ignored == 0 && tally.passed > 0)
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match &self.outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::Skipped(_) => "SKIPPED",
        };
        write!(f, "{:<10} {verdict:<7} {:>7.1} s", self.name, self.took.as_secs_f64())?;
        let Outcome::Skipped(skip) = &self.outcome else { return Ok(()) };
        write!(f, "  {}", skip.why)?;
        skip.remedy.iter().try_for_each(|line| write!(f, "; install it with: {line}"))
    }
}
