//! Benchmarks with all that a reader needs to repeat them: hardware, versions, command, table.

use std::fmt;
use std::fs;
use std::thread;

use anyhow::{Result, bail};

use crate::process::{Run, say};
use crate::workspace::Workspace;

/// One benchmark as criterion prints it: the bounds of the confidence interval around the estimate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Group, function and parameter.
    pub name: String,
    /// Lower bound, estimate, upper bound of the time of one iteration.
    pub time: [String; 3],
    /// The estimate as work a second, where the benchmark says how much work it does.
    pub throughput: Option<String>,
}

/// Collects benchmarks from criterion's output, line by line.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Measured>,
    name: Option<String>,
}

impl Table {
    /// What has been collected.
    #[must_use]
    pub fn rows(&self) -> &[Measured] {
        &self.rows
    }

    /// Reads one line; a long name stands on the line before its time.
    pub fn read(&mut self, line: &str) {
        if let Some((name, time)) = three(line, "time:") {
            let before = self.name.take().filter(|_| name.is_empty());
            self.rows.push(Measured { name: before.unwrap_or(name), time, throughput: None });
        } else if let (Some((_, [_, middle, _])), Some(row)) = (three(line, "thrpt:"), self.rows.last_mut()) {
            row.throughput.get_or_insert(middle);
        } else {
            self.name = (!line.starts_with([' ', '\t'])).then(|| line.trim().to_owned());
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| benchmark | low | estimate | high | throughput |\n| --- | --- | --- | --- | --- |")?;
        for row in &self.rows {
            let [low, estimate, high] = &row.time;
            let throughput = row.throughput.as_deref().unwrap_or("");
            writeln!(f, "| {} | {low} | {estimate} | {high} | {throughput} |", row.name)?;
        }
        Ok(())
    }
}

/// Splits `NAME label: [1.0 ms 1.1 ms 1.2 ms]` into the name and the three values with their units.
fn three(line: &str, label: &str) -> Option<(String, [String; 3])> {
    let (name, rest) = line.split_once(label)?;
    let inner = rest.trim().strip_prefix('[')?.split(']').next()?;
    let words: Vec<&str> = inner.split_whitespace().collect();
    let [low, low_unit, middle, middle_unit, high, high_unit] = words.as_slice() else { return None };
    let value = |number: &str, unit: &str| format!("{number} {unit}");
    let values = [value(low, low_unit), value(middle, middle_unit), value(high, high_unit)];
    Some((name.trim().to_owned(), values))
}

/// Runs the benchmarks of one crate, or of all, handing `more` to criterion.
///
/// # Errors
/// When there is no such crate, it has no benchmarks, or Cargo cannot be started.
pub fn run(workspace: &Workspace, only: Option<&str>, more: &[String]) -> Result<bool> {
    let mut run = Run::cargo(["bench", "--locked"]);
    let mut benches = 0_usize;
    for package in workspace.chosen(only)? {
        let named: Vec<_> = package.targets_of("bench").map(|bench| bench.name.clone()).collect();
        if !named.is_empty() {
            run = run.args(["-p", &package.name]);
        }
        benches += named.len();
        run = named.iter().fold(run, |run, bench| run.args(["--bench", bench]));
    }
    if benches == 0 {
        bail!("{} has no benchmarks", only.unwrap_or("no crate of the workspace"));
    }
    if !more.is_empty() {
        run = run.args(["--"]).args(more.iter().cloned());
    }
    describe()?;
    let mut table = Table::default();
    let success = run.tee(|line| table.read(line))?;
    say("");
    describe()?;
    say(format_args!("command:  {run}\n"));
    say(&table);
    if table.rows().is_empty() {
        say("no benchmark printed a time");
    }
    Ok(success && !table.rows().is_empty())
}

/// Prints the processor, the memory, the compiler and the commit.
fn describe() -> Result<()> {
    let cores = thread::available_parallelism()?;
    let cpu = proc_field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = proc_field("/proc/meminfo", "MemTotal").and_then(|kib| in_mib(&kib));
    let memory = memory.map_or_else(|| "unknown".to_owned(), |mib| format!("{mib} MiB"));
    say(format_args!("hardware: {cpu}, {cores} cores, memory {memory}, {}", std::env::consts::OS));
    if let Ok(load) = fs::read_to_string("/proc/loadavg") {
        // What else the machine was doing: a figure taken beside other work is not worth comparing.
        say(format_args!("load:     {}", load.split(' ').next().unwrap_or_default()));
    }
    say(format_args!("compiler: {}", Run::new("rustc", ["--version"]).output()?.trim()));
    let commit = Run::new("git", ["rev-parse", "HEAD"]).output();
    let commit = commit.map_or_else(|_| "none".to_owned(), |commit| commit.trim().to_owned());
    let changed =
        Run::new("git", ["status", "--porcelain"]).output().is_ok_and(|list| !list.trim().is_empty());
    say(format_args!("commit:   {commit}{}", if changed { ", with changes" } else { "" }));
    Ok(())
}

/// Turns the kernel's `24684092 kB` into whole MiB.
fn in_mib(kib: &str) -> Option<u64> {
    Some(kib.strip_suffix(" kB")?.parse::<u64>().ok()? / 1024)
}

fn proc_field(file: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
