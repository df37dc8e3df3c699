//! The command line.

use std::path::PathBuf;

use brigade_engine::partition::PartitionMethod;
use brigade_engine::schedule::{Schedule, Shape};
use clap::Parser;
use clap::builder::RangedI64ValueParser;

use crate::error::UsageError;

/// Trains a small character-level GPT through a pipeline of stages, one thread a stage.
///
/// Without --text it learns from the sources and documents of this workspace, so nothing is downloaded.
#[derive(Clone, Debug, Parser)]
#[command(name = "gpt", version, max_term_width = 100)]
pub(crate) struct Options {
    /// Transformer blocks; with the embedding and the head the model has two layers more
    #[arg(long, default_value_t = 4, value_parser = range(1, 1_000), help_heading = "Model")]
    pub(crate) layers: u32,
    /// Width of the model: numbers that stand for one character inside it
    #[arg(long, default_value_t = 128, value_parser = range(1, 65_536), help_heading = "Model")]
    pub(crate) width: u32,
    /// Attention heads; they must divide the width
    #[arg(long, default_value_t = 4, value_parser = range(1, 65_536), help_heading = "Model")]
    pub(crate) heads: u32,
    /// Characters that the model sees at once
    #[arg(long, default_value_t = 64, value_parser = range(1, 65_536), help_heading = "Model")]
    pub(crate) seq: u32,

    /// Rows (pieces of text of --seq characters) of a micro-batch
    #[arg(long, default_value_t = 4, value_parser = range(1, 1 << 20), help_heading = "Training")]
    pub(crate) micro_batch: u32,
    /// Micro-batches of a step: they follow one another through the stages, then the weights change once
    #[arg(long, default_value_t = 8, value_parser = range(1, 65_536), help_heading = "Training")]
    pub(crate) micro_batches: u32,
    /// Training steps
    #[arg(long, default_value_t = 800, value_parser = range(1, 1 << 30), help_heading = "Training")]
    pub(crate) steps: u32,
    /// Highest learning rate of AdamW; a warm-up leads to it and half a cosine down to a tenth of it
    #[arg(long, default_value_t = 2e-3, help_heading = "Training")]
    pub(crate) learning_rate: f64,
    /// Seed of the weights, of the choice of text and of the sample; equal seeds give equal numbers at
    /// any number of stages
    #[arg(long, default_value_t = 1, help_heading = "Training")]
    pub(crate) seed: u64,
    /// File to learn from, UTF-8; the last tenth of it is held back for evaluation [default: the sources
    /// and documents of this workspace]
    #[arg(long, value_name = "FILE", help_heading = "Training")]
    pub(crate) text: Option<PathBuf>,

    /// Stages of the pipeline, at most one a layer; each has a thread of its own
    #[arg(long, default_value_t = 2, value_parser = range(1, 1_002), help_heading = "Pipeline")]
    pub(crate) stages: u32,
    /// Order of the work: gpipe (all forward passes, then all backward passes), 1f1b (a backward pass as
    /// soon as there can be one, which holds fewer micro-batches in memory), or another one that Brigade
    /// knows; with interleaved:2 and the like several stages share a thread
    #[arg(long, default_value_t = Schedule::OneFOneB, help_heading = "Pipeline")]
    pub(crate) schedule: Schedule,
    /// Where to cut the layers: parameters (balance them), uniform (equal numbers of layers),
    /// type:REGEX (balance the layers whose type matches, for instance type:Block), weights:1,4,.. (one
    /// a layer), cuts:0,3,.. (first layer of each stage, and the end)
    #[arg(long, default_value_t = PartitionMethod::Parameters, value_name = "METHOD", help_heading = "Pipeline")]
    pub(crate) partition: PartitionMethod,
    /// Workers of each thread of the pipeline; all of them together should not exceed the cores
    #[arg(long, default_value_t = 1, value_parser = range(1, 1_024), help_heading = "Pipeline")]
    pub(crate) threads: u32,

