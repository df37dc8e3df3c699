//! Writes a frame: the head into one buffer, the payloads borrowed from where they are.

use super::{MAGIC, PAYLOAD_ALIGNMENT, PAYLOAD_CHECKSUM, TensorView, VERSION, WANTS_GRAD, align, leaf_code};
use crate::{
    codec::{PRELUDE_BYTES, Prelude, TENSOR_RECORD_BYTES, TensorRecord},
    error::EncodeError,
    header::Header,
    leaf::Leaf,
    limits::Limit,
    metadata::Metadata,
};

/// How to write a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EncodeOptions {
    /// Whether to add a crc32c of the payloads, which costs one pass over them.
    pub payload_checksum: bool,
}

/// A frame whose payloads are still where the sender has them.
///
/// Its bytes are those of [`slices`](Self::slices), one after the other.
#[derive(Debug, Clone)]
pub struct EncodedFrame<'a> {
    head: Vec<u8>,
    leaves: &'a [Leaf<TensorView<'a>>],
    n_bytes: u64,
}

/// What fills the gaps between payloads.
const PADDING: [u8; PAYLOAD_ALIGNMENT] = [0; PAYLOAD_ALIGNMENT];

/// Writes a message as a frame.
///
/// # Errors
/// [`EncodeError`] when the leaves are not those of the metadata, a tensor's bytes do not fit its type
/// and shape, or anything exceeds [`limits`](crate::limits).
///
/// # Examples
/// ```
/// use brigade_wire::{
///     DType, DecodeOptions, Direction, EncodeOptions, Header, Shape, Tag, TensorView, Tree, decode, encode, flatten,
/// };
///
/// let data = 1.5_f32.to_le_bytes();
/// let tensor = TensorView { dtype: DType::F32, shape: Shape::from(&[1, 1]), wants_grad: true, data: &data };
/// let tree = Tree::from((Tree::Tensor(tensor), "cache", None::<bool>));
/// let header = Header { run_id: 7, sender: 0, tag: Tag { stage: 0, direction: Direction::Forward, micro_batch: 3 } };
///
/// let (metadata, leaves) = flatten(tree.clone());
/// let frame = encode(&header, &metadata, &leaves, EncodeOptions::default())?;
/// let bytes = frame.to_vec(); // or send `frame.slices()` without copying
///
/// let frame = decode(&bytes, DecodeOptions::default()).unwrap();
/// assert_eq!(frame.header(), &header);
/// assert_eq!(frame.to_tree(), tree);
/// # Ok::<(), brigade_wire::EncodeError>(())
/// ```
pub fn encode<'a>(
    header: &Header,
    metadata: &Metadata,
    leaves: &'a [Leaf<TensorView<'a>>],
    options: EncodeOptions,
) -> Result<EncodedFrame<'a>, EncodeError> {
    encode_into(Vec::new(), header, metadata, leaves, options)
}

/// [`encode`] with the buffer of an earlier frame, whose content is dropped; see
/// [`EncodedFrame::into_buffer`].
///
/// # Errors
/// As [`encode`].
pub fn encode_into<'a>(
    mut buffer: Vec<u8>,
    header: &Header,
    metadata: &Metadata,
    leaves: &'a [Leaf<TensorView<'a>>],
    options: EncodeOptions,
) -> Result<EncodedFrame<'a>, EncodeError> {
    metadata.check_limits()?;
    if leaves.len() != metadata.len() {
        return Err(EncodeError::LeafCount { expected: metadata.len(), actual: leaves.len() });
    }
    buffer.clear();
    buffer
        .reserve(PRELUDE_BYTES + metadata.as_bytes().len() + leaves.len() * (TENSOR_RECORD_BYTES + 32) + 63);
    buffer.resize(PRELUDE_BYTES, 0);
    buffer.extend_from_slice(metadata.as_bytes());
    let table = buffer.len();
    let mut payload_bytes = 0_u64;
    for (index, (leaf, kind)) in leaves.iter().zip(metadata.leaf_kinds()).enumerate() {
        if leaf.kind() != kind {
            return Err(EncodeError::LeafKind { index, expected: kind, actual: leaf.kind() });
        }
        put_leaf(&mut buffer, leaf, index)?;
        if let Leaf::Tensor(tensor) = leaf {
            let end = payload_bytes.checked_add(u64::try_from(tensor.data.len()).unwrap_or(u64::MAX));
            payload_bytes = end.and_then(align).unwrap_or(u64::MAX);
        }
    }
    let leaf_table_bytes = buffer.len() - table;
    Limit::LeafTableBytes.check(leaf_table_bytes)?;
    let tables_crc = crc32c::crc32c(buffer.get(PRELUDE_BYTES..).unwrap_or_default());
    buffer.resize(buffer.len().next_multiple_of(PAYLOAD_ALIGNMENT), 0);

    let n_bytes = u64::try_from(buffer.len()).unwrap_or(u64::MAX).saturating_add(payload_bytes);
    Limit::FrameBytes.check_u64(n_bytes)?;
    let mut prelude = Prelude {
        magic: MAGIC,
        version: VERSION,
        flags: if options.payload_checksum { PAYLOAD_CHECKSUM } else { 0 },
        frame_bytes: n_bytes,
        run_id: header.run_id,
        sender: header.sender,
        stage: header.tag.stage,
        direction: header.tag.direction.into(),
        micro_batch: header.tag.micro_batch,
        metadata_bytes: within_limit(metadata.as_bytes().len()),
        leaf_table_bytes: within_limit(leaf_table_bytes),
        n_leaves: within_limit(leaves.len()),
        payload_crc: if options.payload_checksum { payload_crc(leaves) } else { 0 },
        tables_crc,
        prelude_crc: 0,
    };
    let bytes = prelude.to_bytes();
    prelude.prelude_crc = crc32c::crc32c(bytes.get(..PRELUDE_BYTES - 4).unwrap_or_default());
    if let Some(start) = buffer.first_chunk_mut::<PRELUDE_BYTES>() {
        *start = prelude.to_bytes();
    }
    Ok(EncodedFrame { head: buffer, leaves, n_bytes })
}

