//! Values that cross a stage boundary of a pipeline, without loss: as a tree, as text, as a binary frame.
//!
//! ```text
//! Tree<T> ──flatten──► Metadata + Vec<Leaf<T>> ──encode──► frame ──decode──► Frame<'a> ──to_tree──► Tree
//!    ▲                    │              │         head + borrowed payloads     slices of what arrived
//!    └─────unflatten──────┴──────────────┘
//!                         └──encode_metadata──► "0,0|1.0,2" ──decode_metadata──► Metadata
//!
//! Dataflow (stages, named values) ──liveness──► what each boundary carries, in one order on every rank
//! ```
//!
//! # Invariants
//! - No I/O, no thread, no clock, no socket, and no tensor library: `T` stands for a tensor, and nothing
//!   is asked of it.
//! - No loss: [`unflatten`] is the exact inverse of [`flatten`], for empty containers anywhere, keys of
//!   dicts, lists against tuples, and floats by their bits. Whatever is encoded is decoded equal.
//! - No copy of a payload: [`encode`] borrows them, [`decode`] gives slices of its input.
//! - No panic, no recursion and no allocation beyond the input's size and a constant, whatever bytes or
//!   text arrive; every bound has a name in [`limits`].
//! - No hash map: the same value gives the same bytes, and the same stages the same routes, everywhere.
//! - No `bincode` outside of one private module, `codec`.
//!
//! # Examples
//! ```
//! use brigade_wire::{Dialect, Leaf, Tree, decode_metadata, encode_metadata, flatten, unflatten};
//!
//! let output: Tree<&str> = (Tree::Tensor("hidden"), None::<bool>, vec![0.1, f64::NAN]).into();
//! let (metadata, leaves) = flatten(output.clone());
//! assert_eq!(leaves[..2], [Leaf::Tensor("hidden"), Leaf::None]);
//!
//! let text = encode_metadata(&metadata, Dialect::Extended)?;
//! assert_eq!(text, "v1,4|0,0|1,2|2,3|2.0,1|2.1,1");
//! assert_eq!(unflatten(&decode_metadata(&text, Dialect::Extended)?, leaves)?, output);
//! # Ok::<(), Box<dyn std::error::Error>>(())
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
    tree::Tree,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
