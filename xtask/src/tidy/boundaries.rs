//! Which crate may depend on which, and who may name Burn and bincode.

use super::{Tree, Violation};
use crate::workspace::{Package, Workspace};

/// Each member with the siblings that it may depend on; ARCHITECTURE.md draws the same.
const ALLOWED: [(&str, &[&str]); 6] = [
    ("brigade-topology", &[]),
    ("brigade-partition", &[]),
    ("brigade-wire", &[]),
    ("brigade-schedule", &["brigade-topology"]),
    ("brigade-engine", &["brigade-partition", "brigade-schedule", "brigade-topology", "brigade-wire"]),
    ("xtask", &[]),
];
/// The one crate that needs every sibling that it may have: users depend on it alone.
const ENGINE: &str = "brigade-engine";
/// The crates without input, output, threads and clocks.
pub(super) const PURE: [&str; 4] =
    ["brigade-partition", "brigade-schedule", "brigade-topology", "brigade-wire"];
/// What a pure crate would only need for work that belongs to the engine.
const IMPURE: [&str; 7] =
    ["crossbeam", "crossbeam-channel", "indicatif", "mpi", "rayon", "tokio", "tracing-subscriber"];

/// Checks the dependencies of every member against the picture in ARCHITECTURE.md.
#[must_use]
pub fn boundaries(workspace: &Workspace, tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, _) in ALLOWED {
        if workspace.packages.iter().all(|p| p.name != name) {
            let message =
                format!("the workspace has no crate {name}; change xtask/src/tidy/boundaries.rs too");
            found.push(Violation::new("Cargo.toml", 1, "boundary", message));
        }
    }
    for package in &workspace.packages {
        let manifest = workspace.relative(&package.manifest_path);
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            let message =
                "a new crate; draw it in ARCHITECTURE.md and add it to xtask/src/tidy/boundaries.rs";
            found.push(Violation::new(&manifest, 1, "boundary", message));
            continue;
        };
        for dependency in &package.dependencies {
            if let Some((rule, message)) = verdict(package, &dependency.name, allowed, dependency.ships()) {
                let line = line_of(tree.text(&manifest).unwrap_or_default(), &dependency.name);
                found.push(Violation::new(&manifest, line, rule, message));
            }
        }
        for sibling in allowed.iter().filter(|_| package.name == ENGINE) {
            if !package.dependencies.iter().any(|d| d.name == *sibling && d.ships()) {
                let message = format!("{ENGINE} does not depend on {sibling}; it must re-export every crate");
                found.push(Violation::new(&manifest, 1, "boundary", message));
            }
        }
    }
    found
}

fn verdict(package: &Package, name: &str, allowed: &[&str], ships: bool) -> Option<(&'static str, String)> {
    let who = &package.name;
    let pure = PURE.contains(&who.as_str());
    let is_sibling = ALLOWED.iter().any(|(sibling, _)| *sibling == name) || name.starts_with("brigade-");
    let is_burn = name == "burn" || name.starts_with("burn-") || name.starts_with("cubecl");
    if is_sibling && !allowed.contains(&name) {
        Some(("boundary", format!("{who} must not depend on {name}, not even in tests; see ARCHITECTURE.md")))
    } else if is_burn && who != ENGINE {
        Some(("burn", format!("{who} must not know Burn; move what needs {name} to {ENGINE}")))
    } else if name == "bincode" && who != "brigade-wire" {
        Some(("bincode", format!("{who} must not depend on bincode; its only use stands in brigade-wire")))
    } else if pure && ships && IMPURE.contains(&name) {
        Some(("pure", format!("{who} does no I/O and starts no thread; move what needs {name} to {ENGINE}")))
    } else {
        None
    }
}

/// The line of a manifest that declares a dependency; the first one when it is declared in another way.
pub(super) fn line_of(manifest: &str, dependency: &str) -> usize {
    let declares = |line: &str| {
        line.trim_start()
            .trim_start_matches('"')
            .strip_prefix(dependency)
            .is_some_and(|rest| rest.starts_with([' ', '=', '.', '"']))
    };
    manifest.lines().position(declares).map_or(1, |at| at + 1)
}
