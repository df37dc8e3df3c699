//! Reads a frame: every length is checked before it is used, and payloads stay where they are.

use super::{
    MAGIC, PAYLOAD_ALIGNMENT, PAYLOAD_CHECKSUM, TensorView, VERSION, WANTS_GRAD, check_bytes, leaf_code,
};
use crate::{
    codec::{PRELUDE_BYTES, Prelude, TENSOR_RECORD_BYTES, TensorRecord},
    dtype::DType,
    error::{DecodeError, LeafError},
    flatten::assemble,
    header::{Direction, Header, Tag},
    leaf::{Leaf, LeafKind},
    limits::Limit,
    metadata::{Metadata, Summary},
    shape::Shape,
    token::{Token, Tokens},
    tree::Tree,
    validate::validate,
};

/// What to do with the checksum of the payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PayloadCheck {
    /// Verify it when the sender has added one.
    #[default]
    IfPresent,
    /// Verify it, and refuse a frame without one.
    Required,
    /// Do not look at it.
    Skip,
}

/// How to read a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DecodeOptions {
    /// What to do with the checksum of the payloads.
    pub payload_check: PayloadCheck,
}

/// A frame that has passed every check; its tensors are slices of the bytes it was read from.
#[derive(Debug, Clone)]
pub struct Frame<'a> {
    header: Header,
    metadata: &'a [u8],
    summary: Summary,
    leaf_table: &'a [u8],
    payloads: &'a [u8],
}

/// Tells from the first [`FRAME_HEAD_BYTES`](super::FRAME_HEAD_BYTES) bytes how long a frame is, for a
/// receiver that reads a stream: the length is within [`MAX_FRAME_BYTES`](crate::limits::MAX_FRAME_BYTES)
/// and covered by a checksum.
///
/// # Errors
/// [`DecodeError`] when these are not the first bytes of a frame.
///
/// # Units
/// Bytes, the first ones included.
pub fn frame_bytes(head: &[u8]) -> Result<u64, DecodeError> {
    prelude(head).map(|prelude| prelude.frame_bytes)
}

/// Checks everything that the first bytes say by themselves.
fn prelude(bytes: &[u8]) -> Result<Prelude, DecodeError> {
    let truncated = || DecodeError::Truncated { expected: 64, actual: bytes.len() };
    let start = bytes.first_chunk::<PRELUDE_BYTES>().ok_or_else(truncated)?;
    let prelude = Prelude::from_bytes(start);
    if prelude.magic != MAGIC {
        return Err(DecodeError::Magic { actual: prelude.magic });
    }
    if prelude.version != VERSION {
        return Err(DecodeError::Version { actual: prelude.version });
    }
    let crc = crc32c::crc32c(start.get(..PRELUDE_BYTES - 4).unwrap_or_default());
    if crc != prelude.prelude_crc {
        return Err(DecodeError::HeaderChecksum { expected: prelude.prelude_crc, actual: crc });
    }
    if prelude.flags & !PAYLOAD_CHECKSUM != 0 {
        return Err(DecodeError::Flags { actual: prelude.flags });
    }
    Limit::FrameBytes.check_u64(prelude.frame_bytes)?;
    if prelude.frame_bytes < 64 || !prelude.frame_bytes.is_multiple_of(64) {
        return Err(DecodeError::FrameBytes { actual: prelude.frame_bytes });
    }
    Ok(prelude)
}

