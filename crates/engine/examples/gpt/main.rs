//! Trains a small character-level GPT through a pipeline, and says how well the pipeline was used.
//!
//! ```text
//! cargo run --release --example gpt
//! cargo run --release --example gpt -- --stages 1 --steps 50
//! cargo run --release --example gpt -- --help
//! ```
//! Exit code 0 when it has trained, 1 when training failed, 2 for settings that cannot be used.

mod corpus;
mod error;
mod memory;
mod model;
mod options;
mod progress;
mod sample;
mod summary;
mod train;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::corpus::Corpus;
use crate::error::{AppError, describe};
use crate::options::Options;
use crate::summary::Summary;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when the standard error is closed.
            let _ = writeln!(io::stderr(), "error: {}", describe(&error));
            error.exit_code()
        }
    }
}

fn run(options: Options) -> Result<(), AppError> {
    options.validate()?;
    let corpus = Corpus::load(options.text.as_deref(), options.seq)?;
    memory::check_fits(&options, corpus.n_symbols())?;
    if let Some(path) = &options.summary {
        summary::check_writable(path)?;
    }
    writeln!(io::stdout(), "{corpus}")?;
    let outcome = train::train(&options, corpus)?;
    let summary = Summary::new(&options, outcome);
    writeln!(io::stdout(), "{summary}")?;
    match &options.summary {
        Some(path) => summary.write(path),
        None => Ok(()),
    }
}
