//! `cargo xtask`: the automation of the workspace, from the command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use xtask::workspace::Workspace;
use xtask::{bench, cases, ci, fuzz, tidy};

/// Automation of the Brigade workspace. Each command prints the commands that it runs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs fmt, tidy, clippy, test, doc and deny, cheapest first
    Ci {
        /// Counts a step that a missing tool keeps from running as failed (also: XTASK_NO_SKIP=1)
        #[arg(long)]
        no_skip: bool,
    },
    /// Checks crate boundaries, purity, file and test layout, documents and test data
    Tidy,
    /// Runs the golden tests of all crates and shows how many cases each list held
    Golden {
        /// Folder of the data [default: testdata/golden]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Runs the parity tests against PyTorch's numbers
    Parity {
        /// Folder of the data [default: testdata/parity]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Runs the whole transparency corpus, of which CI runs a small part: all models, schedules and sizes
    Conform,
    /// Fuzzes one target; lists the targets when none is named
    Fuzz {
        /// Name of the target
        target: Option<String>,
        /// How long, in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Runs the benchmarks and prints hardware, versions and command with the table
    Bench {
        /// One crate, such as `schedule` or `brigade-schedule`
        #[arg(long = "crate", value_name = "CRATE")]
        only: Option<String>,
        /// Arguments for criterion, such as a name filter or --quick
        #[arg(last = true)]
        more: Vec<String>,
    },
    /// Runs the property tests optimised, with many cases
    Proptest {
        /// Cases of each property
        #[arg(long, default_value_t = 10_000)]
        cases: u32,
        /// One crate, such as `schedule` or `brigade-schedule`
        #[arg(long = "crate", value_name = "CRATE")]
        only: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nothing is left to do when the standard error is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<bool> {
    // A folder given by the user is meant from where they stand; everything else runs in the root.
    let here = std::env::current_dir().context("finding the current folder")?;
    let from_here = |dir: Option<PathBuf>| dir.map(|dir| here.join(dir));
    let workspace = Workspace::load()?;
    std::env::set_current_dir(&workspace.root).context("entering the root of the workspace")?;
    match task {
        Task::Ci { no_skip } => {
            let strict = std::env::var("XTASK_NO_SKIP").is_ok_and(|value| value == "1");
            ci::run(no_skip || strict)
        }
        Task::Tidy => tidy::run(),
        Task::Golden { dir } => cases::golden(&workspace, from_here(dir)),
        Task::Parity { dir } => cases::parity(&workspace, from_here(dir)),
        Task::Conform => cases::conform(&workspace),
        Task::Fuzz { target, seconds } => fuzz::run(&workspace, target.as_deref(), seconds),
        Task::Bench { only, more } => bench::run(&workspace, only.as_deref(), &more),
        Task::Proptest { cases, only } => cases::properties(&workspace, cases, only.as_deref()),
    }
}