/// Reads a frame that is exactly these bytes.
///
/// The payloads of the result are slices of `bytes`; they are aligned in memory when `bytes` is.
/// Memory is allocated only for frames with dicts, at most four bytes for each key and as many as the
/// input has, and a stack of the depth of the tree.
///
/// # Errors
/// [`DecodeError`] for whatever is not a frame that [`encode`](super::encode()) can write.
///
/// # Examples
/// ```
/// use brigade_wire::{DecodeError, DecodeOptions, decode};
///
/// let error = decode(b"GET / HTTP/1.1", DecodeOptions::default()).unwrap_err();
/// assert_eq!(error, DecodeError::Truncated { expected: 64, actual: 14 });
/// ```
pub fn decode(bytes: &[u8], options: DecodeOptions) -> Result<Frame<'_>, DecodeError> {
    let prelude = prelude(bytes)?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if length < prelude.frame_bytes {
        return Err(DecodeError::Truncated { expected: prelude.frame_bytes, actual: bytes.len() });
    }
    if length > prelude.frame_bytes {
        return Err(DecodeError::Trailing { n_bytes: length - prelude.frame_bytes });
    }
    let direction =
        Direction::try_from(prelude.direction).map_err(|actual| DecodeError::Direction { actual })?;
    let Sections { metadata, leaf_table, rest } = sections(bytes, &prelude)?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(metadata), leaf_table);
    if crc != prelude.tables_crc {
        return Err(DecodeError::HeaderChecksum { expected: prelude.tables_crc, actual: crc });
    }
    let payloads = after_padding(rest, PRELUDE_BYTES + metadata.len() + leaf_table.len())?;
    let summary = validate(metadata)?;
    if usize::try_from(prelude.n_leaves).ok() != Some(summary.n_leaves) {
        return Err(DecodeError::LeafCount { expected: summary.n_leaves, actual: prelude.n_leaves });
    }
    let tag = Tag { stage: prelude.stage, direction, micro_batch: prelude.micro_batch };
    let header = Header { run_id: prelude.run_id, sender: prelude.sender, tag };
    let frame = Frame { header, metadata, summary, leaf_table, payloads };
    frame.check_leaves(&prelude, options.payload_check)?;
    Ok(frame)
}

/// The parts of a frame after the prelude.
struct Sections<'a> {
    metadata: &'a [u8],
    leaf_table: &'a [u8],
    rest: &'a [u8],
}

fn sections<'a>(bytes: &'a [u8], prelude: &Prelude) -> Result<Sections<'a>, DecodeError> {
    let too_long = || DecodeError::Sections {
        metadata_bytes: prelude.metadata_bytes,
        leaf_table_bytes: prelude.leaf_table_bytes,
        frame_bytes: prelude.frame_bytes,
    };
    Limit::MetadataBytes.check_u64(prelude.metadata_bytes.into())?;
    Limit::LeafTableBytes.check_u64(prelude.leaf_table_bytes.into())?;
    let split = |bytes: &'a [u8], length: u32| {
        usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length)).ok_or_else(too_long)
    };
    let (metadata, rest) = split(bytes.get(PRELUDE_BYTES..).unwrap_or_default(), prelude.metadata_bytes)?;
    let (leaf_table, rest) = split(rest, prelude.leaf_table_bytes)?;
    Ok(Sections { metadata, leaf_table, rest })
}

/// Cuts the zeros off that stand between `offset` and the next multiple of the alignment.
fn after_padding(bytes: &[u8], offset: usize) -> Result<&[u8], DecodeError> {
    let gap = offset.next_multiple_of(PAYLOAD_ALIGNMENT) - offset;
    match bytes.split_at_checked(gap) {
        Some((padding, rest)) if padding.iter().all(|&byte| byte == 0) => Ok(rest),
        _ => Err(DecodeError::Padding),
    }
}

impl<'a> Frame<'a> {
    /// Run, sender and tag.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Number of leaves.
    #[must_use]
    pub const fn n_leaves(&self) -> usize {
        self.summary.n_leaves
    }

