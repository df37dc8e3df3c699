//! What the pure crates may not touch.

use xtask::tidy::purity;

use crate::fixture::{places, source, workspace};

const FILE: &str = "crates/schedule/src/plan.rs";

fn lines(text: &str) -> Vec<usize> {
    purity(&workspace(), &source(FILE, text)).into_iter().map(|v| v.line).collect()
}

#[test]
fn plain_values_are_free() {
    let text = r#"//! A plan.
use core::time::Duration;
use std::{collections::BTreeMap, fmt, io::{self, Write}, sync::Arc};
/// Prints nothing: `std::fs` and println! stand in a comment.
fn fs(time: Duration) -> &'static str { "std::thread::spawn println!(..)" }
fn print(w: &mut impl io::Write) { writeln!(w, "x"); std::process_it() }
"#;
    assert_eq!(lines(text), [0_usize; 0]);
}

#[test]
fn each_part_of_the_world_is_seen() {
    for module in ["fs", "net", "thread", "time", "process", "env", "os"] {
        assert_eq!(lines(&format!("//! x\nuse std::{module};\n")), [2], "{module}");
        assert_eq!(lines(&format!("//! x\n\nfn f() {{ std::{module}::g() }}\n")), [3], "{module}");
        assert_eq!(lines(&format!("//! x\nuse ::std::{module}::Thing;\n")), [2], "{module}");
    }
}

#[test]
fn nested_imports_are_opened_out() {
    let text = "//! x\nuse std::{\n    collections::{BTreeMap, BTreeSet},\n    fs::File,\n    time,\n};\n";
    assert_eq!(lines(text), [4, 5]);
    assert_eq!(lines("//! x\nuse std::{io::{Read, stdin}, fmt};\n"), [2]);
    assert_eq!(lines("//! x\nuse std::{{net}};\n"), [2]);
}

#[test]
fn no_import_hides_what_it_brings() {
    assert_eq!(lines("//! x\nuse std::*;\n"), [2]);
    assert_eq!(lines("//! x\nuse std::{self as s};\n"), [2]);
    assert_eq!(lines("//! x\nuse std as s;\n"), [2]);
    assert_eq!(lines("//! x\nuse std::io::*;\n"), [2]);
}

#[test]
fn standard_streams_and_printing_are_seen() {
    for stream in ["stdin", "stdout", "stderr"] {
        assert_eq!(lines(&format!("//! x\nfn f() {{ std::io::{stream}(); }}\n")), [2]);
    }
    for printer in ["print", "println", "eprint", "eprintln", "dbg"] {
        assert_eq!(lines(&format!("//! x\nfn f() {{ {printer}!(\"x\"); }}\n")), [2], "{printer}");
        assert_eq!(lines(&format!("//! x\nm!({{\n {printer}!() }});\n")), [3], "{printer} in a macro");
    }
}

#[test]
fn only_sources_of_pure_crates_are_held_to_it() {
    let text = "//! x\nuse std::fs;\n";
    let rules = |path: &str| purity(&workspace(), &source(path, text)).len();
    for name in ["topology", "partition", "wire", "schedule"] {
        assert_eq!(rules(&format!("crates/{name}/src/deep/er.rs")), 1);
        assert_eq!(rules(&format!("crates/{name}/tests/it/golden.rs")), 0);
        assert_eq!(rules(&format!("crates/{name}/benches/a.rs")), 0);
    }
    assert_eq!(rules("crates/engine/src/lib.rs"), 0);
    assert_eq!(rules("xtask/src/main.rs"), 0);
}

#[test]
fn the_message_says_what_to_do() {
    let found = purity(&workspace(), &source(FILE, "//! x\nuse std::time::Duration;\n"));
    assert_eq!(places(&found), [(FILE, 2, "pure")]);
    assert!(found[0].to_string().contains("core::time::Duration"), "{}", found[0]);
}