/// A length that has passed a limit far below 2^32.
fn within_limit(length: usize) -> u32 {
    u32::try_from(length).expect("the limits of the tables are below 2^32")
}

fn payload_crc(leaves: &[Leaf<TensorView<'_>>]) -> u32 {
    let tensors = leaves.iter().filter_map(Leaf::tensor);
    tensors.fold(0, |crc, tensor| crc32c::crc32c_append(crc, tensor.data))
}

/// Adds the record of leaf `index`.
fn put_leaf(table: &mut Vec<u8>, leaf: &Leaf<TensorView<'_>>, index: usize) -> Result<(), EncodeError> {
    match leaf {
        Leaf::Tensor(tensor) => {
            tensor.check().map_err(|error| EncodeError::Tensor { index, error })?;
            let scheme = tensor.dtype.scheme();
            let record = TensorRecord {
                leaf: leaf_code::TENSOR,
                dtype: tensor.dtype.code(),
                flags: if tensor.wants_grad { WANTS_GRAD } else { 0 },
                rank: u8::try_from(tensor.shape.rank()).expect("the limit of the rank is below 256"),
                scheme_bytes: within_limit(scheme.len()),
                payload_bytes: u64::try_from(tensor.data.len()).unwrap_or(u64::MAX),
            };
            table.extend_from_slice(&record.to_bytes());
            for dim in tensor.shape.iter() {
                table.extend_from_slice(&u64::try_from(dim).unwrap_or(u64::MAX).to_le_bytes());
            }
            table.extend_from_slice(scheme);
        }
        Leaf::None => table.push(leaf_code::NONE),
        Leaf::Bool(value) => table.extend_from_slice(&[leaf_code::BOOL, u8::from(*value)]),
        Leaf::I64(value) => put(table, leaf_code::I64, &value.to_le_bytes()),
        Leaf::U64(value) => put(table, leaf_code::U64, &value.to_le_bytes()),
        Leaf::F32(value) => put(table, leaf_code::F32, &value.to_bits().to_le_bytes()),
        Leaf::F64(value) => put(table, leaf_code::F64, &value.to_bits().to_le_bytes()),
        Leaf::Str(value) => put_bytes(table, leaf_code::STR, value.as_bytes())?,
        Leaf::Bytes(value) => put_bytes(table, leaf_code::BYTES, value)?,
    }
    Ok(())
}

fn put(table: &mut Vec<u8>, code: u8, value: &[u8]) {
    table.push(code);
    table.extend_from_slice(value);
}

fn put_bytes(table: &mut Vec<u8>, code: u8, value: &[u8]) -> Result<(), EncodeError> {
    Limit::LeafTableBytes.check(table.len().saturating_add(value.len()))?;
    put(table, code, &within_limit(value.len()).to_le_bytes());
    table.extend_from_slice(value);
    Ok(())
}

impl<'a> EncodedFrame<'a> {
    /// Bytes of the frame.
    #[must_use]
    pub const fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Everything before the payloads.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The slices that make up the frame, for a vectored write: the head, then the payloads and the
    /// zeros between them. None is empty.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let payloads = self.leaves.iter().filter_map(Leaf::tensor).flat_map(|tensor| {
            let gap = tensor.data.len().next_multiple_of(PAYLOAD_ALIGNMENT) - tensor.data.len();
            [tensor.data, PADDING.get(..gap).unwrap_or_default()]
        });
        std::iter::once(self.head.as_slice()).chain(payloads).filter(|slice| !slice.is_empty())
    }

    /// The whole frame in one buffer: a copy of every payload.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.n_bytes).unwrap_or_default());
        self.slices().for_each(|slice| bytes.extend_from_slice(slice));
        bytes
    }

    /// The buffer of the head, to encode the next frame into.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.head
    }
}
