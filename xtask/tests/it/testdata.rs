//! Test data names its source and version.

use xtask::tidy::names_its_source;

fn is_sound(json: &str) -> bool {
    names_its_source("testdata/golden/x.json", json.as_bytes()).is_empty()
}

#[test]
fn a_source_with_a_version_is_sound() {
    for source in [
        "torchgpipe 0.0.7",
        "torch 2.15.0+cu132, CPU",
        "tree version.txt 0.19.6 (x)",
        "slapo 0.0.3.dev0",
        "core 0.9.0rc0",
    ] {
        assert!(is_sound(&format!(r#"{{"cases": [1, {{"source": 2}}], "source": "{source}"}}"#)), "{source}");
    }
}

#[test]
fn a_missing_source_or_version_is_seen() {
    for json in [
        "{}",
        r#"{"source": null}"#,
        r#"{"source": ""}"#,
        r#"{"source": "torchgpipe"}"#,
        r#"{"source": "release 7"}"#,
        r#"{"source": "no. 7., a.b"}"#,
        r#"{"source": ["torch 2.15.0"]}"#,
        r#"{"cases": {"source": "torch 2.15.0"}}"#,
        r#"[{"source": "torch 2.15.0"}]"#,
        "{",
        "",
    ] {
        assert!(!is_sound(json), "{json}");
    }
}

#[test]
fn deep_and_huge_values_are_no_obstacle() {
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(is_sound(&format!(
        r#"{{"deep": {deep}, "huge": 123456789012345678901234567890, "source": "x 1.0"}}"#
    )));
}
