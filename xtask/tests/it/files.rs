//! The opening line, the size, nothing unfinished, nothing skipped, bincode in one place.

use xtask::tidy::{bincode_in_one_file, file_rules};

use crate::fixture::{places, source};

fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
    file_rules(&source(path, text)).into_iter().map(|v| (v.line, v.rule)).collect()
}

fn long(lines: usize) -> String {
    format!("//! Long.\n{}", "// x\n".repeat(lines - 1))
}

#[test]
fn every_file_opens_with_a_sentence() {
    assert_eq!(rules("crates/wire/src/a.rs", "//! What it holds.\n"), []);
    for text in [
        "",
        "\n//! Late.\n",
        "// Plain.\n",
        "//!\n//! Late.\n",
        "//! \n",
        "/// Outer.\nfn f() {}\n",
        "fn f() {}\n",
    ] {
        assert_eq!(rules("crates/wire/src/a.rs", text), [(1, "header")], "{text:?}");
    }
}

#[test]
fn files_stay_below_their_limit() {
    assert_eq!(rules("crates/wire/src/a.rs", &long(499)), []);
    assert_eq!(rules("crates/wire/src/a.rs", &long(500)), [(500, "size")]);
    assert_eq!(rules("crates/wire/src/lib.rs", &long(99)), []);
    assert_eq!(rules("crates/wire/src/lib.rs", &long(100)), [(100, "size")]);
    assert_eq!(rules("crates/wire/src/calib.rs", &long(100)), []);
}

#[test]
fn no_test_is_ignored() {
    let test = |attribute: &str| format!("//! x\n{attribute}\n#[test]\nfn f() {{}}\n");
    for attribute in ["#[ignore]", "#[ignore = \"slow\"]", "# [ ignore ]", "#[cfg_attr(miri, ignore)]"] {
        assert_eq!(rules("crates/wire/tests/it/a.rs", &test(attribute)), [(2, "ignore")], "{attribute}");
    }
    for attribute in ["#[expect(unused)]", "#[cfg_attr(miri, inline)]", "// #[ignore]", "/// `#[ignore]`"] {
        assert_eq!(rules("crates/wire/tests/it/a.rs", &test(attribute)), [], "{attribute}");
    }
    assert_eq!(
        rules("crates/wire/tests/it/a.rs", "//! x\nm! {\n #[test]\n #[ignore]\n fn f() {} }\n"),
        [(4, "ignore")]
    );
}

#[test]
fn no_example_is_ignored() {
    let doc = |fence: &str| format!("//! x\n\n/// {fence}\n/// f();\n/// ```\npub fn f() {{}}\n");
    for fence in ["```ignore", "```rust,ignore", "``` ignore", "```ignore-wasm32"] {
        assert_eq!(rules("crates/wire/src/a.rs", &doc(fence)), [(3, "ignore")], "{fence}");
    }
    for fence in ["```", "```text", "```rust,no_run", "```should_panic"] {
        assert_eq!(rules("crates/wire/src/a.rs", &doc(fence)), [], "{fence}");
    }
    assert_eq!(rules("crates/wire/src/lib.rs", "//! x\n//! ```ignore\n//! ```\n"), [(2, "ignore")]);
}

#[test]
fn nothing_is_left_unfinished() {
    assert_eq!(rules("crates/wire/src/a.rs", "//! x\nfn f() {\n    todo!()\n}\n"), [(3, "unfinished")]);
    assert_eq!(
        rules("crates/wire/src/a.rs", "//! x\nfn f() { unimplemented!(\"later\") }\n"),
        [(2, "unfinished")]
    );
    assert_eq!(
        rules("crates/wire/src/a.rs", "//! x\n// todo!()\nfn f() { let todo = !true; g(\"todo!\") }\n"),
        []
    );
}

#[test]
fn bincode_has_one_home() {
    let home =
        source("crates/wire/src/header.rs", "//! x\nuse bincode::config;\nfn f() { bincode::encode() }\n");
    let second = source("crates/wire/src/other.rs", "//! x\n\nfn f() { bincode::encode() }\n");
    let test = source("crates/wire/tests/it/a.rs", "//! x\nuse bincode::config;\n");
    let prose = source("crates/wire/src/prose.rs", "//! The bincode format.\nconst A: &str = \"bincode\";\n");
    let found = |sources: &[_]| {
        let found = bincode_in_one_file(sources);
        found.into_iter().map(|v| (v.file, v.line)).collect::<Vec<_>>()
    };
    assert_eq!(found(&[home.clone(), prose.clone()]), []);
    assert_eq!(found(&[prose]), []);
    assert_eq!(found(&[home.clone(), second.clone()]), [("crates/wire/src/other.rs".to_owned(), 3)]);
    assert_eq!(found(&[home, test.clone()]), [("crates/wire/tests/it/a.rs".to_owned(), 2)]);
    let engine = source("crates/engine/src/a.rs", "//! x\nuse bincode as b;\n");
    assert_eq!(found(&[engine.clone(), second]), [("crates/engine/src/a.rs".to_owned(), 2)]);
    assert_eq!(found(&[engine]), [("crates/engine/src/a.rs".to_owned(), 2)]);
}

#[test]
fn a_violation_prints_as_file_line_rule_and_advice() {
    let found = file_rules(&source("crates/wire/src/a.rs", "fn f() {}\n"));
    assert_eq!(places(&found), [("crates/wire/src/a.rs", 1, "header")]);
    let line = found[0].to_string();
    assert!(line.starts_with("crates/wire/src/a.rs:1: header: does not open with `//! `"), "{line}");
    assert!(line.ends_with("say what the file holds"), "{line}");
}
