//! One test binary a crate, and no Rust file that nothing compiles.

use std::collections::BTreeSet;

use super::{Source, Tree, Violation};
use crate::workspace::Workspace;

/// Checks that each crate has exactly the test target `it` and that Cargo finds no other by itself.
#[must_use]
pub fn test_targets(workspace: &Workspace, tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        let manifest = workspace.relative(&package.manifest_path);
        let root = format!("{}/tests/it/main.rs", workspace.folder(package));
        let tests: Vec<_> = package.targets_of("test").collect();
        let is_it = |name: &str, path: &str| name == "it" && path == root;
        if !tests.iter().any(|t| is_it(&t.name, &workspace.relative(&t.src_path))) {
            let message = format!("no test target `it` at {root}; declare it under [[test]]");
            found.push(Violation::new(&manifest, 1, "tests", message));
        }
        for test in &tests {
            let path = workspace.relative(&test.src_path);
            if !is_it(&test.name, &path) {
                let message = format!("a second test binary `{}`; make it a module of {root}", test.name);
                found.push(Violation::new(&path, 1, "tests", message));
            }
        }
        let prefix = format!("{}/tests/", workspace.folder(package));
        for path in tree.paths().filter(|path| path.ends_with(".rs")) {
            if path.strip_prefix(&prefix).is_some_and(|rest| !rest.starts_with("it/")) {
                let message = format!("a test file outside tests/it; make it a module of {root}");
                found.push(Violation::new(path, 1, "tests", message));
            }
        }
        if tree.text(&manifest).is_some_and(|text| !text.lines().any(|l| l.trim() == "autotests = false")) {
            let message = "add `autotests = false`, so that no file becomes a test binary by itself";
            found.push(Violation::new(&manifest, 1, "tests", message));
        }
    }
    found
}

/// Checks that every file below a `src` or `tests/it` folder is a root or named by a `mod` line of its parent.
#[must_use]
pub fn modules_reached(sources: &[Source]) -> Vec<Violation> {
    let paths: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let mut found = Vec::new();
    for source in sources {
        let Some((parents, name)) = parents(&source.path) else { continue };
        let declares = |parent: &&Source| {
            parents.contains(&parent.path) && parent.find(&["mod", &name, ";"]).next().is_some()
        };
        if !sources.iter().any(|source| declares(&source)) {
            let there = parents.iter().find(|parent| paths.contains(parent.as_str()));
            let parent = there.or(parents.first()).map_or("its parent", String::as_str);
            let message =
                format!("no `mod {name};` in {parent}, so nothing compiles this file; add it or delete it");
            found.push(Violation::new(&source.path, 1, "orphan", message));
        }
    }
    found
}

/// The files that may declare the module at `path`, and its name; `None` for a root of a target.
fn parents(path: &str) -> Option<(Vec<String>, String)> {
    let (base, inner) = ["/src/", "/tests/it/"].iter().find_map(|mark| {
        let at = path.find(mark)? + mark.len();
        Some(path.split_at(at))
    })?;
    let stem = inner.strip_suffix(".rs")?;
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    match stem.rsplit_once('/') {
        None if matches!(stem, "main" | "lib") => None,
        Some(("bin", _)) => None,
        None => Some((vec![format!("{base}lib.rs"), format!("{base}main.rs")], stem.to_owned())),
        Some((dir, name)) => {
            Some((vec![format!("{base}{dir}.rs"), format!("{base}{dir}/mod.rs")], name.to_owned()))
        }
    }
}