    /// Steps between evaluations on the text held back; 0 evaluates at the end only
    #[arg(long, default_value_t = 100, value_name = "STEPS", help_heading = "Output")]
    pub(crate) eval_every: u32,
    /// Characters to generate at the end
    #[arg(
        long, default_value_t = 300, value_name = "CHARACTERS", value_parser = range(0, 1 << 20),
        help_heading = "Output"
    )]
    pub(crate) sample: u32,
    /// Text that the generated sample goes on from
    #[arg(long, default_value = "pub fn ", value_name = "TEXT", help_heading = "Output")]
    pub(crate) prompt: String,
    /// Daring of the sample: near 0 takes the likeliest character, 1 draws as the model says
    #[arg(long, default_value_t = 0.7, help_heading = "Output")]
    pub(crate) temperature: f64,
    /// File to write the summary to, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) summary: Option<PathBuf>,
}

fn range(min: i64, max: i64) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(min..=max)
}

impl Options {
    /// Checks what depends on more than one option.
    ///
    /// # Errors
    /// [`UsageError`] for the first that does not fit.
    pub(crate) fn validate(&self) -> Result<(), UsageError> {
        let Self { stages, heads, width, learning_rate, temperature, .. } = *self;
        if stages > self.n_layers() {
            return Err(UsageError::Stages { stages, layers: self.n_layers(), blocks: self.layers });
        }
        self.n_ranks()?;
        if !width.is_multiple_of(heads) {
            return Err(UsageError::Heads { heads, width });
        }
        if !(learning_rate > 0.0 && learning_rate <= 1.0) {
            return Err(UsageError::LearningRate { value: learning_rate });
        }
        if !(temperature > 0.0 && temperature <= 100.0) {
            return Err(UsageError::Temperature { value: temperature });
        }
        Ok(())
    }

    /// Threads of the pipeline: one a stage, or fewer for a schedule with several stages on each.
    ///
    /// # Errors
    /// [`UsageError`] for a schedule that cannot train, or not with these stages and micro-batches.
    pub(crate) fn n_ranks(&self) -> Result<u32, UsageError> {
        let plan = |n_ranks| {
            let shape = Shape { n_ranks, n_micro_batches: self.micro_batches };
            self.schedule.plan(shape).map_err(|source| UsageError::Plan { schedule: self.schedule, source })
        };
        let smallest = plan(1)?;
        if smallest.is_forward_only() {
            return Err(UsageError::ForwardOnly { schedule: self.schedule });
        }
        let per_rank = smallest.placement().n_stages();
        if !self.stages.is_multiple_of(per_rank) {
            let (stages, schedule) = (self.stages, self.schedule);
            return Err(UsageError::StagesPerRank { stages, schedule, per_rank });
        }
        let n_ranks = self.stages / per_rank;
        plan(n_ranks).map(|_| n_ranks)
    }

    /// Embedding, blocks and head.
    pub(crate) fn n_layers(&self) -> u32 {
        self.layers.saturating_add(2)
    }

    /// Characters of one step.
    pub(crate) fn tokens_per_step(&self) -> f64 {
        f64::from(self.micro_batch) * f64::from(self.micro_batches) * f64::from(self.seq)
    }

    /// Learning rate of a step, counted from 0: a straight warm-up over a twentieth of the steps, then
    /// half a cosine down to a tenth.
    pub(crate) fn learning_rate_at(&self, step: u32) -> f64 {
        let n_warm_up = (self.steps / 20).max(1);
        if step < n_warm_up {
            return self.learning_rate * f64::from(step + 1) / f64::from(n_warm_up);
        }
        let n_left = self.steps.saturating_sub(n_warm_up).max(1);
        let done = f64::from(step - n_warm_up) / f64::from(n_left);
        self.learning_rate * (0.55 + 0.45 * (std::f64::consts::PI * done).cos())
    }
}
