//! The fixed-size records of a frame as bytes: the only file that knows of `bincode`.
//!
//! Both records are encoded as fixed-width little-endian integers in the order of their fields, with
//! nothing between them, so their layout is what their declarations say.

use serde::{Deserialize, Serialize};

/// Bytes of a [`Prelude`].
pub(crate) const PRELUDE_BYTES: usize = 64;

/// Bytes of a [`TensorRecord`].
pub(crate) const TENSOR_RECORD_BYTES: usize = 16;

/// The first 64 bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prelude {
    /// At byte 0.
    pub(crate) magic: [u8; 4],
    /// At byte 4.
    pub(crate) version: u16,
    /// At byte 6.
    pub(crate) flags: u16,
    /// At byte 8: the whole frame.
    pub(crate) frame_bytes: u64,
    /// At byte 16.
    pub(crate) run_id: u64,
    /// At byte 24.
    pub(crate) sender: u32,
    /// At byte 28.
    pub(crate) stage: u32,
    /// At byte 32.
    pub(crate) direction: u32,
    /// At byte 36.
    pub(crate) micro_batch: u32,
    /// At byte 40.
    pub(crate) metadata_bytes: u32,
    /// At byte 44.
    pub(crate) leaf_table_bytes: u32,
    /// At byte 48.
    pub(crate) n_leaves: u32,
    /// At byte 52: crc32c of the payloads without padding, or 0.
    pub(crate) payload_crc: u32,
    /// At byte 56: crc32c of metadata and leaf table.
    pub(crate) tables_crc: u32,
    /// At byte 60: crc32c of the 60 bytes before it.
    pub(crate) prelude_crc: u32,
}

/// What stands before the dimensions and the scheme of a tensor in the leaf table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorRecord {
    /// At byte 0: `LEAF_TENSOR`.
    pub(crate) leaf: u8,
    /// At byte 1.
    pub(crate) dtype: u8,
    /// At byte 2.
    pub(crate) flags: u8,
    /// At byte 3.
    pub(crate) rank: u8,
    /// At byte 4.
    pub(crate) scheme_bytes: u32,
    /// At byte 8.
    pub(crate) payload_bytes: u64,
}

const CONFIG: bincode::config::Configuration<bincode::config::LittleEndian, bincode::config::Fixint> =
    bincode::config::standard().with_little_endian().with_fixed_int_encoding();

fn encode<const N: usize>(record: impl Serialize) -> [u8; N] {
    let mut bytes = [0; N];
    let written = bincode::serde::encode_into_slice(record, &mut bytes, CONFIG);
    assert_eq!(written.ok(), Some(N), "a fixed-size record has its size");
    bytes
}

fn decode<'a, R: Deserialize<'a>, const N: usize>(bytes: &'a [u8; N]) -> R {
    match bincode::serde::borrow_decode_from_slice(bytes, CONFIG) {
        Ok((record, read)) if read == N => record,
        _ => unreachable!("every value of every byte of a fixed-size record of integers is valid"),
    }
}

impl Prelude {
    pub(crate) fn to_bytes(self) -> [u8; PRELUDE_BYTES] {
        encode(self)
    }

    pub(crate) fn from_bytes(bytes: &[u8; PRELUDE_BYTES]) -> Self {
        decode(bytes)
    }
}

impl TensorRecord {
    pub(crate) fn to_bytes(self) -> [u8; TENSOR_RECORD_BYTES] {
        encode(self)
    }

    pub(crate) fn from_bytes(bytes: &[u8; TENSOR_RECORD_BYTES]) -> Self {
        decode(bytes)
    }
}
