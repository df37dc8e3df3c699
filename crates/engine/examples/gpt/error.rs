//! What can go wrong: settings that cannot be used, and training that fails.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use brigade_engine::schedule::{Schedule, ScheduleError};
use brigade_engine::{BuildError, EngineError, WorldError, WorldSizeError};

/// Settings that cannot be used; found before anything is trained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// Some stage would be empty.
    #[error(
        "--stages {stages} is more than the {layers} layers (embedding, {blocks} blocks, head): give at \
         most {layers}, or more --layers"
    )]
    Stages { stages: u32, layers: u32, blocks: u32 },
    /// The heads would not be of one size.
    #[error("--heads {heads} does not divide --width {width}: give a width that is a multiple of the heads")]
    Heads { heads: u32, width: u32 },
    /// A schedule without backward passes.
    #[error("--schedule {schedule} cannot train: give gpipe or 1f1b")]
    ForwardOnly { schedule: Schedule },
    /// A schedule that has other needs.
    #[error("--schedule {schedule} does not fit --stages and --micro-batches")]
    Plan { schedule: Schedule, source: ScheduleError },
    /// Stages that cannot be shared out evenly.
    #[error(
        "--schedule {schedule} puts {per_rank} stages on each thread: --stages {stages} is no multiple of it"
    )]
    StagesPerRank { schedule: Schedule, stages: u32, per_rank: u32 },
    /// A learning rate that is no positive number.
    #[error("--learning-rate {value}: give a number above 0 and at most 1")]
    LearningRate { value: f64 },
    /// A temperature that is no positive number.
    #[error("--temperature {value}: give a number above 0 and at most 100")]
    Temperature { value: f64 },
    /// A text that cannot be read.
    #[error("cannot read the text {}", path.display())]
    TextUnreadable { path: PathBuf, source: io::Error },
    /// A text in another encoding.
    #[error("the text {} is not UTF-8: byte {at} does not fit", path.display())]
    TextEncoding { path: PathBuf, at: usize },
    /// A text that does not fit.
    #[error("the text {} is larger than {bytes_max} bytes: give a part of it", path.display())]
    TextTooLong { path: PathBuf, bytes_max: u64 },
    /// A text without one whole sequence in one of its two parts.
    #[error(
        "the text {} is too short: {found} characters, at least {needed} are needed for --seq {seq}, \
         the last tenth of them for evaluation",
        path.display()
    )]
    TextTooShort { path: PathBuf, found: usize, needed: usize, seq: u32 },
    /// A summary that could not be written in the end.
    #[error("cannot write the summary {}", path.display())]
    SummaryUnwritable { path: PathBuf, source: io::Error },
    /// A model for a larger machine.
    #[error(
        "this model needs at least {needed_mib} MiB of memory, the machine has {total_mib}: give smaller \
         --width, --layers, --seq or --micro-batch"
    )]
    Memory { needed_mib: u128, total_mib: u128 },
    /// Ranks or threads out of range.
    #[error(transparent)]
    World(#[from] WorldSizeError),
    /// Layers, partition or schedule that do not fit together.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Why the program ends without having trained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A rank failed; the engine names it.
    #[error(transparent)]
    Train(#[from] WorldError<RankError>),
    /// The summary could be written before training and cannot now.
    #[error("cannot write the summary {}", path.display())]
    Summary { path: PathBuf, source: io::Error },
    /// The terminal, pipe or file behind the output is gone.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl AppError {
    /// 2 for settings, 1 for everything else.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_)
            | Self::Train(WorldError::Rank { source: RankError::Engine(EngineError::Build(_)), .. }) => {
                ExitCode::from(2)
            }
            _ => ExitCode::FAILURE,
        }
    }
}

/// Why a rank stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The split cannot be described.
    #[error("cannot describe the split")]
    Split(#[from] brigade_engine::partition::PartitionError),
    /// The times of a step cannot be replayed.
    #[error("cannot replay the plan with the measured times: {0}")]
    Replay(Box<brigade_engine::Cause>),
    /// The data ended, which it never does.
    #[error("the data ended at step {step}")]
    DataEnded { step: u32 },
    /// The terminal, pipe or file behind the output is gone.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl From<BuildError> for RankError {
    fn from(error: BuildError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<brigade_engine::StepError> for RankError {
    fn from(error: brigade_engine::StepError) -> Self {
        Self::Engine(error.into())
    }
}

/// An error with its causes, each said once.
pub(crate) fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = source.source();
    }
    text
}
