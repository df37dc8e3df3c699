//! Names the processes of a parallel training run by arithmetic over named axes.

mod coord;
mod error;
mod filter;
mod ids;
mod names;
mod placement;
mod ranks;
mod topology;

pub use coord::Coord;
pub use error::{LookupError, PlacementError, TopologyError};
pub use filter::FilterMatch;
pub use ids::{PipeRank, Rank, Stage};
pub use placement::Placement;
pub use ranks::RankList;
pub use topology::ProcessTopology;
