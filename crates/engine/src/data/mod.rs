//! Data on its way into the pipeline and out of it: micro-batches, their ids, splitting, merging and sampling.

mod item;
mod pieces;
mod sampler;

pub use self::item::DataItem;
pub use self::pieces::{Merge, MergeError, SplitError, merge_pieces, piece_sizes, split_batch};
pub(crate) use self::pieces::{cut, merge, n_samples};
pub use self::sampler::{Sampler, SamplerConfig, SamplerError, SamplerState, Tail};
