//! The rules that no compiler checks: boundaries between crates, purity, layout of files and tests, documents.

mod boundaries;
mod documents;
mod features;
mod files;
mod layout;
mod purity;
mod source;
mod testdata;

use std::fmt;

use anyhow::Result;

use crate::process::say;
use crate::workspace::Workspace;

pub use boundaries::boundaries;
pub use documents::{architecture, machine_paths};
pub use features::same_features;
pub use files::{bincode_in_one_file, file_rules};
pub use layout::{modules_reached, test_targets};
pub use purity::purity;
pub use source::{Source, Token, Tree};
pub use testdata::names_its_source;

/// One broken rule: where, which, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path relative to the root of the workspace.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Short name of the rule.
    pub rule: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

impl Violation {
    pub(crate) fn new(file: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.rule, self.message)
    }
}

/// Applies every rule to the workspace; violations come sorted by file and line.
///
/// # Errors
/// When the source tree cannot be read; a broken rule is a violation, not an error.
pub fn check(workspace: &Workspace) -> Result<Vec<Violation>> {
    let tree = Tree::read(&workspace.root)?;
    let (sources, mut found) = tree.sources();
    found.extend(boundaries(workspace, &tree));
    found.extend(same_features(workspace, &tree));
    found.extend(test_targets(workspace, &tree));
    found.extend(modules_reached(&sources));
    found.extend(bincode_in_one_file(&sources));
    for source in &sources {
        found.extend(file_rules(source));
        found.extend(purity(workspace, source));
    }
    found.extend(architecture(workspace, &tree));
    for (path, text) in tree.texts() {
        found.extend(machine_paths(path, text));
    }
    for path in tree.paths().filter(|path| path.starts_with("testdata/") && path.ends_with(".json")) {
        found.extend(names_its_source(path, &std::fs::read(workspace.root.join(path))?));
    }
    found.sort();
    Ok(found)
}

/// Checks the workspace, prints what is broken, and says whether nothing is.
///
/// # Errors
/// When the workspace or its sources cannot be read.
pub fn run() -> Result<bool> {
    let found = check(&Workspace::load()?)?;
    found.iter().for_each(say);
    let files = found.iter().map(|v| &v.file).collect::<std::collections::BTreeSet<_>>().len();
    match found.len() {
        0 => say("tidy: every rule holds"),
        n => say(format_args!("tidy: {n} violations in {files} files")),
    }
    Ok(found.is_empty())
}
