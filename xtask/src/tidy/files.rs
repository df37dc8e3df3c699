//! Rules for each Rust file: its opening line, its size, nothing unfinished, nothing skipped.

use super::{Source, Violation};

const LINES_MAX: usize = 500;
const LIB_LINES_MAX: usize = 100;

/// Checks one Rust file of any crate.
#[must_use]
pub fn file_rules(source: &Source) -> Vec<Violation> {
    let path = source.path.as_str();
    let mut found = Vec::new();
    let first = source.text.lines().next().unwrap_or_default();
    if first.strip_prefix("//! ").is_none_or(|sentence| sentence.trim().is_empty()) {
        let message = "does not open with `//! ` and one sentence; say what the file holds";
        found.push(Violation::new(path, 1, "header", message));
    }
    let lines = source.text.lines().count();
    let (limit, advice) = if path.ends_with("src/lib.rs") {
        (LIB_LINES_MAX, "keep docs, mod lines and re-exports here and move the rest")
    } else {
        (LINES_MAX, "split it by concept")
    };
    if lines >= limit {
        let message = format!("{lines} lines, the limit is under {limit}; {advice}");
        found.push(Violation::new(path, limit, "size", message));
    }
    for line in skipped_tests(source) {
        let message = "an ignored test is no test; make it pass or delete it";
        found.push(Violation::new(path, line, "ignore", message));
    }
    for line in ignored_examples(&source.text) {
        let message = "an ignored example is not even compiled; make it run, or mark it text";
        found.push(Violation::new(path, line, "ignore", message));
    }
    for name in ["todo", "unimplemented"] {
        found.extend(source.find(&[name, "!"]).map(|line| {
            Violation::new(
                path,
                line,
                "unfinished",
                format!("{name}! in the tree; finish it or leave it out"),
            )
        }));
    }
    found
}

/// Checks that bincode is named in at most one Rust file, and that one in `wire`'s sources.
#[must_use]
pub fn bincode_in_one_file(sources: &[Source]) -> Vec<Violation> {
    let naming = |source: &Source| Some((source.path.clone(), source.find(&["bincode"]).next()?));
    let named: Vec<(String, usize)> = sources.iter().filter_map(naming).collect();
    let home = named.iter().map(|(path, _)| path).find(|path| path.starts_with("crates/wire/src/"));
    let strays = named.iter().filter(|(path, _)| Some(path) != home);
    let message = |home: Option<&String>| match home {
        Some(home) => format!("bincode is named here too; its only use stands in {home}"),
        None => "bincode is named outside crates/wire/src; its only use stands in one file there".to_owned(),
    };
    strays.map(|(path, line)| Violation::new(path, *line, "bincode", message(home))).collect()
}

/// Lines of `#[ignore]`, with or without a reason, alone or in `cfg_attr`.
fn skipped_tests(source: &Source) -> Vec<usize> {
    let mut lines = Vec::new();
    for at in 0..source.tokens.len() {
        let plain = source.matches(at, &["#", "[", "ignore"]);
        let conditional = source.matches(at, &["#", "[", "cfg_attr"]) && {
            let rest = source.tokens[at..].iter().take_while(|token| token.text != "]");
            rest.into_iter().any(|token| token.text == "ignore")
        };
        if plain || conditional {
            lines.push(source.tokens[at].line);
        }
    }
    lines
}

/// Lines of documentation that open a code block which rustdoc leaves out.
fn ignored_examples(text: &str) -> Vec<usize> {
    let opens = |line: &str| {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        doc.trim_start().strip_prefix("```").map(str::to_owned)
    };
    let skipped = |info: String| info.split([',', ' ']).any(|word| word.starts_with("ignore"));
    let numbered = text.lines().enumerate();
    numbered.filter(|(_, line)| opens(line).is_some_and(skipped)).map(|(at, _)| at + 1).collect()
}
