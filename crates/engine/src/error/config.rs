//! What can be wrong with a configuration.

use std::path::PathBuf;

/// Why a configuration cannot be used; a path such as `optimizer.adamw.beta_1` says where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The text is not of the asked form, or a value in it is not of the asked type.
    #[error("`{path}`: {message}")]
    Text {
        /// Where in the configuration, `.` for the whole.
        path: String,
        /// The reader's reason, with line and column where it has them.
        message: String,
    },
    /// A value is outside what it may be.
    #[error("`{path}` is {found}: expected {expected}")]
    Value {
        /// Where in the configuration.
        path: String,
        /// The value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// The three sizes of a batch contradict each other.
    #[error(
        "train_batch_size {train_batch_size} is not train_micro_batch_size_per_gpu {micro_batch_size} times gradient_accumulation_steps {accumulation_steps} times {n_replicas} replicas: leave one of the three out, or make them agree"
    )]
    BatchSizes {
        /// Samples of one step over all replicas.
        train_batch_size: u64,
        /// Samples of one micro-batch.
        micro_batch_size: String,
        /// Micro-batches of one step of a replica.
        accumulation_steps: String,
        /// Data-parallel replicas.
        n_replicas: u32,
    },
    /// Something that Brigade does not do.
    #[error("`{path}`: {reason}")]
    Unsupported {
        /// Where in the configuration.
        path: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A group of parameters that no parameter belongs to.
    #[error("`{path}` ({group}) matches no parameter of any stage; there are {parameters}")]
    NoParameter {
        /// Where in the configuration.
        path: String,
        /// What the group asks for.
        group: String,
        /// Names of the parameters.
        parameters: String,
    },
}

/// Why the optimizer's state cannot be taken out or put in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Values are not those of the parameter that they are for.
    #[error("{name} is {expected}, the given values are {found}")]
    Shape {
        /// Global name of the parameter.
        name: String,
        /// Its element type and shape.
        expected: String,
        /// Those of the values.
        found: String,
    },
    /// Burn's record cannot be written or read.
    #[error("the optimizer's state is not as Burn keeps it: {problem}")]
    Record {
        /// Burn's reason.
        problem: String,
    },
}
