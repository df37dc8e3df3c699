//! The summary at the end, for people and as JSON.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use serde::Serialize;

use crate::error::{AppError, UsageError};
use crate::memory::peak_rss_bytes;
use crate::options::Options;
use crate::train::{Outcome, Step};

/// Settings and results of a run.
///
/// # Units
/// Seconds and bytes by the ending of the name; losses in nats a character; bubbles are shares, 0 to 1.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    layers: u32,
    width: u32,
    heads: u32,
    seq: u32,
    micro_batch: u32,
    micro_batches: u32,
    steps: u32,
    learning_rate: f64,
    seed: u64,
    text: String,
    n_characters_train: usize,
    n_characters_held_back: usize,
    n_symbols: usize,
    stages: u32,
    schedule: String,
    partition: String,
    threads: u32,
    n_parameters: u64,
    split: Vec<StageSplit>,
    loss_first: f64,
    loss_last: f64,
    loss_evaluation: f64,
    /// Median of the steps.
    step_s_median: f64,
    /// Characters of all steps over the time of all steps, evaluations left out.
    tokens_per_s: f64,
    /// Median over the steps of what the plan gives with the times of that step.
    bubble_planned: f64,
    /// Median over the steps.
    bubble_measured: f64,
    /// `null` where the system does not say.
    peak_rss_bytes: Option<u64>,
    sample: String,
}

/// One stage.
#[derive(Debug, Serialize)]
struct StageSplit {
    layers: Range<usize>,
    n_parameters: f64,
}

impl Summary {
    /// Collects what there is to say; the peak of the memory is that of now.
    pub(crate) fn new(options: &Options, outcome: Outcome) -> Self {
        let steps = &outcome.steps;
        let seconds = |step: &Step| step.elapsed.as_secs_f64();
        let total_s: f64 = steps.iter().map(seconds).sum();
        let n_tokens = options.tokens_per_step() * f64::from(options.steps);
        let stages = outcome.split.stages.iter();
        Self {
            layers: options.layers,
            width: options.width,
            heads: options.heads,
            seq: options.seq,
            micro_batch: options.micro_batch,
            micro_batches: options.micro_batches,
            steps: options.steps,
            learning_rate: options.learning_rate,
            seed: options.seed,
            text: outcome.source,
            n_characters_train: outcome.n_characters.0,
            n_characters_held_back: outcome.n_characters.1,
            n_symbols: outcome.n_symbols,
            stages: options.stages,
            schedule: options.schedule.to_string(),
            partition: options.partition.to_string(),
            threads: options.threads,
            n_parameters: outcome.n_parameters,
            split: stages
                .map(|stage| StageSplit { layers: stage.layers.clone(), n_parameters: stage.weight })
                .collect(),
            loss_first: steps.first().map_or(f64::NAN, |step| step.loss),
            loss_last: steps.last().map_or(f64::NAN, |step| step.loss),
            loss_evaluation: outcome.loss_evaluation,
            step_s_median: median(steps, seconds),
            tokens_per_s: if total_s > 0.0 { n_tokens / total_s } else { 0.0 },
            bubble_planned: median(steps, |step| step.bubble_planned),
            bubble_measured: median(steps, |step| step.bubble_measured),
            peak_rss_bytes: peak_rss_bytes(),
            sample: outcome.sample,
        }
    }

    /// Writes the summary as JSON.
    ///
    /// # Errors
    /// [`AppError::Summary`] when the file cannot be written any more.
    pub(crate) fn write(&self, path: &Path) -> Result<(), AppError> {
        let failed = |source| AppError::Summary { path: path.to_owned(), source };
        let mut json = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        json.push('\n');
        fs::write(path, json).map_err(failed)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sample:\n{}\n", self.sample)?;
        writeln!(
            f,
            "model       {} blocks, width {}, {} heads, {} characters, {} parameters",
            self.layers, self.width, self.heads, self.seq, self.n_parameters
        )?;
        let last = usize::try_from(self.layers).unwrap_or(usize::MAX).saturating_add(1);
        for (stage, split) in self.split.iter().enumerate() {
            let StageSplit { layers, n_parameters } = split;
            writeln!(f, "stage {stage:<5} {}: {n_parameters:.0} parameters", name_layers(layers, last))?;
        }
        writeln!(
            f,
            "schedule    {}, {} micro-batches of {} rows, cut by {}, {} worker(s) a thread",
            self.schedule, self.micro_batches, self.micro_batch, self.partition, self.threads
        )?;
        writeln!(
            f,
            "step        {:.1} ms (median of {}), {:.0} tokens/s",
            self.step_s_median * 1e3,
            self.steps,
            self.tokens_per_s
        )?;
        writeln!(
            f,
            "bubble      {:.1} % measured, {:.1} % by the plan with the measured times",
            self.bubble_measured * 100.0,
            self.bubble_planned * 100.0
        )?;
        match self.peak_rss_bytes {
            Some(bytes) => writeln!(f, "memory      {} MiB at the peak", bytes >> 20)?,
            None => writeln!(f, "memory      unknown")?,
        }
        write!(
            f,
            "loss        {:.3} at the start, {:.3} at the end, {:.3} on held-back text (nats a character)",
            self.loss_first, self.loss_last, self.loss_evaluation
        )
    }
}

/// Finds out before training whether the summary can be written, and leaves no file behind.
///
/// # Errors
/// [`UsageError::SummaryUnwritable`].
pub(crate) fn check_writable(path: &Path) -> Result<(), UsageError> {
    let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().write(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    };
    opened.map_err(|source| UsageError::SummaryUnwritable { path: path.to_owned(), source })
}

/// Layers in words; layer 0 is the embedding and `last` the head.
fn name_layers(layers: &Range<usize>, last: usize) -> String {
    let n_blocks = layers.clone().filter(|&layer| layer != 0 && layer != last).count();
    let mut names = Vec::new();
    if layers.contains(&0) {
        names.push("embedding".to_owned());
    }
    match n_blocks {
        0 => {}
        1 => names.push("1 block".to_owned()),
        n => names.push(format!("{n} blocks")),
    }
    if layers.contains(&last) {
        names.push("head".to_owned());
    }
    if names.is_empty() { "no layer".to_owned() } else { names.join(", ") }
}

/// The middle value; the lower of the two middle ones for an even number, and 0 for none.
fn median(steps: &[Step], value: impl Fn(&Step) -> f64) -> f64 {
    let mut values: Vec<f64> = steps.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}