    /// The structure, in one allocation of as many bytes as it has in the frame.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        Metadata::from_validated(self.metadata.to_vec(), self.summary)
    }

    /// The leaves in order; only strings and bytes leaves are copied.
    #[must_use]
    pub const fn leaves(&self) -> FrameLeaves<'a> {
        FrameLeaves {
            table: Table { rest: self.leaf_table },
            payloads: self.payloads,
            n_left: self.summary.n_leaves,
        }
    }

    /// The tree, whose tensors are slices of the frame.
    ///
    /// It has at most [`MAX_NODES`](crate::limits::MAX_NODES) nodes.
    #[must_use]
    pub fn to_tree(&self) -> Tree<TensorView<'a>> {
        // Decoding has compared leaves and metadata.
        assemble(&self.metadata(), self.leaves().collect())
    }

    /// Checks the leaf table against the metadata, and the payloads against the leaf table.
    fn check_leaves(&self, prelude: &Prelude, payload_check: PayloadCheck) -> Result<(), DecodeError> {
        let has_crc = prelude.flags & PAYLOAD_CHECKSUM != 0;
        if payload_check == PayloadCheck::Required && !has_crc {
            return Err(DecodeError::NoPayloadChecksum);
        }
        if !has_crc && prelude.payload_crc != 0 {
            return Err(DecodeError::PayloadChecksum { expected: prelude.payload_crc, actual: 0 });
        }
        let verify = has_crc && payload_check != PayloadCheck::Skip;
        let mut crc = 0;
        let mut tokens = Tokens::new(self.metadata);
        let mut table = Table { rest: self.leaf_table };
        let mut payloads = self.payloads;
        let mut index = 0;
        while let Ok(Some(token)) = tokens.next() {
            let Token::Leaf(expected) = token else { continue };
            let error = |error| DecodeError::Leaf { index, error };
            let record = table.next().map_err(error)?;
            if record.kind() != expected {
                return Err(DecodeError::LeafKind { index, expected, actual: record.kind() });
            }
            if let Record::Tensor(tensor) = record {
                let (payload, rest) =
                    split_payload(payloads, tensor.payload_bytes).ok_or(DecodeError::Payload {
                        index,
                        expected: tensor.payload_bytes,
                        actual: payloads.len(),
                    })?;
                payloads = after_padding(rest, payload.len())?;
                if verify {
                    crc = crc32c::crc32c_append(crc, payload);
                }
            }
            index += 1;
        }
        if !table.rest.is_empty() {
            return Err(DecodeError::LeafTableTrailing { n_bytes: table.rest.len() });
        }
        if !payloads.is_empty() {
            return Err(DecodeError::PayloadTrailing { n_bytes: payloads.len() });
        }
        if verify && crc != prelude.payload_crc {
            return Err(DecodeError::PayloadChecksum { expected: prelude.payload_crc, actual: crc });
        }
        Ok(())
    }
}

fn split_payload(payloads: &[u8], length: u64) -> Option<(&[u8], &[u8])> {
    payloads.split_at_checked(usize::try_from(length).ok()?)
}

/// Reads the leaf table record by record.
#[derive(Debug, Clone)]
struct Table<'a> {
    rest: &'a [u8],
}

/// A record of the leaf table.
#[derive(Debug, Clone, Copy)]
enum Record<'a> {
    Tensor(TensorHead<'a>),
    None,
    Bool(bool),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
}

/// A tensor without its payload.
#[derive(Debug, Clone, Copy)]
struct TensorHead<'a> {
    dtype: DType<'a>,
    shape: Shape<'a>,
    wants_grad: bool,
    payload_bytes: u64,
}

impl Record<'_> {
    const fn kind(&self) -> LeafKind {
        match self {
            Self::Tensor(_) => LeafKind::Tensor,
            Self::None => LeafKind::None,
            Self::Bool(_) | Self::I64(_) | Self::U64(_) | Self::F32(_) | Self::F64(_) => LeafKind::Scalar,
            Self::Str(_) => LeafKind::Str,
            Self::Bytes(_) => LeafKind::Bytes,
        }
    }
}

