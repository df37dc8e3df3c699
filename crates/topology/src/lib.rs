//! Numbers the processes of a parallel training run by arithmetic over named axes.
//!
//! ```text
//!  axes (pipe=4, data=2, ..)               stages ──Placement──► pipeline ranks
//!             │                                                       │
//!      ProcessTopology ── rank ↔ Coord ── groups of an axis           │
//!             │                  │               │                    │
//!        PipelineGrid      rank strings        Nodes              TieGroup
//!   (one rank's neighbours  (file names)  (what crosses       (which ranks share
//!       and groups)                         machines)             a weight)
//! ```
//!
//! # Invariants
//!
//! - Nothing here knows of layers, messages or time, and nothing does I/O.
//! - Nothing is tabulated: no call takes memory or time that grows with the world, save an iterator that
//!   is run to its end.
//! - No order depends on a hash: every rank computes the same lists in the same order.
//! - Nothing panics on any input: what cannot be answered is a typed error.
//!
//! # Examples
//!
//! ```
//! use brigade_topology::{PipelineGrid, Placement, ProcessTopology, Rank, Stage};
//!
//! // 4-rank pipelines, 2 replicas, 8 slices: 64 ranks.
//! let topology = ProcessTopology::pipe_data_model(4, 2, 8)?;
//! let grid = PipelineGrid::new(topology, Rank(21))?;
//! assert_eq!(grid.pipe_group().to_string(), "[5, 21, 37, 53]");
//!
//! // 8 stages on 4 pipeline ranks, there and back.
//! let placement = Placement::v(4)?;
//! assert_eq!(placement.rank_of(Stage(6))?, grid.pipe_rank());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod coord;
mod error;
mod factors;
mod filter;
mod grid;
mod groups;
mod ids;
mod names;
mod nodes;
mod placement;
mod placement_text;
mod ranks;
mod repr;
mod ties;
mod topology;

pub use coord::Coord;
pub use error::{GridError, LookupError, NodeError, PlacementError, TieError, TopologyError};
pub use factors::prime_factors;
pub use filter::FilterMatch;
pub use grid::{GroupKind, PipelineGrid};
pub use ids::{PipeRank, Rank, Stage};
pub use nodes::{AxisOrder, Nodes};
pub use placement::{Direction, Placement};
pub use ranks::RankList;
pub use repr::RankRepr;
pub use ties::{TieGroup, analyze_tie_ranks, tied_modules};
pub use topology::ProcessTopology;
