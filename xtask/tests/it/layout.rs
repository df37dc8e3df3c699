//! One test binary a crate, every module reached.

use serde_json::json;
use xtask::tidy::{Tree, modules_reached, test_targets};

use crate::fixture::{package, places, source, workspace, workspace_with};

const MANIFEST: &str = "[package]\nautotests = false\n";

#[test]
fn one_test_binary_called_it_is_sound() {
    let tree = Tree::of(&[
        ("crates/wire/Cargo.toml", MANIFEST),
        ("crates/wire/tests/it/main.rs", "//! x\n"),
        ("crates/wire/tests/it/golden.rs", "//! x\n"),
    ]);
    assert_eq!(test_targets(&workspace(), &tree), []);
}

#[test]
fn a_crate_without_tests_is_seen() {
    let workspace = workspace_with(|metadata| package(metadata, "brigade-wire")["targets"] = json!([]));
    assert_eq!(places(&test_targets(&workspace, &Tree::default())), [("crates/wire/Cargo.toml", 1, "tests")]);
}

#[test]
fn a_second_test_binary_is_seen() {
    let workspace = workspace_with(|metadata| {
        let path = "/fixture/crates/wire/tests/golden.rs";
        let target = json!({ "name": "golden", "kind": ["test"], "src_path": path });
        package(metadata, "brigade-wire")["targets"].as_array_mut().expect("array").push(target);
    });
    assert_eq!(
        places(&test_targets(&workspace, &Tree::default())),
        [("crates/wire/tests/golden.rs", 1, "tests")]
    );
}

#[test]
fn a_test_binary_elsewhere_is_seen() {
    let workspace = workspace_with(|metadata| {
        package(metadata, "brigade-wire")["targets"][1]["src_path"] =
            json!("/fixture/crates/wire/tests/all.rs");
    });
    let found = test_targets(&workspace, &Tree::default());
    assert_eq!(
        places(&found),
        [("crates/wire/Cargo.toml", 1, "tests"), ("crates/wire/tests/all.rs", 1, "tests")]
    );
}

#[test]
fn a_file_that_cargo_would_not_compile_is_seen() {
    let tree = Tree::of(&[
        ("crates/wire/Cargo.toml", MANIFEST),
        ("crates/wire/tests/lost.rs", "//! x\n"),
        ("crates/wire/tests/helpers/mod.rs", "//! x\n"),
    ]);
    assert_eq!(
        places(&test_targets(&workspace(), &tree)),
        [("crates/wire/tests/helpers/mod.rs", 1, "tests"), ("crates/wire/tests/lost.rs", 1, "tests")]
    );
}

#[test]
fn test_binaries_are_never_found_by_themselves() {
    for text in ["[package]\n", "[package]\nautotests = true\n", "# autotests = false\n"] {
        let tree = Tree::of(&[("crates/wire/Cargo.toml", text)]);
        assert_eq!(places(&test_targets(&workspace(), &tree)), [("crates/wire/Cargo.toml", 1, "tests")]);
    }
}

#[test]
fn modules_that_are_declared_are_sound() {
    let sources = [
        source("crates/wire/src/lib.rs", "//! x\npub mod a;\nmod b;\n"),
        source("crates/wire/src/a.rs", "//! x\n"),
        source("crates/wire/src/b/mod.rs", "//! x\nmod c;\n"),
        source("crates/wire/src/b/c.rs", "//! x\nmod d;\n"),
        source("crates/wire/src/b/c/d.rs", "//! x\n"),
        source("crates/wire/src/bin/tool.rs", "//! x\n"),
        source("crates/wire/tests/it/main.rs", "//! x\nmod golden;\n"),
        source("crates/wire/tests/it/golden.rs", "//! x\n"),
        source("crates/wire/benches/a.rs", "//! x\n"),
        source("crates/wire/examples/a.rs", "//! x\n"),
        source("crates/wire/fuzz/fuzz_targets/a.rs", "//! x\n"),
        source("xtask/src/main.rs", "//! x\nmod tidy;\n"),
        source("xtask/src/tidy.rs", "//! x\n"),
    ];
    assert_eq!(modules_reached(&sources), []);
}

#[test]
fn a_module_that_nothing_declares_is_seen() {
    let sources = [
        source("crates/wire/src/lib.rs", "//! mod a;\n// mod a;\nmod a { mod b; }\nmod aa;\n"),
        source("crates/wire/src/a.rs", "//! x\n"),
        source("crates/wire/src/aa.rs", "//! x\n"),
        source("crates/wire/src/b/c.rs", "//! x\n"),
        source("crates/engine/src/lib.rs", "//! x\nmod a;\n"),
        source("crates/engine/tests/it/main.rs", "//! x\n"),
        source("crates/engine/tests/it/golden.rs", "//! x\n"),
    ];
    assert_eq!(
        places(&modules_reached(&sources)),
        [
            ("crates/wire/src/a.rs", 1, "orphan"),
            ("crates/wire/src/b/c.rs", 1, "orphan"),
            ("crates/engine/tests/it/golden.rs", 1, "orphan"),
        ]
    );
}
