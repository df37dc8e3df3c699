//! What can go wrong, one enum an operation.

mod config;
mod layers;
mod skip;
mod stages;
mod step;
mod tie;

use std::fmt;
use std::time::Duration;

use brigade_partition::{MethodError, PartitionError};
use brigade_schedule::{CheckError, LowerError, ScheduleError};
use brigade_topology::{Rank, TopologyError};

use crate::layer::LayerLabel;
use crate::tensor::RANK_MAX;

pub use config::{ConfigError, StateError};
pub use layers::{LayerTypeError, TieError};
pub use skip::SkipError;
pub use stages::{StageError, StagesError};
pub(crate) use step::guard;
pub use step::{Cause, Site, StepError};
pub use tie::TieProblem;

/// Why a tensor could not change form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The rank is outside what Brigade carries.
    #[error("a tensor of rank {rank} cannot be carried: reshape it to a rank of 1 to {RANK_MAX}")]
    Rank {
        /// The tensor's rank.
        rank: usize,
    },
    /// The tensor is not of the asked type.
    #[error(
        "expected a {expected_kind} tensor of rank {expected_rank}, found a {kind} tensor of rank {rank}"
    )]
    Mismatch {
        /// Asked rank.
        expected_rank: usize,
        /// Asked kind.
        expected_kind: &'static str,
        /// Actual rank.
        rank: usize,
        /// Actual kind.
        kind: &'static str,
    },
    /// A gradient does not fit the tensor that it is the gradient of.
    #[error("the gradient is {gradient}, its tensor is {output}: both must be the same")]
    GradientShape {
        /// Dtype and shape of the tensor.
        output: String,
        /// Dtype and shape of the gradient.
        gradient: String,
    },
}

/// Why a value and a tree do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The tree is built otherwise than the type that should come out of it.
    #[error("expected {expected}, found {found}")]
    Structure {
        /// What the type needs.
        expected: &'static str,
        /// What the tree holds.
        found: String,
    },
    /// A tensor is of another rank or kind.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The same, somewhere inside a structure.
    #[error("at `{path}`: {source}")]
    Inside {
        /// Fields, keys and places from the outside in, with dots between them.
        path: String,
        /// What does not fit there.
        source: Box<Self>,
    },
}

impl ValueError {
    /// The error one level further out: `step` is the field, key or place where it happened.
    #[must_use]
    pub fn inside(self, step: impl fmt::Display) -> Self {
        match self {
            Self::Inside { path, source } => Self::Inside { path: format!("{step}.{path}"), source },
            other => Self::Inside { path: step.to_string(), source: Box::new(other) },
        }
    }
}

