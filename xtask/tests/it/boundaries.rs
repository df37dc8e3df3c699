//! Which crate may depend on which.

use serde_json::json;
use xtask::tidy::{Tree, boundaries};

use crate::fixture::{depend, package, places, workspace, workspace_with};

fn broken_by(name: &str, on: &str, kind: Option<&str>) -> Vec<(String, &'static str)> {
    let workspace = workspace_with(|metadata| depend(metadata, name, on, kind));
    boundaries(&workspace, &Tree::default()).into_iter().map(|v| (v.file, v.rule)).collect()
}

#[test]
fn the_drawn_dependencies_are_allowed() {
    assert_eq!(boundaries(&workspace(), &Tree::default()), []);
    assert_eq!(broken_by("brigade-wire", "regex", None), []);
}

#[test]
fn no_pure_crate_knows_a_sibling_beyond_the_drawn_ones() {
    let pure = ["brigade-topology", "brigade-partition", "brigade-wire", "brigade-schedule"];
    for name in pure {
        for on in pure.into_iter().chain(["brigade-engine", "brigade-unheard-of", "xtask"]) {
            let allowed = name == "brigade-schedule" && on == "brigade-topology";
            for kind in [None, Some("dev"), Some("build")] {
                let rules: Vec<_> = broken_by(name, on, kind).into_iter().map(|(_, rule)| rule).collect();
                assert_eq!(
                    rules,
                    if allowed { vec![] } else { vec!["boundary"] },
                    "{name} on {on}, {kind:?}"
                );
            }
        }
    }
}

#[test]
fn only_the_engine_knows_burn() {
    for on in ["burn", "burn-tensor", "cubecl-core"] {
        assert_eq!(broken_by("brigade-engine", on, None), []);
        assert_eq!(
            broken_by("brigade-wire", on, Some("dev")),
            [("crates/wire/Cargo.toml".to_owned(), "burn")]
        );
        assert_eq!(broken_by("xtask", on, None), [("xtask/Cargo.toml".to_owned(), "burn")]);
    }
}

#[test]
fn only_wire_depends_on_bincode() {
    assert_eq!(
        broken_by("brigade-engine", "bincode", None),
        [("crates/engine/Cargo.toml".to_owned(), "bincode")]
    );
}

#[test]
fn a_pure_crate_ships_nothing_that_starts_threads() {
    assert_eq!(
        broken_by("brigade-schedule", "rayon", None),
        [("crates/schedule/Cargo.toml".to_owned(), "pure")]
    );
    assert_eq!(broken_by("brigade-schedule", "rayon", Some("dev")), []);
    assert_eq!(broken_by("brigade-engine", "rayon", None), []);
}

#[test]
fn the_engine_needs_all_four() {
    let workspace = workspace_with(|metadata| {
        let dependencies = package(metadata, "brigade-engine")["dependencies"].as_array_mut().expect("array");
        dependencies.retain(|dependency| dependency["name"] != "brigade-wire");
    });
    let found = boundaries(&workspace, &Tree::default());
    assert_eq!(places(&found), [("crates/engine/Cargo.toml", 1, "boundary")]);
    assert!(found[0].message.contains("brigade-wire"), "{}", found[0]);
}

#[test]
fn crates_come_and_go_with_the_picture() {
    let gone = workspace_with(|metadata| {
        metadata["packages"].as_array_mut().expect("array").retain(|p| p["name"] != "brigade-wire");
    });
    assert!(places(&boundaries(&gone, &Tree::default())).contains(&("Cargo.toml", 1, "boundary")));

    let new = workspace_with(|metadata| {
        let path = "/fixture/crates/router/Cargo.toml";
        let router =
            json!({ "name": "brigade-router", "manifest_path": path, "dependencies": [], "targets": [] });
        metadata["packages"].as_array_mut().expect("array").push(router);
    });
    assert_eq!(places(&boundaries(&new, &Tree::default())), [("crates/router/Cargo.toml", 1, "boundary")]);
}

#[test]
fn the_line_is_the_one_that_declares_the_dependency() {
    let manifest = "[dependencies]\nburn-store = \"1\"\nburn.workspace = true\n";
    let tree = Tree::of(&[("crates/wire/Cargo.toml", manifest)]);
    let workspace = workspace_with(|metadata| depend(metadata, "brigade-wire", "burn", None));
    assert_eq!(places(&boundaries(&workspace, &tree)), [("crates/wire/Cargo.toml", 3, "burn")]);
}
