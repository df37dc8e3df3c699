//! Cuts a list of layers into contiguous stages that share the work as evenly as is possible.

mod balanced;
mod chain;
mod cuts;
pub mod deepspeed;
mod error;
mod layer;
mod method;
mod numpy;
mod options;
mod partition;
mod pattern;
mod problem;
pub mod proof;
mod rankwise;
mod report;
mod stagewise;
mod uniform;
mod weigh;
mod weight;

pub use balanced::balanced;
pub use cuts::Cuts;
pub use error::{CutsError, MethodError, PartitionError, PatternError, WeightError};
pub use layer::{LayerInfo, LayerProfile};
pub use method::{Number, PartitionMethod, WeightList};
pub use options::{MemoryLimit, Options, Pin};
pub use partition::partition;
pub use pattern::TypePattern;
pub use report::{Report, StageReport};
pub use uniform::{MAX_STAGES, uniform};
pub use weight::Weight;
