//! Cuts a list of layers into contiguous stages that share the work as evenly as is possible.
//!
//! ```text
//!  layers (type, parameters, profile)     method ("type:block", "profile", ..)
//!                 │                          │
//!                 └───────► weights ◄────────┘
//!                              │  whole numbers: sums are exact
//!            ┌─────────────────┼────────────────────┐
//!      stages alike       stages differ       ranks hold several
//!      balanced: O(n)     stagewise: exact    rankwise: exact within
//!      a step, exact      table               a number of steps
//!            └─────────────────┼────────────────────┘
//!                              ▼
//!                            Cuts ──► Report (table, serde)
//! ```
//!
//! # Invariants
//!
//! - Nothing here knows of ranks' places, tensors or messages, and nothing does I/O or reads a clock: what
//!   was measured comes in as numbers.
//! - No stage is left empty unless that is asked for and unavoidable.
//! - The same input gives the same cuts on every rank and every machine.
//! - Nothing panics on any input: what cannot be cut is a typed error.
//!
//! # Examples
//!
//! ```
//! use brigade_partition::{LayerInfo, Options, Report, partition};
//!
//! let mut layers = vec![LayerInfo::new("Embedding", 38_597_376)];
//! layers.extend(vec![LayerInfo::new("Block", 7_087_872); 12]);
//! layers.push(LayerInfo::new("Head", 38_597_376));
//!
//! let method = "parameters".parse()?;
//! let cuts = partition(&method, &layers, 4, &Options::default())?;
//! assert_eq!(cuts.boundaries(), [0, 1, 7, 13, 14]);
//! let report = Report::of(&method, &layers, &cuts, &Options::default())?;
//! assert!(report.imbalance < 1.05);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub use pattern::{PATTERN_BYTES_MAX, TypePattern};
pub use report::{Report, StageReport};
pub use uniform::{MAX_STAGES, uniform};
pub use weight::Weight;
