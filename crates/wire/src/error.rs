//! Error types, one for each operation.

use thiserror::Error;

use crate::{dict::Key, leaf::LeafKind};

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
