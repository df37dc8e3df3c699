//! Errors of writing and reading frames.

use thiserror::Error;

use super::MetadataError;
use crate::{leaf::LeafKind, limits::LimitError};

/// Why a tensor cannot travel, or the description of one is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of bytes is not that of type and shape.
    #[error(
        "an {dtype} tensor of shape {shape:?} has {expected} bytes, got {actual}: send contiguous elements"
    )]
    Bytes {
        /// Type of the elements.
        dtype: &'static str,
        /// Dimensions.
        shape: Vec<usize>,
        /// Bytes that type and shape make.
        expected: u64,
        /// Bytes given or claimed.
        actual: u64,
    },
    /// Type and shape make more bytes than a 64-bit number counts.
    #[error("the bytes of an {dtype} tensor of shape {shape:?} overflow a 64-bit number")]
    Overflow {
        /// Type of the elements.
        dtype: &'static str,
        /// Dimensions.
        shape: Vec<usize>,
    },
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Why a message cannot be written as a frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The number of leaves differs.
    #[error("metadata describes {expected} leaves, got {actual}")]
    LeafCount {
        /// Leaves that the metadata describes.
        expected: usize,
        /// Leaves given.
        actual: usize,
    },
    /// A leaf is of another kind than the metadata says.
    #[error("leaf {index} must be a {expected}, got a {actual}")]
    LeafKind {
        /// Position among the leaves.
        index: usize,
        /// The kind in the metadata.
        expected: LeafKind,
        /// The kind of the leaf.
        actual: LeafKind,
    },
    /// A tensor is not what it says.
    #[error("leaf {index}: {error}")]
    Tensor {
        /// Position among the leaves.
        index: usize,
        /// What is wrong with it.
        error: TensorError,
    },
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Why a record of a frame's leaf table is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeafError {
    /// The table ends inside the record.
    #[error("the leaf table ends too early")]
    Truncated,
    /// A first byte that stands for no leaf.
    #[error("unknown kind of leaf {code}")]
    Unknown {
        /// The byte.
        code: u8,
    },
    /// A bool that is neither 0 nor 1.
    #[error("a bool is 0 or 1, got {value}")]
    Bool {
        /// The byte.
        value: u8,
    },
    /// A string that is not UTF-8.
    #[error("a string is not UTF-8")]
    Utf8,
    /// An element type that does not exist, or a scheme at a type without one.
    #[error("unknown dtype {code}, or a scheme where there is none")]
    DType {
        /// The code.
        code: u8,
    },
    /// A flag that does not exist.
    #[error("unknown flags {flags:#04x} of a tensor")]
    Flags {
        /// The flags.
        flags: u8,
    },
    /// A dimension that exceeds the address space of this machine.
    #[error("a dimension exceeds the address space of this machine")]
    Dimension,
    /// A description that contradicts itself.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("the frame has {expected} bytes, got {actual}")]
    Truncated {
        /// Bytes that the frame needs at least.
        expected: u64,
        /// Bytes given.
        actual: usize,
    },
    /// Bytes follow the frame.
    #[error("{n_bytes} bytes follow the frame")]
    Trailing {
        /// How many.
        n_bytes: u64,
    },
    /// The first bytes are not those of a frame.
    #[error("not a frame: it starts with {actual:02x?}")]
    Magic {
        /// The first bytes.
        actual: [u8; 4],
    },
    /// A version that this crate does not read.
    #[error("frame version {actual} is not supported, only 1: run the same release on every rank")]
    Version {
        /// The version.
        actual: u16,
    },
    /// A flag that does not exist.
    #[error("unknown flags {actual:#06x} of the frame")]
    Flags {
        /// The flags.
        actual: u16,
    },
    /// A length of the frame that no frame has.
    #[error("a frame has a positive multiple of 64 bytes, not {actual}")]
    FrameBytes {
        /// The length.
        actual: u64,
    },
    /// A direction that does not exist.
    #[error("unknown direction {actual}")]
    Direction {
        /// The number.
        actual: u32,
    },
    /// The checksum of prelude, metadata or leaf table is wrong.
    #[error("checksum of the header is {actual:#010x}, expected {expected:#010x}: damaged on the way")]
    HeaderChecksum {
        /// The checksum in the frame.
        expected: u32,
        /// The checksum of the bytes.
        actual: u32,
    },
    /// The checksum of the payloads is wrong.
    #[error("checksum of the payloads is {actual:#010x}, expected {expected:#010x}: damaged on the way")]
    PayloadChecksum {
        /// The checksum in the frame.
        expected: u32,
        /// The checksum of the bytes.
        actual: u32,
    },
    /// The payloads have no checksum, and one was required.
    #[error("the payloads have no checksum; set `payload_checksum` where they are sent")]
    NoPayloadChecksum,
    /// Metadata and leaf table do not fit the frame.
    #[error("{metadata_bytes} + {leaf_table_bytes} bytes of header do not fit a frame of {frame_bytes}")]
    Sections {
        /// Bytes of the metadata.
        metadata_bytes: u32,
        /// Bytes of the leaf table.
        leaf_table_bytes: u32,
        /// Bytes of the frame.
        frame_bytes: u64,
    },
    /// A byte between two sections is missing or not zero.
    #[error("padding of the frame is missing or not zero")]
    Padding,
    /// The metadata is malformed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The number of leaves differs.
    #[error("metadata describes {expected} leaves, the header says {actual}")]
    LeafCount {
        /// Leaves that the metadata describes.
        expected: usize,
        /// Leaves that the header counts.
        actual: u32,
    },
    /// A record of the leaf table is malformed.
    #[error("leaf {index}: {error}")]
    Leaf {
        /// Position among the leaves.
        index: usize,
        /// What is wrong with it.
        error: LeafError,
    },
    /// A leaf is of another kind than the metadata says.
    #[error("leaf {index} must be a {expected}, got a {actual}")]
    LeafKind {
        /// Position among the leaves.
        index: usize,
        /// The kind in the metadata.
        expected: LeafKind,
        /// The kind in the leaf table.
        actual: LeafKind,
    },
    /// The leaf table goes on after the last leaf.
    #[error("{n_bytes} bytes follow the last leaf")]
    LeafTableTrailing {
        /// How many.
        n_bytes: usize,
    },
    /// A payload is longer than what is left of the frame.
    #[error("payload of leaf {index} has {expected} bytes, the frame has {actual} left")]
    Payload {
        /// Position among the leaves.
        index: usize,
        /// Bytes of the payload.
        expected: u64,
        /// Bytes left.
        actual: usize,
    },
    /// The frame goes on after the last payload.
    #[error("{n_bytes} bytes follow the last payload")]
    PayloadTrailing {
        /// How many.
        n_bytes: usize,
    },
    /// A bound is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}
