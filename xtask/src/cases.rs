//! Runs one kind of test over all crates: golden data, parity with PyTorch, properties.
//!
//! The kind of a test shows in its module, a file of `tests/it`: its name has the kind's word, or its code uses the
//! item of that name (`crate::golden`, `proptest!`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{Run, say};
use crate::tally::Tally;
use crate::tidy::{Source, Tree};
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
    let run = Run::cargo(["test", "--release", "--locked"]).env("PROPTEST_CASES", &cases.to_string());
    let chosen = modules(workspace, only, &Tree::read(&workspace.root)?, &["property", "proptest"])?;
    run_modules(run, "property", &chosen, &[])
}

/// Runs the whole transparency corpus: every model under every schedule and size, against its unsplit run.
///
/// # Errors
/// When no crate has such tests, or Cargo cannot be started.
pub fn conform(workspace: &Workspace) -> Result<bool> {
    let run = Run::cargo(["test", "--locked"]).env("BRIGADE_CONFORM", "all");
    let chosen = modules(workspace, None, &Tree::read(&workspace.root)?, &["conform"])?;
    run_modules(run, "conform", &chosen, &["--nocapture"])
}

fn on_data(workspace: &Workspace, kind: &str, variable: &str, dir: Option<PathBuf>) -> Result<bool> {
    let dir = dir.unwrap_or_else(|| Path::new("testdata").join(kind));
    // Cargo runs each test in the folder of its crate, where a relative path would lead elsewhere.
    let dir = workspace.root.join(dir);
    let dir = dir.canonicalize().with_context(|| format!("the folder of data, {}", dir.display()))?;
    if !dir.is_dir() {
        bail!("{} is not a folder; --dir takes the folder that holds the data", dir.display());
    }
    let run = Run::cargo(["test", "--locked"]).env(variable, &dir.display().to_string());
    let chosen = modules(workspace, None, &Tree::read(&workspace.root)?, &[kind])?;
    run_modules(run, kind, &chosen, &["--nocapture"])
}

/// The test modules of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    /// Name of the package.
    pub package: String,
    /// Paths of the modules in the test binary, such as `schedules::golden`.
    pub paths: Vec<String>,
}

/// The modules of one kind, in the packages that have any, among those chosen by `only`.
///
/// # Errors
/// When there is no such package.
pub fn modules(
    workspace: &Workspace,
    only: Option<&str>,
    tree: &Tree,
    words: &[&str],
) -> Result<Vec<Modules>> {
    let (sources, _) = tree.sources();
    let mut found = Vec::new();
    for package in workspace.chosen(only)?.into_iter().filter(|package| package.name != "xtask") {
        let prefix = format!("{}/tests/it/", workspace.folder(package));
        let module = |source: &Source| {
            let stem = source.path.strip_prefix(&prefix)?.strip_suffix(".rs")?;
            let stem = stem.strip_suffix("/mod").unwrap_or(stem);
            let of_kind = |word: &&str| stem.contains(word) || source.find(&[word]).next().is_some();
            (stem != "main" && words.iter().any(of_kind)).then(|| stem.replace('/', "::"))
        };
        let paths: Vec<String> = sources.iter().filter_map(module).collect();
        if !paths.is_empty() {
            found.push(Modules { package: package.name.clone(), paths });
        }
    }
    Ok(found)
}

/// Runs the tests of these modules; each package must run at least one.
fn run_modules(mut run: Run, kind: &str, chosen: &[Modules], more: &[&str]) -> Result<bool> {
    if chosen.is_empty() {
        bail!("no crate has {kind} tests below tests/it");
    }
    run = chosen.iter().fold(run, |run, modules| run.args(["-p", &modules.package]));
    let paths: BTreeSet<String> =
        chosen.iter().flat_map(|m| &m.paths).map(|path| format!("{path}::")).collect();
    run = run.args(["--no-fail-fast", "--test", "it", "--"]).args(paths).args(more.iter().copied());
    let mut tally = Tally::default();
    let success = run.tee(|line| tally.read(line))?;
    let names: Vec<&str> = chosen.iter().map(|modules| modules.package.as_str()).collect();
    let names = names.join(", ");
    say(format_args!("{kind} tests of {names}: {} passed, {} failed", tally.passed, tally.failed));
    if success && (tally.binaries != chosen.len() || tally.empty > 0) {
        say(format_args!("a crate ran no {kind} test, although it has modules for them"));
        return Ok(false);
    }
    Ok(success)
}
