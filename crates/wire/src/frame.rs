//! The binary form of a message: a header, the structure, the leaves, and payloads aligned to 64 bytes.
//!
//! # Layout, version 1
//! All numbers are little-endian. Offsets count from the start of the frame.
//!
//! ```text
//! 0               64                          P          P + ...
//! ├─ prelude ─────┼─ metadata ─┬─ leaf table ─┼─ payload ─┼─ payload ─┤   each ┼ at a multiple of 64
//! ```
//!
//! | byte | prelude | |
//! | --- | --- | --- |
//! | 0 | magic | `BRGD` |
//! | 4 | version, u16 | 1 |
//! | 6 | flags, u16 | bit 0: the payloads have a checksum; the others are 0 |
//! | 8 | bytes of the frame, u64 | a multiple of 64 |
//! | 16 | run id, u64 | |
//! | 24 | sender, u32 | rank |
//! | 28 | stage, u32 | |
//! | 32 | direction, u32 | 0 forward, 1 backward |
//! | 36 | micro-batch, u32 | |
//! | 40 | bytes of the metadata, u32 | |
//! | 44 | bytes of the leaf table, u32 | |
//! | 48 | leaves, u32 | |
//! | 52 | crc32c of the payloads, u32 | without padding, in order; 0 without the flag |
//! | 56 | crc32c of metadata and leaf table, u32 | |
//! | 60 | crc32c of bytes 0 to 59, u32 | |
//!
//! The metadata is that of the tree, one token a node: a byte 0 to 2, 6 or 7 for a tensor, scalar, None,
//! string or bytes leaf; 3, 4 or 5 where a list, tuple or dict opens and 8 where it closes; before each
//! value of a dict its key: 9, a length and UTF-8; 10 and a zigzag number; 11 and a number. Lengths and
//! numbers of keys are LEB128 in their shortest form.
//!
//! The leaf table has one record a leaf, in the order of the tree:
//!
//! | first byte | leaf | then |
//! | --- | --- | --- |
//! | 0 | tensor | dtype u8, flags u8 (bit 0: a gradient is wanted), rank u8, bytes of the scheme u32, bytes of the payload u64, dimensions u64 each, scheme |
//! | 1 | bool | 0 or 1 |
//! | 2 | None | |
//! | 3 | i64 | 8 bytes |
//! | 4 | u64 | 8 bytes |
//! | 5 | f32 | 4 bytes |
//! | 6 | f64 | 8 bytes |
//! | 7 | string | length u32, UTF-8 |
//! | 8 | bytes | length u32, bytes |
//!
//! Payloads follow in the order of their tensors. Padding is zero, and the frame is padded at its end.
//! The dtype codes 0 to 17 are, in this order, [`DType::fixed`](crate::DType::fixed); 255 is quantised.

mod decode;
mod encode;

use crate::{codec::PRELUDE_BYTES, dtype::DType, error::TensorError, limits::Limit, shape::Shape};

pub use decode::{DecodeOptions, Frame, FrameLeaves, PayloadCheck, decode, frame_bytes};
pub use encode::{EncodeOptions, EncodedFrame, encode, encode_into};

/// Every payload starts at a multiple of this many bytes from the start of the frame.
pub const PAYLOAD_ALIGNMENT: usize = 64;

/// Bytes from which [`frame_bytes`] reads how long a frame is.
pub const FRAME_HEAD_BYTES: usize = PRELUDE_BYTES;

const MAGIC: [u8; 4] = *b"BRGD";
const VERSION: u16 = 1;

/// Flag of the prelude: the payloads have a checksum.
const PAYLOAD_CHECKSUM: u16 = 1;

/// Flag of a tensor: a gradient is wanted.
const WANTS_GRAD: u8 = 1;

/// First bytes of the records of the leaf table.
mod leaf_code {
    pub(super) const TENSOR: u8 = 0;
    pub(super) const BOOL: u8 = 1;
    pub(super) const NONE: u8 = 2;
    pub(super) const I64: u8 = 3;
    pub(super) const U64: u8 = 4;
    pub(super) const F32: u8 = 5;
    pub(super) const F64: u8 = 6;
    pub(super) const STR: u8 = 7;
    pub(super) const BYTES: u8 = 8;
}

/// A tensor as it travels: its description, and its elements in row-major order.
///
/// # Examples
/// ```
/// use brigade_wire::{DType, Shape, TensorView};
///
/// let view = TensorView { dtype: DType::F16, shape: Shape::from(&[2, 3]), wants_grad: true, data: &[0; 12] };
/// assert_eq!(view.check(), Ok(()));
/// let error = TensorView { data: &[0; 24], ..view }.check().unwrap_err();
/// assert_eq!(error.to_string(), "an f16 tensor of shape [2, 3] has 12 bytes, got 24: send contiguous elements");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Type of the elements.
    pub dtype: DType<'a>,
    /// Dimensions.
    pub shape: Shape<'a>,
    /// Whether the receiver is to send a gradient for this tensor back.
    pub wants_grad: bool,
    /// The elements, contiguous and in row-major order.
    pub data: &'a [u8],
}

impl TensorView<'_> {
    /// Passes a tensor whose number of bytes is that of its type and shape.
    ///
    /// # Errors
    /// [`TensorError`] otherwise, for example for the storage of a strided view, and when the rank, the
    /// scheme or the number of elements exceeds its bound.
    pub fn check(&self) -> Result<(), TensorError> {
        Limit::Rank.check(self.shape.rank())?;
        Limit::SchemeBytes.check(self.dtype.scheme().len())?;
        check_bytes(self.dtype, self.shape, u64::try_from(self.data.len()).unwrap_or(u64::MAX))
    }
}

/// Compares the number of bytes of a payload with what type and shape say.
fn check_bytes(dtype: DType<'_>, shape: Shape<'_>, actual: u64) -> Result<(), TensorError> {
    let Some(size) = dtype.size() else { return Ok(()) };
    let expected = shape.n_elements().and_then(|n_elements| n_elements.checked_mul(size));
    match expected {
        Some(expected) if expected == actual => Ok(()),
        Some(expected) => {
            Err(TensorError::Bytes { dtype: dtype.name(), shape: shape.to_vec(), expected, actual })
        }
        None => Err(TensorError::Overflow { dtype: dtype.name(), shape: shape.to_vec() }),
    }
}

/// The next multiple of [`PAYLOAD_ALIGNMENT`]; `None` beyond a `u64`.
fn align(offset: u64) -> Option<u64> {
    offset.checked_next_multiple_of(64)
}
