//! Error types, one for each operation.

mod frame;

use thiserror::Error;

use crate::{dict::Key, leaf::LeafKind, limits::LimitError, liveness::Place};

pub use frame::{DecodeError, EncodeError, LeafError, TensorError};

/// Why a number is no element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DTypeError {
    /// DeepSpeed's table has no such number.
    #[error("DeepSpeed's dtype table has ids 0 to 11, not {id}")]
    DeepSpeedId {
        /// The number.
        id: u8,
    },
}

/// Why entries are no dict.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DictError {
    /// Two entries have one key.
    #[error("key `{key}` stands twice; every key of a dict must differ")]
    DuplicateKey {
        /// The key.
        key: Key,
    },
}

/// Why a value is not the tree, or a tree not the value, that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// An integer that neither an `i64` nor a `u64` holds.
    #[error("integer {value} fits neither i64 nor u64; send it as text or bytes")]
    TooWide {
        /// The integer in decimal.
        value: String,
    },
    /// The tree is of another kind.
    #[error("expected a {expected}, got a {actual}")]
    Kind {
        /// What was asked for.
        expected: &'static str,
        /// What the tree is.
        actual: &'static str,
    },
    /// The list or tuple has another length.
    #[error("expected {expected} items, got {actual}")]
    Length {
        /// Items asked for.
        expected: usize,
        /// Items there.
        actual: usize,
    },
}

/// Why leaves do not fit the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnflattenError {
    /// The number of leaves differs.
    #[error("metadata describes {expected} leaves, got {actual}")]
    LeafCount {
        /// Leaves that the metadata describes.
        expected: usize,
        /// Leaves given.
        actual: usize,
    },
    /// A leaf is of another kind than the metadata says.
    #[error("leaf {index} (path `{path}`) must be a {expected}, got a {actual}")]
    LeafKind {
        /// Position among the leaves.
        index: usize,
        /// Where the leaf stands in the tree, by positions.
        path: String,
        /// The kind in the metadata.
        expected: LeafKind,
        /// The kind of the leaf.
        actual: LeafKind,
    },
}

/// Why bytes are no metadata.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The bytes end inside a token or a container.
    #[error("metadata ends too early")]
    Truncated,
    /// A byte that starts no token.
    #[error("unknown token {code} at byte {offset} of the metadata")]
    UnknownToken {
        /// Where the token starts.
        offset: usize,
        /// The byte.
        code: u8,
    },
    /// A number that is too long, too large or not in its shortest form.
    #[error("malformed number in the token at byte {offset} of the metadata")]
    Varint {
        /// Where the token starts.
        offset: usize,
    },
    /// A key that is not UTF-8.
    #[error("dict key at byte {offset} of the metadata is not UTF-8")]
    Utf8 {
        /// Where the token starts.
        offset: usize,
    },
    /// A key outside of a dict or after another key.
    #[error("dict key in the wrong place, at byte {offset} of the metadata")]
    StrayKey {
        /// Where the token starts.
        offset: usize,
    },
    /// A container closes that did not open, or a dict closes after a key.
    #[error("container end in the wrong place, at byte {offset} of the metadata")]
    StrayClose {
        /// Where the token starts.
        offset: usize,
    },
    /// A value of a dict without a key before it.
    #[error("dict value without a key, at byte {offset} of the metadata")]
    MissingKey {
        /// Where the token starts.
        offset: usize,
    },
    /// Two entries of one dict have one key.
    #[error("key `{key}` stands twice in one dict of the metadata")]
    DuplicateKey {
        /// The key.
        key: Key,
    },
    /// Bytes follow the tree.
    #[error("{n_bytes} bytes follow the metadata of the tree")]
    Trailing {
        /// How many.
        n_bytes: usize,
    },
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// What Slapo's text cannot express, or Slapo does not give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Inexpressible {
    /// The top is a leaf.
    BareLeaf,
    /// The top is an empty tuple: Slapo sends an empty text and fails on receipt.
    EmptyTop,
    /// A list, which arrives as a tuple.
    List,
    /// A dict, whose keys are dropped.
    Dict,
    /// A string leaf, which Slapo refuses.
    Str,
    /// A bytes leaf, which Slapo refuses.
    Bytes,
    /// The last item of a tuple holds no leaf and vanishes.
    LastEmpty,
    /// More empty tuples than [`MAX_IMPLIED`](crate::limits::MAX_IMPLIED).
    TooManyEmpty,
}

impl std::fmt::Display for Inexpressible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BareLeaf => "a bare leaf",
            Self::EmptyTop => "an empty tree",
            Self::List => "the list",
            Self::Dict => "the dict",
            Self::Str => "the string",
            Self::Bytes => "the bytes",
            Self::LastEmpty => "the last, empty item",
            Self::TooManyEmpty => "one more empty tuple",
        })
    }
}

/// Why metadata cannot be written as text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeTextError {
    /// Slapo would lose it, and only Slapo's form was allowed.
    #[error("Slapo's text cannot express {reason} at `{path}`; use Dialect::Extended")]
    Inexpressible {
        /// Where, by positions.
        path: String,
        /// What.
        reason: Inexpressible,
    },
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Why a text is no metadata.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeTextError {
    /// An entry is not `path,code`.
    #[error("entry {index} is not of the form `path,code`")]
    Entry {
        /// Position among the entries.
        index: usize,
    },
    /// A code that does not exist.
    #[error("entry {index} has an unknown type code")]
    Code {
        /// Position among the entries.
        index: usize,
    },
    /// Code 3 or 4 in Slapo's own form.
    #[error("entry {index} is a sequence packed into one tensor (code 3 or 4), which is never sent")]
    Packed {
        /// Position among the entries.
        index: usize,
    },
    /// A path that is not made of positions and keys in their only spelling.
    #[error("entry {index} has a malformed path")]
    Path {
        /// Position among the entries.
        index: usize,
    },
    /// A path that stands before or at the same place as the one before it, or skips a position.
    #[error("entry {index} is out of order")]
    Order {
        /// Position among the entries.
        index: usize,
    },
    /// A path through something that is not an open container.
    #[error("entry {index} stands in no open container")]
    Parent {
        /// Position among the entries.
        index: usize,
    },
    /// The extension, where only Slapo's form was allowed.
    #[error("text is in the extended form; use Dialect::Extended")]
    Extension,
    /// What the text says is no tree.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Why values cannot be routed between stages.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LivenessError {
    /// There is no stage.
    #[error("a pipeline has at least one stage")]
    NoStages,
    /// Nothing makes the value.
    #[error("{user} uses `{value}`, which neither an input of the model nor an earlier stage makes")]
    Undefined {
        /// The value.
        value: String,
        /// Where it is used.
        user: Place,
    },
    /// The value is made by the stage that uses it or by a later one.
    #[error("{user} uses `{value}`, which stage {maker} makes; only earlier stages can send it")]
    TooEarly {
        /// The value.
        value: String,
        /// Where it is used.
        user: Place,
        /// The stage that makes it.
        maker: u32,
    },
    /// Two places make one value.
    #[error("`{value}` is made by {first} and again by {second}; every value needs a name of its own")]
    MadeTwice {
        /// The value.
        value: String,
        /// Where it is made first.
        first: Place,
        /// Where it is made again.
        second: Place,
    },
}
