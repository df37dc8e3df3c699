//! Runs one kind of test over all crates: golden data, parity with PyTorch, properties.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{Run, say};
use crate::tally::Tally;
use crate::tidy::Tree;
use crate::workspace::Workspace;

/// Runs the golden tests on the data in `dir` (`testdata/golden` unless given) and shows their case counts.
///
/// # Errors
/// When there is no such folder, no such test, or Cargo cannot be started.
pub fn golden(workspace: &Workspace, dir: Option<PathBuf>) -> Result<bool> {
    on_data(workspace, "golden", "BRIGADE_GOLDEN", dir)
}

/// Runs the parity tests on the data in `dir` (`testdata/parity` unless given) and shows what they compared.
///
/// # Errors
/// When there is no such folder, no such test, or Cargo cannot be started.
pub fn parity(workspace: &Workspace, dir: Option<PathBuf>) -> Result<bool> {
    on_data(workspace, "parity", "BRIGADE_PARITY", dir)
}

/// Runs the property tests optimised, with `cases` cases each; in one crate when `only` names it.
///
/// # Errors
/// When no crate has property tests, or Cargo cannot be started.
pub fn properties(workspace: &Workspace, cases: u32, only: Option<&str>) -> Result<bool> {
    let packages = with_module(workspace, only, &Tree::read(&workspace.root)?, "property")?;
    let run = Run::cargo(["test", "--release", "--locked"]).env("PROPTEST_CASES", &cases.to_string());
    run_module(run, "property", &packages, &[])
}

fn on_data(workspace: &Workspace, module: &str, variable: &str, dir: Option<PathBuf>) -> Result<bool> {
    let dir = dir.unwrap_or_else(|| Path::new("testdata").join(module));
    // Cargo runs each test in the folder of its crate, where a relative path would lead elsewhere.
    let dir = workspace.root.join(dir);
    let dir = dir.canonicalize().with_context(|| format!("the folder of data, {}", dir.display()))?;
    if !dir.is_dir() {
        bail!("{} is not a folder; --dir takes the folder that holds the data", dir.display());
    }
    let packages = with_module(workspace, None, &Tree::read(&workspace.root)?, module)?;
    let run = Run::cargo(["test", "--locked"]).env(variable, &dir.display().to_string());
    run_module(run, module, &packages, &["--nocapture"])
}

/// The packages, among those chosen by `only`, that have a file below `tests/it` with this word in its name.
///
/// # Errors
/// When there is no such package.
pub fn with_module(
    workspace: &Workspace,
    only: Option<&str>,
    tree: &Tree,
    word: &str,
) -> Result<Vec<String>> {
    let has = |folder: &str| {
        let prefix = format!("{folder}/tests/it/");
        tree.paths().any(|path| {
            let inner = path.strip_prefix(&prefix).and_then(|inner| inner.strip_suffix(".rs"));
            inner.is_some_and(|inner| inner.contains(word))
        })
    };
    let packages = workspace.chosen(only)?.into_iter().filter(|p| p.name != "xtask");
    Ok(packages.filter(|p| has(&workspace.folder(p))).map(|p| p.name.clone()).collect())
}

/// Runs the tests with `module` in their path; each package must run at least one.
fn run_module(run: Run, module: &str, packages: &[String], more: &[&str]) -> Result<bool> {
    if packages.is_empty() {
        bail!("no crate has {module} tests, in a file of tests/it with `{module}` in its name");
    }
    let run = packages.iter().fold(run, |run, package| run.args(["-p", package]));
    let run = run.args(["--no-fail-fast", "--test", "it", "--", module]).args(more.iter().copied());
    let mut tally = Tally::default();
    let success = run.tee(|line| tally.read(line))?;
    let names = packages.join(", ");
    say(format_args!("{module} tests of {names}: {} passed, {} failed", tally.passed, tally.failed));
    if success && (tally.binaries != packages.len() || tally.empty > 0) {
        say(format_args!("a crate ran no {module} test, although it has a file for them"));
        return Ok(false);
    }
    Ok(success)
}
