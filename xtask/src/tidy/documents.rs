//! Documents say what each dependency is for, and nothing about one person's machine.

use std::collections::BTreeSet;

use super::boundaries::line_of;
use super::{Tree, Violation};
use crate::workspace::Workspace;

const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// First parts of absolute paths that exist on one machine only.
const MACHINE_ROOTS: [&str; 4] = ["home", "root", "Users", "work"];

/// Checks that the table under a heading with "dependenc" names every dependency that ships, says what it is
/// for, and names nothing that no crate depends on.
#[must_use]
pub fn architecture(workspace: &Workspace, tree: &Tree) -> Vec<Violation> {
    let Some(text) = tree.text(ARCHITECTURE) else {
        let message = "missing; write it, with a table of dependencies";
        return vec![Violation::new(ARCHITECTURE, 1, "dependency-table", message)];
    };
    let rows = dependency_rows(text);
    if rows.is_empty() {
        let message = "no table under a heading `Dependencies`; write one: | dependency | what it is for |";
        return vec![Violation::new(ARCHITECTURE, 1, "dependency-table", message)];
    }
    let members: BTreeSet<&str> = workspace.packages.iter().map(|p| p.name.as_str()).collect();
    let mut found = Vec::new();
    for package in &workspace.packages {
        let manifest = workspace.relative(&package.manifest_path);
        let outside = |name: &str| !members.contains(name);
        let mut seen = BTreeSet::new();
        for dependency in package.dependencies.iter().filter(|d| d.ships() && outside(&d.name)) {
            let name = dependency.name.as_str();
            if seen.insert(name) && !rows.iter().any(|row| row.names.iter().any(|n| n == name)) {
                let line = line_of(tree.text(&manifest).unwrap_or_default(), name);
                let message =
                    format!("{name} has no row in the table of {ARCHITECTURE}; say there what it is for");
                found.push(Violation::new(&manifest, line, "dependency-table", message));
            }
        }
    }
    let known: BTreeSet<&str> =
        workspace.packages.iter().flat_map(|p| &p.dependencies).map(|d| d.name.as_str()).collect();
    for row in &rows {
        for name in row.names.iter().filter(|name| !known.contains(name.as_str())) {
            let message = format!("no crate depends on {name}; delete its row");
            found.push(Violation::new(ARCHITECTURE, row.line, "dependency-table", message));
        }
        if !row.says_why {
            let message = "a row without a reason; say what the dependency is for";
            found.push(Violation::new(ARCHITECTURE, row.line, "dependency-table", message));
        }
    }
    found
}

struct Row {
    names: Vec<String>,
    line: usize,
    says_why: bool,
}

/// Rows of the tables below a heading with "dependenc"; the names are the words in backticks of the first cell.
fn dependency_rows(text: &str) -> Vec<Row> {
    let mut inside = false;
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            inside = line.to_lowercase().contains("dependenc");
        }
        let Some(cells) = line.trim().strip_prefix('|').filter(|_| inside) else { continue };
        let (first, rest) = cells.split_once('|').unwrap_or((cells, ""));
        let names: Vec<String> = first.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if !names.is_empty() {
            let says_why = rest.split('|').any(|cell| cell.chars().any(char::is_alphabetic));
            rows.push(Row { names, line: at + 1, says_why });
        }
    }
    rows
}

/// Checks that a text names no absolute path that only exists on one machine.
#[must_use]
pub fn machine_paths(path: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for root in MACHINE_ROOTS {
            let mark = format!("/{root}/");
            let starts = line.match_indices(&mark).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !(c.is_alphanumeric() || "._-~}>*".contains(c)))
            });
            if starts {
                let message = format!("a path of one machine, {mark}...; write it relative to the workspace");
                found.push(Violation::new(path, at + 1, "machine-path", message));
            }
        }
    }
    found
}
