//! Values that cross a stage boundary of a pipeline, without loss.
//!
//! ```text
//! Tree<T> ──flatten──► Metadata + Vec<Leaf<T>> ──► one message ──► unflatten ──► Tree<T>
//! ```
//!
//! # Invariants
//! - No I/O, no thread, no clock, no socket, and no tensor library: `T` stands for a tensor.
//! - Nothing is lost: [`unflatten`] is the exact inverse of [`flatten`].
//!
//! # Examples
//! ```
//! use brigade_wire::{Tree, flatten, unflatten};
//!
//! let output: Tree<&str> = (Tree::Tensor("hidden"), None::<bool>, vec![0.1, f64::NAN]).into();
//! let (metadata, leaves) = flatten(output.clone());
//! assert_eq!(metadata.len(), leaves.len());
//! assert_eq!(unflatten(&metadata, leaves)?, output);
//! # Ok::<(), brigade_wire::UnflattenError>(())
//! ```

mod convert;
mod dict;
mod error;
mod flatten;
mod leaf;
pub mod limits;
mod metadata;
mod token;
mod tree;

pub use crate::{
    dict::{Dict, Key},
    error::{ConvertError, DictError, UnflattenError},
    flatten::{flatten, unflatten},
    leaf::{Leaf, LeafKind},
    metadata::Metadata,
    token::Container,
    tree::Tree,
};