/// Why a pipeline module cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The layer list is empty.
    #[error("the layer list is empty: add at least one layer")]
    NoLayers,
    /// A topology holds another number of ranks than the world.
    #[error("the topology {topology} has {ranks} ranks, the world has {world}: make them equal")]
    WorldSize {
        /// The topology as text.
        topology: String,
        /// Its number of ranks.
        ranks: u64,
        /// Number of ranks of the world.
        world: usize,
    },
    /// The topology has an axis besides `pipe` and `data` that is larger than one.
    #[error("axis `{axis}` has size {size}: only `pipe` and `data` may be larger than 1 in this version")]
    Axis {
        /// The axis.
        axis: String,
        /// Its size.
        size: u64,
    },
    /// The schedule made a plan for another number of ranks.
    #[error("the schedule gave a plan for {plan} pipeline ranks, the topology has {topology}")]
    PlanRanks {
        /// Pipeline ranks of the plan.
        plan: usize,
        /// Pipeline ranks of the topology.
        topology: usize,
    },
    /// The schedule made a plan for another number of micro-batches.
    #[error(
        "the schedule gave a plan for {plan} micro-batches, the module has {module}: set \
             `.micro_batches({plan})`, or give a schedule that heeds the shape it is asked for"
    )]
    PlanMicroBatches {
        /// Micro-batches of the plan.
        plan: u32,
        /// Micro-batches of the module.
        module: u32,
    },
    /// A plan does not do what it is for.
    #[error("the {wanted} plan {found}: give a schedule for {wanted}")]
    PlanKind {
        /// What the plan is for.
        wanted: &'static str,
        /// What is wrong with the plan.
        found: &'static str,
    },
    /// A layer's constructor panicked.
    #[error("{layer} panicked while it was built: {message}")]
    LayerPanicked {
        /// The layer.
        layer: LayerLabel,
        /// The panic's message.
        message: String,
    },
    /// A layer has a parameter of a rank that Brigade cannot carry.
    #[error("{layer} has a parameter of rank {rank}: use a rank of 1 to {RANK_MAX}")]
    ParameterRank {
        /// The layer.
        layer: LayerLabel,
        /// The parameter's rank.
        rank: usize,
    },
    /// Another layer was being built all the time.
    #[error(
        "layer {layer} waited {waited:?} for another layer to be built: let builders return soon and build no pipeline in them"
    )]
    Busy {
        /// Global index of the layer.
        layer: usize,
        /// How long it waited.
        waited: Duration,
    },
    /// Two layers have one parameter.
    #[error(
        "layers {first} and {layer} have one parameter (clones of one module keep its ids): build each layer anew"
    )]
    SharedParameter {
        /// Global index of the first layer.
        first: usize,
        /// Global index of the other.
        layer: usize,
    },
    /// Two layers have one name.
    #[error("layers {first} and {second} have the name `{name}`: give every layer another name, or none")]
    LayerName {
        /// Global index of the first layer.
        first: usize,
        /// Global index of the other.
        second: usize,
        /// Their name.
        name: String,
    },
    /// A layer's name is empty, or is what another layer is called by its number.
    #[error(
        "layer {layer} has the name `{name}`: a name has a letter, and layers without one are called \
             by their number, as in `layer_007`"
    )]
    NotAName {
        /// Global index of the layer.
        layer: usize,
        /// The name.
        name: String,
    },
    /// A layer that ties parameters finds no module for it.
    #[error(transparent)]
    TieBuilder(Box<TieError>),
    /// The layers of a list that was made at run time do not fit together.
    #[error(transparent)]
    LayerTypes(Box<LayerTypeError>),
    /// Layers share parameters in a way that cannot be.
    #[error("tie `{key}`: layer {layer} {problem}")]
    Tie {
        /// The tie's key.
        key: String,
        /// Global index of the layer.
        layer: usize,
        /// What is wrong.
        problem: Box<TieProblem>,
    },
    /// A layer's builder makes parameters of other shapes each time.
    #[error("a copy of a shared parameter does not fit: build a layer the same way each time ({0})")]
    Copy(TensorError),
    /// A setting names a layer that is not there.
    #[error("no layer has the type or name {name:?}, which is to {wanted}: look at the layer list")]
    UnknownLayer {
        /// The name.
        name: String,
        /// What should happen to the layer.
        wanted: &'static str,
    },
    /// A learning rate that is not a number or is negative.
    #[error("learning rate {value}: it must be a finite number of at least 0")]
    LearningRate {
        /// The given value.
        value: f64,
    },
    /// The optimizer already has states.
    #[error("optimizer states cannot be sharded after step {steps}: say so before the first one")]
    ShardingLate {
        /// Steps so far.
        steps: u64,
    },
    /// A saved training state and this engine do not both have a loss scale.
    #[error(
        "this engine has {}loss scale, the saved state has {}: use the precision of the saved run",
        if *here { "a " } else { "no " }, if *there { "one" } else { "none" }
    )]
    LossScaleState {
        /// Whether this engine has one.
        here: bool,
        /// Whether the saved state has one.
        there: bool,
    },
    /// A bound for gradients that is not above zero.
    #[error("gradients cannot be clipped at {bound}: give a number above 0")]
    Clipping {
        /// The given bound.
        bound: f64,
    },
    /// The stashed values of the list and their users do not fit together.
    #[error("the named values of the layers do not fit: {0}")]
    Skip(#[from] Box<SkipError>),
    /// Stages over named values do not make a model.
    #[error(transparent)]
    Stages(#[from] StagesError),
    /// Measurements that are not of these layers.
    #[error("the measurements are not of this list: {problem}; measure it with `Layers::profile`")]
    Profile {
        /// Where they differ.
        problem: String,
    },
    /// The layers cannot be cut as asked.
    #[error("the layers cannot be cut into stages: {0}")]
    Partition(#[from] PartitionError),
    /// The grid of ranks is wrong.
    #[error("the process topology is wrong: {0}")]
    Topology(#[from] TopologyError),
    /// The schedule refuses these numbers.
    #[error("the schedule cannot be made: {0}")]
    Schedule(#[from] ScheduleError),
    /// The plan cannot be turned into instructions.
    #[error("the plan cannot be lowered to instructions: {0}")]
    Lower(#[from] LowerError),
    /// The plan is unsound.
    #[error("the plan does not pass the checker: {0}")]
    Check(#[from] CheckError),
}

impl From<TieError> for BuildError {
    fn from(error: TieError) -> Self {
        Self::TieBuilder(Box::new(error))
    }
}

impl From<LayerTypeError> for BuildError {
    fn from(error: LayerTypeError) -> Self {
        Self::LayerTypes(Box::new(error))
    }
}

/// Why the layers of a list cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The list cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A layer failed.
    #[error(transparent)]
    Run(#[from] Cause),
}

/// Why a world gave no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError<E> {
    /// A rank's program returned an error; it is the first of all ranks.
    #[error("rank {rank} failed: {source}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// Its error.
        source: E,
    },
    /// A rank's program panicked outside the engine.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: Rank,
        /// The panic's message.
        message: String,
    },
    /// Some ranks did not come back after another had failed.
    #[error("{n_ranks} rank(s), first {rank}, did not end within {waited:?} after the failure: {first}")]
    Stuck {
        /// The first of them.
        rank: Rank,
        /// How many.
        n_ranks: usize,
        /// How long they were given.
        waited: Duration,
        /// The failure.
        first: StepError,
    },
    /// A thread or its worker pool could not be started.
    #[error("rank {rank} could not be started: {message}")]
    Start {
        /// The rank.
        rank: Rank,
        /// The system's message.
        message: String,
    },
}

/// Why a world cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldSizeError {
    /// No rank, or more than one process can hold.
    #[error("a world of {ranks} ranks: give 1 to {max}")]
    Size {
        /// The asked number.
        ranks: usize,
        /// The largest number.
        max: usize,
    },
    /// No worker thread.
    #[error("{threads} worker threads a rank: give 1 to {max}")]
    Threads {
        /// The asked number.
        threads: usize,
        /// The largest number.
        max: usize,
    },
}

/// Any error of the engine, for programs that need only one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A pipeline cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A partition method is written wrong.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// A configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The optimizer's state cannot be taken out or put in.
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<LayerTypeError> for EngineError {
    fn from(error: LayerTypeError) -> Self {
        Self::Build(error.into())
    }
}

/// The message of a caught panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}
