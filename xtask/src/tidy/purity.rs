//! The pure crates use nothing of the standard library that touches the world.

use super::boundaries::PURE;
use super::{Source, Violation};
use crate::workspace::Workspace;

/// Modules of `std` that read or change the world, and what to do instead.
const WORLD: [(&str, &str); 7] = [
    ("fs", "take the text or the bytes as an argument"),
    ("net", "leave sending to a transport of brigade-engine"),
    ("thread", "leave threads to brigade-engine"),
    ("time", "take times as arguments; core::time::Duration is a plain value and welcome"),
    ("process", "leave processes to brigade-engine"),
    ("env", "take the setting as an argument"),
    ("os", "leave the operating system to brigade-engine"),
];
const BY_NAME: &str = "import by name, so that what the crate uses can be seen";
const STREAMS: [&str; 3] = ["stdin", "stdout", "stderr"];
const PRINTERS: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];

/// Checks one file of a pure crate's `src`; other files are free.
#[must_use]
pub fn purity(workspace: &Workspace, source: &Source) -> Vec<Violation> {
    let in_pure_src = workspace.owner(&source.path).is_some_and(|package| {
        let src = format!("{}/src/", workspace.folder(package));
        PURE.contains(&package.name.as_str()) && source.path.starts_with(&src)
    });
    if in_pure_src { impurities(source) } else { Vec::new() }
}

fn impurities(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, line) in source.paths_from("std") {
        let second = path.get(1).map_or("", String::as_str);
        let third = path.get(2).map_or("", String::as_str);
        let advice = if second == "io" && (STREAMS.contains(&third) || third == "*") {
            Some("return the text")
        } else if matches!(second, "*" | "self") {
            Some(BY_NAME)
        } else {
            WORLD.iter().find(|(module, _)| *module == second).map(|(_, advice)| *advice)
        };
        if let Some(advice) = advice {
            let message = format!("{} in a pure crate; {advice}", path.join("::"));
            found.push(Violation::new(&source.path, line, "pure", message));
        }
    }
    found.extend(source.find(&["std", "as"]).map(|line| {
        Violation::new(&source.path, line, "pure", format!("std renamed in a pure crate; {BY_NAME}"))
    }));
    for printer in PRINTERS {
        found.extend(source.find(&[printer, "!"]).map(|line| {
            let message = format!("{printer}! in a pure crate; return the text");
            Violation::new(&source.path, line, "pure", message)
        }));
    }
    found
}