impl<'a> Table<'a> {
    fn next(&mut self) -> Result<Record<'a>, LeafError> {
        let &code = self.rest.first().ok_or(LeafError::Truncated)?;
        if code == leaf_code::TENSOR {
            return self.tensor().map(Record::Tensor);
        }
        self.take(1)?;
        Ok(match code {
            leaf_code::NONE => Record::None,
            leaf_code::BOOL => match self.array()? {
                [0] => Record::Bool(false),
                [1] => Record::Bool(true),
                [value] => return Err(LeafError::Bool { value }),
            },
            leaf_code::I64 => Record::I64(i64::from_le_bytes(self.array()?)),
            leaf_code::U64 => Record::U64(u64::from_le_bytes(self.array()?)),
            leaf_code::F32 => Record::F32(f32::from_bits(u32::from_le_bytes(self.array()?))),
            leaf_code::F64 => Record::F64(f64::from_bits(u64::from_le_bytes(self.array()?))),
            leaf_code::STR => Record::Str(std::str::from_utf8(self.sized()?).map_err(|_| LeafError::Utf8)?),
            leaf_code::BYTES => Record::Bytes(self.sized()?),
            code => return Err(LeafError::Unknown { code }),
        })
    }

    fn tensor(&mut self) -> Result<TensorHead<'a>, LeafError> {
        let record = TensorRecord::from_bytes(&self.array::<TENSOR_RECORD_BYTES>()?);
        if record.flags & !WANTS_GRAD != 0 {
            return Err(LeafError::Flags { flags: record.flags });
        }
        let rank = usize::from(record.rank);
        Limit::Rank.check(rank)?;
        Limit::SchemeBytes.check_u64(record.scheme_bytes.into())?;
        let (dims, _) = self.take(rank * 8)?.as_chunks::<8>();
        let scheme = self.take(usize::try_from(record.scheme_bytes).map_err(|_| LeafError::Truncated)?)?;
        let dtype = DType::from_code(record.dtype, scheme).ok_or(LeafError::DType { code: record.dtype })?;
        let shape = Shape::from_wire(dims).ok_or(LeafError::Dimension)?;
        check_bytes(dtype, shape, record.payload_bytes)?;
        let wants_grad = record.flags & WANTS_GRAD != 0;
        Ok(TensorHead { dtype, shape, wants_grad, payload_bytes: record.payload_bytes })
    }

    /// A length and as many bytes.
    fn sized(&mut self) -> Result<&'a [u8], LeafError> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(usize::try_from(length).map_err(|_| LeafError::Truncated)?)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LeafError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(LeafError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], LeafError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(LeafError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// The leaves of a frame, in order.
#[derive(Debug, Clone)]
pub struct FrameLeaves<'a> {
    table: Table<'a>,
    payloads: &'a [u8],
    n_left: usize,
}

impl<'a> Iterator for FrameLeaves<'a> {
    type Item = Leaf<TensorView<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.n_left = self.n_left.checked_sub(1)?;
        let record = self.table.next().expect("decoding has read the leaf table");
        Some(match record {
            Record::Tensor(head) => {
                let (data, rest) =
                    split_payload(self.payloads, head.payload_bytes).expect("decoding has found the payload");
                self.payloads = after_padding(rest, data.len()).expect("decoding has found the padding");
                let TensorHead { dtype, shape, wants_grad, .. } = head;
                Leaf::Tensor(TensorView { dtype, shape, wants_grad, data })
            }
            Record::None => Leaf::None,
            Record::Bool(value) => Leaf::Bool(value),
            Record::I64(value) => Leaf::I64(value),
            Record::U64(value) => Leaf::U64(value),
            Record::F32(value) => Leaf::F32(value),
            Record::F64(value) => Leaf::F64(value),
            Record::Str(value) => Leaf::Str(value.to_owned()),
            Record::Bytes(value) => Leaf::Bytes(value.to_owned()),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.n_left, Some(self.n_left))
    }
}

impl ExactSizeIterator for FrameLeaves<'_> {}
