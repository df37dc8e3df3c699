//! The example `gpt` as its users call it: options, exit codes, the summary, equal numbers at any split.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A model that trains in a moment.
const TINY: &str = "--layers 2 --width 16 --heads 2 --seq 16 --micro-batch 2 --micro-batches 3 --steps 4 \
                    --eval-every 2 --sample 5 --seed 7";

/// The built example, beside the folder of this test; nothing where only this test was built.
#[expect(clippy::print_stdout, reason = "a skipped test says so, and how it would run")]
fn example() -> Option<PathBuf> {
    let here = std::env::current_exe().expect("a test has a path");
    let folder = here.parent().and_then(Path::parent).expect("tests lie in target/<profile>/deps");
    let path = folder.join("examples").join(format!("gpt{}", std::env::consts::EXE_SUFFIX));
    if path.is_file() {
        return Some(path);
    }
    println!("gpt_cli skipped: the example gpt is not built (cargo build -p brigade-engine --example gpt)");
    None
}

fn run(example: &Path, options: &[&str]) -> Output {
    Command::new(example).args(options).output().expect("the example starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A text of the given number of characters.
fn write_text(folder: &Path, n_characters: usize) -> String {
    let path = folder.join("text.txt");
    let text = "fn main() { let naïve = [1, 2, 3]; }\n".chars().cycle().take(n_characters);
    fs::write(&path, text.collect::<String>()).expect("a temporary file can be written");
    path.display().to_string()
}

/// Trains the tiny model and reads its summary.
fn summary(example: &Path, folder: &Path, options: &[&str]) -> Value {
    let text = write_text(folder, 4000);
    let path = folder.join("summary.json");
    let path_text = path.display().to_string();
    let tiny: Vec<&str> = TINY.split_whitespace().collect();
    let all = [&tiny[..], &["--text", &text, "--summary", &path_text], options].concat();
    let output = run(example, &all);
    assert!(output.status.success(), "{options:?}: {}", stderr(&output));
    let json = fs::read_to_string(path).expect("the summary is there");
    serde_json::from_str(&json).expect("the summary is JSON")
}

#[test]
fn help_explains_every_option() {
    let Some(example) = example() else { return };
    let output = run(&example, &["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = help.lines().map(str::trim).collect();
    let names = "layers width heads seq micro-batch micro-batches steps learning-rate seed text stages schedule \
                 partition threads eval-every sample prompt temperature summary";
    for name in names.split_whitespace() {
        let head = format!("--{name} <");
        let place = lines.iter().position(|line| line.starts_with(&head));
        let place = place.unwrap_or_else(|| panic!("{name} is in the help:\n{help}"));
        assert!(lines[place + 1].len() > 10, "{name} is explained:\n{help}");
    }
}

#[test]
fn settings_that_cannot_be_used_end_with_code_2_and_say_why() {
    let Some(example) = example() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let short = write_text(folder.path(), 100);
    let latin = folder.path().join("latin1.txt");
    fs::write(&latin, [b'a', 0xe9, b'b']).expect("a temporary file can be written");
    let latin = latin.display().to_string();
    let missing = folder.path().join("missing").join("file").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["--layers", "2", "--stages", "5"], "more than the 4 layers"),
        (&["--width", "128", "--heads", "3"], "does not divide"),
        (&["--schedule", "sideways"], "unknown schedule"),
        (&["--schedule", "forward-only"], "cannot train"),
        (&["--schedule", "interleaved:2", "--stages", "3"], "no multiple"),
        (&["--partition", "sideways"], "--partition"),
        (&["--partition", "cuts:0,1,2"], "cannot be cut"),
        (&["--layers", "0"], "--layers"),
        (&["--width", "0"], "--width"),
        (&["--heads", "0"], "--heads"),
        (&["--seq", "0"], "--seq"),
        (&["--micro-batch", "0"], "--micro-batch"),
        (&["--micro-batches", "0"], "--micro-batches"),
        (&["--stages", "0"], "--stages"),
        (&["--steps", "0"], "--steps"),
        (&["--threads", "0"], "--threads"),
        (&["--threads", "x"], "--threads"),
        (&["--learning-rate", "nan"], "--learning-rate"),
        (&["--learning-rate=-1"], "--learning-rate"),
        (&["--temperature", "0"], "--temperature"),
        (&["--text", &missing], "cannot read the text"),
        (&["--text", &short], "too short"),
        (&["--text", &latin], "not UTF-8"),
        (&["--summary", &missing], "cannot write the summary"),
        (&["--frobnicate"], "--frobnicate"),
    ];
    for (options, wanted) in cases {
        let output = run(&example, options);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(wanted), "{options:?} says {wanted:?}: {said}");
        assert!(!said.contains("panicked"), "{options:?}: {said}");
    }
}

#[test]
fn summary_holds_settings_and_results() {
    let Some(example) = example() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let summary = summary(&example, folder.path(), &[]);
    assert_eq!(summary["stages"], 2);
    assert_eq!(summary["schedule"], "1f1b");
    assert_eq!(summary["micro_batches"], 3);
    let number = |name: &str| summary[name].as_f64().unwrap_or_else(|| panic!("{name}: {summary}"));
    assert!(number("loss_last") < number("loss_first"), "{summary}");
    assert!(number("loss_first") < 5.0 && number("loss_evaluation") > 0.0, "{summary}");
    assert!(number("step_s_median") > 0.0 && number("tokens_per_s") > 0.0, "{summary}");
    for bubble in ["bubble_planned", "bubble_measured"] {
        assert!((0.0..1.0).contains(&number(bubble)), "{bubble}: {summary}");
    }
    // Two stages cannot be busy all the time, whatever the times are.
    assert!(number("bubble_planned") > 0.0, "{summary}");
    if cfg!(target_os = "linux") {
        assert!(number("peak_rss_bytes") > 1e6, "{summary}");
    }
    let split = summary["split"].as_array().expect("a list of stages");
    let parameters: f64 = split.iter().filter_map(|stage| stage["n_parameters"].as_f64()).sum();
    assert_eq!((split.len(), parameters), (2, number("n_parameters")));
    let sample = summary["sample"].as_str().expect("a text");
    assert_eq!(sample.chars().count(), "pub fn ".len() + 5);
}

#[test]
fn losses_and_sample_are_equal_at_any_number_of_stages() {
    let Some(example) = example() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = summary(&example, folder.path(), &["--stages", "1"]);
    assert_eq!(whole["bubble_planned"], 0.0);
    let splits: &[&[&str]] = &[
        &["--stages", "2"],
        &["--stages", "2", "--schedule", "gpipe"],
        &["--stages", "3", "--partition", "uniform"],
        &["--stages", "4", "--schedule", "gpipe"],
    ];
    for options in splits {
        let split = summary(&example, folder.path(), options);
        for name in ["loss_first", "loss_last", "loss_evaluation", "sample"] {
            assert_eq!(split[name], whole[name], "{name} with {options:?}");
        }
    }
}
