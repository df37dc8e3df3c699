//! Which test modules belong to a kind.

use xtask::cases::{Modules, modules};
use xtask::tidy::Tree;

use crate::fixture::workspace;

fn found(words: &[&str], only: Option<&str>) -> Vec<(String, Vec<String>)> {
    let tree = Tree::of(&[
        ("crates/wire/tests/it/main.rs", "//! x\nmod golden;\nmod slapo;\nmod other;\n"),
        ("crates/wire/tests/it/golden.rs", "//! x\n"),
        ("crates/wire/tests/it/slapo.rs", "//! x\nuse crate::golden::open;\n"),
        ("crates/wire/tests/it/deep/mod.rs", "//! x\nfn f() { super::golden::open() }\n"),
        ("crates/wire/tests/it/deep/golden_text.rs", "//! x\n"),
        ("crates/wire/tests/it/other.rs", "//! No golden data.\nconst A: &str = \"golden\";\n"),
        ("crates/schedule/tests/it/shapes.rs", "//! x\nproptest! {}\n"),
        ("crates/schedule/tests/it/property.rs", "//! x\n"),
        ("crates/schedule/src/golden.rs", "//! x\n"),
        ("xtask/tests/it/golden.rs", "//! x\n"),
    ]);
    let found = modules(&workspace(), only, &tree, words).expect("known packages");
    found.into_iter().map(|Modules { package, paths }| (package, paths)).collect()
}

#[test]
fn modules_are_found_by_name_and_by_what_they_use() {
    let wire = ["deep::golden_text", "deep", "golden", "slapo"].map(str::to_owned).to_vec();
    assert_eq!(found(&["golden"], None), [("brigade-wire".to_owned(), wire)]);
    let schedule = ["property", "shapes"].map(str::to_owned).to_vec();
    assert_eq!(found(&["property", "proptest"], None), [("brigade-schedule".to_owned(), schedule)]);
    assert_eq!(found(&["parity"], None), []);
}

#[test]
fn one_crate_can_be_chosen_with_and_without_its_prefix() {
    for only in ["schedule", "brigade-schedule"] {
        assert_eq!(found(&["proptest"], Some(only)).len(), 1);
        assert_eq!(found(&["golden"], Some(only)), []);
    }
    let error = modules(&workspace(), Some("router"), &Tree::default(), &[]).expect_err("no such crate");
    assert!(error.to_string().contains("brigade-schedule"), "{error}");
}
