//! Shared dependencies are built once.

use serde_json::{Value, json};
use xtask::tidy::{Tree, same_features};

use crate::fixture::{package, places, workspace, workspace_with};

/// Lets a package ask for serde in another way than the fixture does.
fn ask(metadata: &mut Value, name: &str, kind: Option<&str>, features: &[&str], default: bool) {
    let dependencies = package(metadata, name)["dependencies"].as_array_mut().expect("dependencies");
    dependencies.retain(|dependency| dependency["name"] != "serde");
    dependencies.push(json!({
        "name": "serde", "kind": kind, "features": features, "uses_default_features": default,
    }));
}

#[test]
fn equal_requests_are_sound() {
    assert_eq!(same_features(&workspace(), &Tree::default()), []);
    let workspace = workspace_with(|metadata| {
        let members =
            ["brigade-topology", "brigade-partition", "brigade-wire", "brigade-schedule", "brigade-engine"];
        for member in members {
            ask(metadata, member, Some("dev"), &["derive", "rc"], true);
        }
        // A feature that the member's own manifest names once more is the same request.
        ask(metadata, "xtask", None, &["rc", "derive", "rc"], true);
    });
    assert_eq!(same_features(&workspace, &Tree::default()), []);
}

#[test]
fn another_request_is_seen_where_it_stands() {
    let manifest = "[dev-dependencies]\nproptest.workspace = true\nserde = { workspace = true }\n";
    let tree = Tree::of(&[("crates/engine/Cargo.toml", manifest)]);
    for (kind, features, default) in
        [(None, vec!["rc"], false), (Some("dev"), vec!["rc"], false), (Some("build"), vec![], true)]
    {
        let workspace = workspace_with(|metadata| ask(metadata, "brigade-engine", kind, &features, default));
        let found = same_features(&workspace, &tree);
        assert_eq!(places(&found), [("crates/engine/Cargo.toml", 3, "features")]);
    }
}
