//! A small workspace that keeps every rule, as `cargo metadata` would describe it, and ways to break it.

use serde_json::{Value, json};
use xtask::tidy::{Source, Violation};
use xtask::workspace::Workspace;

/// Folder that the fixture's paths start with.
pub(crate) const ROOT: &str = "/fixture";

/// Metadata of the five crates and xtask, each with its test target and a sound set of dependencies.
pub(crate) fn metadata(root: &str) -> Value {
    let deps = |names: &[&str]| names.iter().map(|name| dependency(name, None)).collect::<Vec<_>>();
    let package = |folder: &str, name: &str, dependencies: Vec<Value>| {
        json!({
            "name": name,
            "manifest_path": format!("{root}/{folder}/Cargo.toml"),
            "dependencies": dependencies,
            "targets": [
                { "name": "lib", "kind": ["lib"], "src_path": format!("{root}/{folder}/src/lib.rs") },
                { "name": "it", "kind": ["test"], "src_path": format!("{root}/{folder}/tests/it/main.rs") },
            ],
        })
    };
    let siblings = ["brigade-partition", "brigade-schedule", "brigade-topology", "brigade-wire", "burn"];
    json!({
        "workspace_root": root,
        "packages": [
            package("crates/topology", "brigade-topology", deps(&["serde"])),
            package("crates/partition", "brigade-partition", deps(&["serde"])),
            package("crates/wire", "brigade-wire", deps(&["serde", "bincode"])),
            package("crates/schedule", "brigade-schedule", deps(&["serde", "brigade-topology"])),
            package("crates/engine", "brigade-engine", deps(&siblings)),
            package("xtask", "xtask", deps(&["serde"])),
        ],
    })
}

/// One entry of `dependencies`.
pub(crate) fn dependency(name: &str, kind: Option<&str>) -> Value {
    json!({ "name": name, "kind": kind })
}

/// The fixture after a change to its metadata.
pub(crate) fn workspace_with(change: impl FnOnce(&mut Value)) -> Workspace {
    let mut metadata = metadata(ROOT);
    change(&mut metadata);
    Workspace::from_json(&metadata.to_string()).expect("the fixture is valid metadata")
}

/// The fixture as it is.
pub(crate) fn workspace() -> Workspace {
    workspace_with(|_| ())
}

/// The metadata of one package.
pub(crate) fn package<'a>(metadata: &'a mut Value, name: &str) -> &'a mut Value {
    let packages = metadata["packages"].as_array_mut().expect("packages");
    packages.iter_mut().find(|package| package["name"] == name).expect("a package of the fixture")
}

/// Adds a dependency to one package.
pub(crate) fn depend(metadata: &mut Value, name: &str, on: &str, kind: Option<&str>) {
    let dependencies = package(metadata, name)["dependencies"].as_array_mut().expect("dependencies");
    dependencies.push(dependency(on, kind));
}

/// A Rust file of the fixture.
pub(crate) fn source(path: &str, text: &str) -> Source {
    Source::parse(path, text).expect("the fixture is Rust")
}

/// Where and by which rule, for comparing.
pub(crate) fn places(found: &[Violation]) -> Vec<(&str, usize, &str)> {
    found.iter().map(|v| (v.file.as_str(), v.line, v.rule)).collect()
}
