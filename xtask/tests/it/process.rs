//! Commands: how they print, what they return.

use std::path::Path;
use std::time::Duration;

use xtask::process::Run;

fn sh(script: &str) -> Run {
    Run::new("sh", ["-c", script])
}

#[test]
fn a_command_prints_as_it_can_be_typed() {
    let run = Run::cargo(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").args(["it's"]);
    assert_eq!(run.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s'");
    assert_eq!(
        Run::cargo(["+nightly", ""]).dir(Path::new("a b")).to_string(),
        "cd 'a b' && cargo +nightly ''"
    );
}

#[test]
fn the_exit_status_decides() {
    assert!(sh("exit 0").status().expect("sh starts"));
    assert!(!sh("exit 3").status().expect("sh starts"));
    assert!(!sh("echo a; exit 3").works());
    assert!(!Run::new("no-such-program-here", [""; 0]).works());
    assert!(Run::new("no-such-program-here", [""; 0]).status().is_err());
}

#[test]
fn tee_hands_over_each_line() {
    let mut lines = Vec::new();
    let success =
        sh(r"printf 'one\n\ntwo\377\nlast'").tee(|line| lines.push(line.to_owned())).expect("sh starts");
    assert!(success);
    assert_eq!(lines, ["one", "", "two\u{fffd}", "last"]);
    assert!(!sh("echo x; exit 1").tee(|_| ()).expect("sh starts"));
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    assert!(!sh("exec sleep 60").status_within(Duration::from_millis(50)).expect("sh starts"));
    assert!(sh("exit 0").status_within(Duration::from_secs(60)).expect("sh starts"));
}

/// Build scripts that watch such variables would run again under xtask.
#[test]
fn cargo_variables_of_xtask_do_not_leak() {
    assert!(std::env::var("CARGO_PKG_NAME").is_ok(), "cargo test sets it");
    assert_eq!(sh("echo $CARGO_PKG_NAME$CARGO_MANIFEST_DIR").output().expect("sh starts"), "\n");
    let given = sh("echo $CARGO_PKG_NAME").env("CARGO_PKG_NAME", "given");
    assert_eq!(given.output().expect("sh starts"), "given\n");
}
