//! Pipelines from ready stages over named values: the way of Slapo.

mod engine;
mod named;
mod wiring;
mod wrapper;

pub use engine::{PipelineEngineOptions, ScheduleMetadata, pipeline_engine, pipeline_module};
pub use named::NamedValues;
pub use wrapper::{StageWrapper, StageWrapperBuilder};
