//! Pipeline-parallel training for Burn: layers in stages, proved schedules, and the engine that runs them.
//!
//! ```text
//! Layers ──partition──► cuts ──placement──► this rank's stages ──────────┐
//! schedule ──► Plan ──lower──► Program ──check──► CheckedPlan            │
//!                                                     │                  ▼
//!                 one thread a rank: PipelineEngine ──┴──► interpreter: forward, backward, step
//!                                                              ▲    │
//!                        messages of the neighbours ◄──links───┘◄───┘
//! ```
//!
//! # Invariants
//! - No plan runs that [`brigade_schedule::check()`] has not passed.
//! - No tensor with an autodiff graph leaves its thread.
//! - No wait is without a deadline, and no queue without a capacity.
//! - No number depends on how many stages there are: gradients and losses add up in micro-batch order.
//! - The interpreter knows no schedule by name.
//!
//! # Examples
//! ```
//! let ranks = brigade_engine::World::local(2)?.run(|rank| Ok::<_, std::fmt::Error>(rank.rank().index()))?;
//! assert_eq!(ranks, [0, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! A whole training loop stands at [`PipelineEngine`].

mod any_layer;
mod clipping;
pub mod config;
mod data;
mod engine;
mod erased;
mod error;
mod evaluation;
mod gradients;
mod hub;
mod inject;
mod interpreter;
mod layer;
mod layers;
mod loss;
mod message;
mod module;
pub mod nn;
mod normaliser;
pub mod optimizer;
pub mod random;
mod recompute;
mod reduce;
mod report;
mod route;
mod skip;
mod split;
mod stage;
pub mod stages;
mod tensor;
mod tie;
mod timing;
mod value;
mod world;

pub use any_layer::AnyLayer;
pub use brigade_partition as partition;
pub use brigade_schedule as schedule;
pub use brigade_topology as topology;
pub use brigade_wire as wire;
pub use clipping::GradientClipping;
pub use config::{ConfigWarning, DynamicLossScale, LossScale, LossScaleState, Precision, TrainConfig};
pub use data::{
    DataItem, Merge, MergeError, Sampler, SamplerConfig, SamplerError, SamplerState, SplitError, Tail,
    merge_pieces, piece_sizes, split_batch,
};
pub use engine::{DataOn, PipelineEngine, TrainingState};
pub use error::{
    BuildError, Cause, ConfigError, EngineError, LayerTypeError, ProfileError, Site, SkipError, StageError,
    StagesError, StepError, TensorError, TieError, TieProblem, ValueError, WorldError, WorldSizeError,
};
pub use evaluation::{EvalOptions, Evaluation, Outputs, OutputsOn};
pub use gradients::NamedTensor;
pub use inject::backward_with;
pub use layer::{Layer, LayerError, LayerLabel};
pub use layers::{LayerList, LayerSpec, Layers, TiedLayerSpec};
pub use loss::{Loss, MetricNumber, Metrics};
pub use module::{
    BASE_SEED_DEFAULT, LayerSummary, ModuleSummary, ParameterCount, PipelineModule, PipelineModuleBuilder,
    ProfileOptions, StageSummary,
};
pub use normaliser::Normaliser;
pub use optimizer::{AdamWSettings, FusedAdamW, LearningRateSchedule, OptimizerConfig, ParameterGroup};
pub use recompute::{Recompute, Segment};
pub use reduce::OptimizerSharding;
pub use report::{EvalReport, Metric, Note, RankTimes, StepReport, StepTimes};
pub use skip::SkipRoute;
pub use stages::{NamedValues, ScheduleMetadata, StageWrapper, pipeline_engine, pipeline_module};
pub use tensor::{AnyTensor, LeafRole, RANK_MAX};
pub use tie::Tie;
pub use timing::{Spent, StageTimes};
pub use value::{Fields, Value};
pub use world::{DEADLINE_DEFAULT, RANKS_MAX, RankHandle, THREADS_MAX, World};
