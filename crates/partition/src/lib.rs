//! Cuts a list of layers into contiguous stages that share the work as evenly as is possible.

mod balanced;
mod chain;
mod cuts;
mod error;
mod layer;
mod method;
mod partition;
mod pattern;
pub mod proof;
mod report;
mod uniform;
mod weight;

pub use balanced::balanced;
pub use cuts::Cuts;
pub use error::{CutsError, MethodError, PartitionError, PatternError, WeightError};
pub use layer::{LayerInfo, LayerProfile};
pub use method::{Number, PartitionMethod, WeightList};
pub use partition::{Options, partition};
pub use pattern::TypePattern;
pub use report::{Report, StageReport};
pub use uniform::{MAX_STAGES, uniform};
pub use weight::Weight;
