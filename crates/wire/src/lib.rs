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
mod tree;

mod flatten;
mod leaf;
mod metadata;
mod token;
mod validate;

mod liveness;
mod names;
mod text;

mod codec;
mod dtype;
pub mod frame;
mod header;
mod shape;

mod error;
pub mod limits;

pub use crate::{
    dict::{Dict, Key},
    dtype::DType,
    error::{
        ConvertError, DTypeError, DecodeError, DecodeTextError, DictError, EncodeError, EncodeTextError,
        Inexpressible, LeafError, LivenessError, MetadataError, TensorError, UnflattenError,
    },
    flatten::{flatten, unflatten},
    frame::{
        DecodeOptions, EncodeOptions, EncodedFrame, Frame, FrameLeaves, PayloadCheck, TensorView, decode,
        encode, encode_into, frame_bytes,
    },
    header::{Direction, Header, Tag},
    leaf::{Leaf, LeafKind},
    limits::{Limit, LimitError},
    liveness::{Argument, Dataflow, Edge, Liveness, Place, Source, StageSignature, liveness},
    metadata::Metadata,
    names::{TensorText, flat_and_name, nested_list_string},
    shape::Shape,
    text::{Dialect, decode_metadata, encode_metadata},
    token::Container,
    tree::Tree,
};
