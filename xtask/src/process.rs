//! Runs other programs: prints each command as it can be typed, keeps our own Cargo variables out of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Prints one line on the standard output; a closed output is not our failure.
pub fn say(line: impl fmt::Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A command to run: its `Display` is the line that a person would type in the root of the workspace.
#[derive(Debug, Clone)]
pub struct Run {
    program: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    dir: Option<PathBuf>,
}

impl Run {
    /// A program with its arguments.
    pub fn new<S: Into<String>>(program: &str, args: impl IntoIterator<Item = S>) -> Self {
        Self {
            program: program.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            dir: None,
        }
    }

    /// A Cargo command.
    pub fn cargo<S: Into<String>>(args: impl IntoIterator<Item = S>) -> Self {
        Self::new("cargo", args)
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable for the command.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Runs the command in another folder.
    #[must_use]
    pub fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Prints the command, runs it with our own input and output, and says whether it succeeded.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn status(&self) -> Result<bool> {
        say(format_args!("$ {self}"));
        let status = self.command().status().with_context(|| format!("starting `{self}`"))?;
        Ok(status.success())
    }

    /// As [`Run::status`], handing each line of its standard output to `each` after printing it.
    ///
    /// # Errors
    /// When the program cannot be started or its output cannot be read.
    pub fn tee(&self, mut each: impl FnMut(&str)) -> Result<bool> {
        say(format_args!("$ {self}"));
        let starting = || format!("starting `{self}`");
        let mut child = self.command().stdout(Stdio::piped()).spawn().with_context(starting)?;
        if let Some(stdout) = child.stdout.take() {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).context("reading its output")? > 0 {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end_matches(['\n', '\r']);
                say(text);
                each(text);
                line.clear();
            }
        }
        Ok(child.wait().context("waiting for it")?.success())
    }

    /// Prints and runs the command, and ends it when it takes longer than `limit`: then it has not succeeded.
    ///
    /// # Errors
    /// When the program cannot be started or waited for.
    pub fn status_within(&self, limit: Duration) -> Result<bool> {
        say(format_args!("$ {self}"));
        let mut child = self.command().spawn().with_context(|| format!("starting `{self}`"))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().context("waiting for it")? {
                return Ok(status.success());
            }
            if start.elapsed() > limit {
                child.kill().context("ending it")?;
                child.wait().context("waiting for its end")?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs the command without printing anything and returns its standard output.
    ///
    /// # Errors
    /// When the program cannot be started or fails; the error carries what it wrote.
    pub fn output(&self) -> Result<String> {
        let output = self.command().output().with_context(|| format!("starting `{self}`"))?;
        if !output.status.success() {
            bail!("`{self}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether the command can be started and succeeds; nothing is printed.
    #[must_use]
    pub fn works(&self) -> bool {
        self.output().is_ok()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(name)) {
            command.env_remove(name);
        }
        command.args(&self.args).envs(&self.env);
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(dir) = &self.dir {
            write!(f, "cd {} && ", quoted(&dir.display().to_string()))?;
        }
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// Variables that `cargo run` set for xtask itself: build scripts that watch them would run again under us.
fn is_ours(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_MANIFEST_")
        || matches!(
            &*name,
            "CARGO" | "CARGO_BIN_NAME" | "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR"
        )
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
