//! Members that share a dependency ask it for the same features.

use std::collections::BTreeMap;

use super::boundaries::line_of;
use super::{Tree, Violation};
use crate::workspace::{Dependency, Workspace};

/// Checks that whichever members a command selects, a shared dependency is built with the same features.
///
/// Cargo unites the features that the selected members ask for. If one member asks serde_json for more than the
/// engine does, `cargo test --workspace` and `cargo test -p brigade-engine` build serde_json, and all of Burn above
/// it, in turns.
#[must_use]
pub fn same_features(workspace: &Workspace, tree: &Tree) -> Vec<Violation> {
    let mut first: BTreeMap<&str, (&str, &Dependency)> = BTreeMap::new();
    let mut found = Vec::new();
    for package in &workspace.packages {
        for dependency in &package.dependencies {
            let (owner, other) = *first.entry(&dependency.name).or_insert((&package.name, dependency));
            if asked(other) != asked(dependency) {
                let manifest = workspace.relative(&package.manifest_path);
                let line = line_of(tree.text(&manifest).unwrap_or_default(), &dependency.name);
                let message = format!(
                    "asks {} for {}, {owner} for {}; move the features to [workspace.dependencies], so that no \
                     command builds it anew",
                    dependency.name,
                    asked(dependency),
                    asked(other),
                );
                found.push(Violation::new(&manifest, line, "features", message));
            }
        }
    }
    found
}

fn asked(dependency: &Dependency) -> String {
    let default = dependency.uses_default_features.then_some("default");
    let all: Vec<&str> = default.into_iter().chain(dependency.features.iter().map(String::as_str)).collect();
    format!("[{}]", all.join(", "))
}
