//! The whole check on a real folder.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use xtask::tidy::{Tree, check};
use xtask::workspace::Workspace;

use crate::fixture::{depend, metadata, package, places};

const TABLE: &str = "# Architecture\n## Dependencies\n| `serde`, `bincode`, `burn` | all of them |\n";

/// A workspace on disk that keeps every rule.
fn sound() -> TempDir {
    let dir = TempDir::new().expect("a temporary folder");
    for folder in
        ["crates/topology", "crates/partition", "crates/wire", "crates/schedule", "crates/engine", "xtask"]
    {
        write(&dir, &format!("{folder}/Cargo.toml"), "[package]\nautotests = false\n");
        write(&dir, &format!("{folder}/src/lib.rs"), "//! A crate.\n");
        write(&dir, &format!("{folder}/tests/it/main.rs"), "//! Its tests.\n");
    }
    write(&dir, "ARCHITECTURE.md", TABLE);
    write(&dir, "testdata/golden/a.json", r#"{"source": "x 1.0"}"#);
    dir
}

fn write(dir: &TempDir, path: &str, text: &str) {
    let path = dir.path().join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn workspace(root: &Path) -> Workspace {
    let json = metadata(root.to_str().expect("a plain path")).to_string();
    Workspace::from_json(&json).expect("metadata")
}

#[test]
fn a_sound_workspace_passes() {
    let dir = sound();
    assert_eq!(check(&workspace(dir.path())).expect("a readable tree"), []);
}

/// Each rule is wired into the check: one broken file each, found where it is.
#[test]
fn every_rule_is_applied() {
    let machine = format!("See /{}/me.\n", "home");
    let cases = [
        ("crates/wire/Cargo.toml", "[package]\n", 1, "tests"),
        ("crates/wire/tests/a.rs", "//! x\n", 1, "tests"),
        ("crates/wire/src/a.rs", "//! x\n", 1, "orphan"),
        ("crates/wire/src/lib.rs", "//! x\nuse std::fs;\n", 2, "pure"),
        ("crates/engine/src/lib.rs", "fn f() {}\n", 1, "header"),
        ("crates/engine/src/lib.rs", "//! x\nfn f() }\n", 2, "rust"),
        ("crates/engine/src/lib.rs", "//! x\nuse bincode::config;\n", 2, "bincode"),
        ("crates/engine/benches/b.rs", "//! x\nfn f() { todo!() }\n", 2, "unfinished"),
        ("testdata/golden/b.json", "{}", 1, "testdata"),
        ("testdata/parity/b.json", "{}", 1, "testdata"),
        ("crates/wire/README.md", machine.as_str(), 1, "machine-path"),
        (".ci/run", machine.as_str(), 1, "machine-path"),
    ];
    for (path, text, line, rule) in cases {
        let dir = sound();
        write(&dir, path, text);
        let found = check(&workspace(dir.path())).expect("a readable tree");
        assert_eq!(places(&found), [(path, line, rule)], "{found:?}");
    }
    let dir = sound();
    fs::remove_file(dir.path().join("ARCHITECTURE.md")).expect("the file is there");
    let found = check(&workspace(dir.path())).expect("a readable tree");
    assert_eq!(places(&found), [("ARCHITECTURE.md", 1, "dependency-table")]);
}

/// The rules on Cargo's metadata are wired into the check too.
#[test]
fn every_rule_on_metadata_is_applied() {
    let dir = sound();
    let mut metadata = metadata(dir.path().to_str().expect("a plain path"));
    depend(&mut metadata, "brigade-wire", "brigade-topology", None);
    depend(&mut metadata, "brigade-schedule", "crc32c", None);
    package(&mut metadata, "brigade-engine")["targets"] = json!([]);
    package(&mut metadata, "xtask")["dependencies"][0]["features"] = json!(["rc"]);
    let workspace = Workspace::from_json(&metadata.to_string()).expect("metadata");
    assert_eq!(
        places(&check(&workspace).expect("a readable tree")),
        [
            ("crates/engine/Cargo.toml", 1, "tests"),
            ("crates/schedule/Cargo.toml", 1, "dependency-table"),
            ("crates/wire/Cargo.toml", 1, "boundary"),
            ("xtask/Cargo.toml", 1, "features"),
        ]
    );
}

#[test]
fn build_output_and_runs_are_not_source() {
    let dir = sound();
    for path in [
        "target/a.rs",
        "crates/wire/fuzz/target/a.rs",
        "runs/a.md",
        ".git/a.rs",
        "crates/wire/fuzz/corpus/a.rs",
    ] {
        write(&dir, path, "todo!()");
    }
    write(&dir, ".github/workflows/ci.yml", "name: ci\n");
    let tree = Tree::read(dir.path()).expect("a readable tree");
    assert!(tree.paths().all(|path| !path.ends_with("a.rs") && !path.ends_with("a.md")));
    assert_eq!(tree.text(".github/workflows/ci.yml"), Some("name: ci\n"));
}
