//! Named bounds on everything that a peer can make this crate read, allocate or descend into.
//!
//! Encoders refuse what exceeds them, so that whatever is sent can be received.

use thiserror::Error;

/// Containers that may stand around a leaf; a bare leaf has depth 0, `(x,)` depth 1.
///
/// Encoders refuse deeper trees and decoders refuse deeper input. [`flatten`](crate::flatten) and
/// [`unflatten`](crate::unflatten) work without recursion and have no limit of their own.
pub const MAX_DEPTH: usize = 128;

/// Nodes (leaves and containers) of one tree.
pub const MAX_NODES: usize = 1 << 16;

/// Bytes of one string key of a dict.
pub const MAX_KEY_BYTES: usize = 4096;

/// Bytes of the binary metadata of one tree.
pub const MAX_METADATA_BYTES: usize = 1 << 24;

/// Bytes of the text form of one tree's metadata.
pub const MAX_TEXT_BYTES: usize = 1 << 24;

/// Empty tuples that a text in Slapo's own form may imply by skipping their positions.
///
/// A skipped position costs the sender nothing: `999,0` stands for 999 empty tuples.
pub const MAX_IMPLIED: usize = 1024;

/// Bytes of the leaf table of one frame: tensor descriptions, scalars, text and bytes leaves.
pub const MAX_LEAF_TABLE_BYTES: usize = 1 << 26;

/// Dimensions of one tensor, as many as PyTorch allows.
pub const MAX_RANK: usize = 64;

/// Bytes of the scheme of one quantised tensor.
pub const MAX_SCHEME_BYTES: usize = 1024;

/// Bytes of one frame, payloads included.
pub const MAX_FRAME_BYTES: u64 = 1 << 40;

/// A quantity that is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// [`MAX_DEPTH`].
    Depth,
    /// [`MAX_NODES`].
    Nodes,
    /// [`MAX_KEY_BYTES`].
    KeyBytes,
    /// [`MAX_METADATA_BYTES`].
    MetadataBytes,
    /// [`MAX_TEXT_BYTES`].
    TextBytes,
    /// [`MAX_IMPLIED`].
    Implied,
    /// [`MAX_LEAF_TABLE_BYTES`].
    LeafTableBytes,
    /// [`MAX_RANK`].
    Rank,
    /// [`MAX_SCHEME_BYTES`].
    SchemeBytes,
    /// [`MAX_FRAME_BYTES`].
    FrameBytes,
}

impl Limit {
    /// The bound.
    #[must_use]
    pub const fn max(self) -> u64 {
        // Each constant is a literal far below 2^64.
        #[expect(clippy::as_conversions, reason = "widening in a const fn, where `From` cannot be called")]
        match self {
            Self::Depth => MAX_DEPTH as u64,
            Self::Nodes => MAX_NODES as u64,
            Self::KeyBytes => MAX_KEY_BYTES as u64,
            Self::MetadataBytes => MAX_METADATA_BYTES as u64,
            Self::TextBytes => MAX_TEXT_BYTES as u64,
            Self::Implied => MAX_IMPLIED as u64,
            Self::LeafTableBytes => MAX_LEAF_TABLE_BYTES as u64,
            Self::Rank => MAX_RANK as u64,
            Self::SchemeBytes => MAX_SCHEME_BYTES as u64,
            Self::FrameBytes => MAX_FRAME_BYTES,
        }
    }

    /// Passes what is within the bound.
    pub(crate) fn check(self, actual: usize) -> Result<(), LimitError> {
        self.check_u64(u64::try_from(actual).unwrap_or(u64::MAX))
    }

    /// Passes what is within the bound.
    pub(crate) const fn check_u64(self, actual: u64) -> Result<(), LimitError> {
        if actual > self.max() { Err(LimitError { limit: self, actual }) } else { Ok(()) }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Depth => "depth of the tree",
            Self::Nodes => "nodes of the tree",
            Self::KeyBytes => "bytes of a dict key",
            Self::MetadataBytes => "bytes of the metadata",
            Self::TextBytes => "bytes of the text",
            Self::Implied => "empty tuples implied by the text",
            Self::LeafTableBytes => "bytes of the leaf table",
            Self::Rank => "dimensions of a tensor",
            Self::SchemeBytes => "bytes of a quantisation scheme",
            Self::FrameBytes => "bytes of the frame",
        })
    }
}

/// A bound was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{limit}: {actual} exceeds the limit of {}", limit.max())]
pub struct LimitError {
    /// The quantity.
    pub limit: Limit,
    /// Its value, or a value that it reached before the reader gave up.
    pub actual: u64,
}
