//! Damaged input: truncated at every byte, every bit flipped, and lengths, codes and depths that lie.

use brigade_wire::{
    DecodeError, DecodeOptions, EncodeOptions, LeafError, Limit, MetadataError, PayloadCheck, TensorError,
    decode, frame_bytes,
};

use crate::common::{frame_of, one_of_each};

fn read(bytes: &[u8]) -> Result<(), DecodeError> {
    decode(bytes, DecodeOptions::default()).map(drop)
}

/// Puts the checksums of a frame right after a change.
pub(crate) fn repair(frame: &mut [u8]) {
    let word =
        |at: usize| usize::try_from(u32::from_le_bytes(frame[at..at + 4].try_into().unwrap())).unwrap();
    let end = frame.len().min(64 + word(40) + word(44));
    let crc = crc32c(&frame[64..end]);
    frame[56..60].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c(&frame[..60]);
    frame[60..64].copy_from_slice(&crc.to_le_bytes());
}

/// CRC-32C bit by bit: an implementation of its own, so that the one in use is checked too.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}

/// A frame whose first four leaf records are in known places: one f32 tensor, a bool, a string, a dict.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> DecodeError {
    let mut frame = frame_of(&one_of_each(), EncodeOptions { payload_checksum: true });
    change(&mut frame);
    repair(&mut frame);
    read(&frame).unwrap_err()
}

/// Where the leaf table starts.
fn table(frame: &[u8]) -> usize {
    64 + usize::try_from(u32::from_le_bytes(frame[40..44].try_into().unwrap())).unwrap()
}

#[test]
fn truncated_at_every_byte() {
    for payload_checksum in [false, true] {
        let frame = frame_of(&one_of_each(), EncodeOptions { payload_checksum });
        read(&frame).unwrap();
        for length in 0..frame.len() {
            let error = read(&frame[..length]).unwrap_err();
            let expected = if length < 64 { 64 } else { u64::try_from(frame.len()).unwrap() };
            assert_eq!(error, DecodeError::Truncated { expected, actual: length });
            assert_eq!(frame_bytes(&frame[..length]).is_ok(), length >= 64);
        }
        let longer = [frame.as_slice(), &[0; 64]].concat();
        assert_eq!(read(&longer), Err(DecodeError::Trailing { n_bytes: 64 }));
    }
}

#[test]
fn truncated_at_every_byte_with_a_length_that_agrees() {
    let frame = frame_of(&one_of_each(), EncodeOptions::default());
    for length in (64..frame.len()).step_by(64) {
        let mut short = frame[..length].to_vec();
        short[8..16].copy_from_slice(&u64::try_from(length).unwrap().to_le_bytes());
        repair(&mut short);
        assert!(read(&short).is_err(), "{length} of {}", frame.len());
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let frame = frame_of(&one_of_each(), EncodeOptions { payload_checksum: true });
    for bit in 0..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = read(&damaged).unwrap_err();
        let byte = bit / 8;
        match byte {
            0..4 => assert!(matches!(error, DecodeError::Magic { .. })),
            4..6 => assert!(matches!(error, DecodeError::Version { .. })),
            6..64 => assert!(matches!(error, DecodeError::HeaderChecksum { .. })),
            _ => assert!(
                matches!(
                    error,
                    DecodeError::HeaderChecksum { .. }
                        | DecodeError::PayloadChecksum { .. }
                        | DecodeError::Padding
                ),
                "byte {byte}: {error}"
            ),
        }
    }
}

#[test]
fn without_a_payload_checksum_a_flip_changes_a_value_and_no_more() {
    let tree = one_of_each();
    let frame = frame_of(&tree, EncodeOptions::default());
    let mut n_unseen = 0;
    for bit in 0..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = decode(&damaged, DecodeOptions::default()) {
            assert_eq!(read.to_tree().n_tensors(), tree.n_tensors());
            n_unseen += 1;
        }
    }
    let mut n_payload_bits = 0;
    tree.for_each(|tensor| n_payload_bits += tensor.data.len() * 8);
    assert_eq!(n_unseen, n_payload_bits);
}

#[test]
fn checksums_that_are_right_do_not_hide_a_wrong_header() {
    assert_eq!(changed(|frame| frame[0] = b'X'), DecodeError::Magic { actual: *b"XRGD" });
    assert_eq!(changed(|frame| frame[4] = 2), DecodeError::Version { actual: 2 });
    assert_eq!(changed(|frame| frame[6] = 3), DecodeError::Flags { actual: 3 });
    assert_eq!(changed(|frame| frame[32] = 2), DecodeError::Direction { actual: 2 });
    assert_eq!(changed(|frame| frame[8] += 1), DecodeError::FrameBytes { actual: 513 });
    assert_eq!(changed(|frame| frame[8..16].fill(0)), DecodeError::FrameBytes { actual: 0 });
    assert!(
        matches!(changed(|frame| frame[15] = 1), DecodeError::Limit(error) if error.limit == Limit::FrameBytes)
    );
    assert_eq!(changed(|frame| frame[48] += 1), DecodeError::LeafCount { expected: 12, actual: 13 });
    assert!(
        matches!(changed(|frame| frame[43] = 9), DecodeError::Limit(error) if error.limit == Limit::MetadataBytes)
    );
    assert!(
        matches!(changed(|frame| frame[47] = 9), DecodeError::Limit(error) if error.limit == Limit::LeafTableBytes)
    );
    assert!(matches!(changed(|frame| frame[41] = 9), DecodeError::Sections { .. }));
    assert!(matches!(changed(|frame| frame[45] = 9), DecodeError::Sections { .. }));
    assert!(matches!(changed(|frame| frame[52] ^= 1), DecodeError::PayloadChecksum { .. }));
    // Without its flag the field of the payload checksum is zero.
    assert!(matches!(changed(|frame| frame[6] = 0), DecodeError::PayloadChecksum { .. }));
    let frame = frame_of(&one_of_each(), EncodeOptions::default());
    let required = DecodeOptions { payload_check: PayloadCheck::Required };
    assert_eq!(decode(&frame, required).unwrap_err(), DecodeError::NoPayloadChecksum);
}

#[test]
fn lengths_that_lie_or_overflow() {
    // The first leaf is the f32 tensor of shape [2, 3]: code, dtype, flags, rank, scheme, bytes, dimensions.
    let at_table = |offset: usize, bytes: &'static [u8]| {
        changed(|frame| {
            let at = table(frame) + offset;
            frame[at..at + bytes.len()].copy_from_slice(bytes);
        })
    };
    let huge = &[0xff; 8];
    assert_eq!(
        at_table(16, huge),
        DecodeError::Leaf {
            index: 0,
            error: LeafError::Tensor(TensorError::Overflow { dtype: "f32", shape: vec![usize::MAX, 3] })
        }
    );
    assert_eq!(
        at_table(8, huge),
        DecodeError::Leaf {
            index: 0,
            error: LeafError::Tensor(TensorError::Bytes {
                dtype: "f32",
                shape: vec![2, 3],
                expected: 24,
                actual: u64::MAX
            })
        }
    );
    assert!(
        matches!(at_table(3, &[65]), DecodeError::Leaf { error: LeafError::Limit(error), .. } if error.limit == Limit::Rank)
    );
    assert!(
        matches!(at_table(4, &[0xff; 4]), DecodeError::Leaf { error: LeafError::Limit(error), .. } if error.limit == Limit::SchemeBytes)
    );
    assert_eq!(at_table(1, &[18]), DecodeError::Leaf { index: 0, error: LeafError::DType { code: 18 } });
    assert_eq!(at_table(2, &[2]), DecodeError::Leaf { index: 0, error: LeafError::Flags { flags: 2 } });
    assert_eq!(at_table(0, &[9]), DecodeError::Leaf { index: 0, error: LeafError::Unknown { code: 9 } });
    assert!(matches!(at_table(0, &[2]), DecodeError::LeafKind { index: 0, .. }));
    // A quantised tensor may claim any number of bytes; the frame must have them.
    assert_eq!(
        changed(|frame| {
            let at = table(frame);
            let second = at + 32 + 8;
            assert_eq!(frame[second + 1], 255);
            frame[second + 8..second + 16].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        }),
        DecodeError::Payload { index: 2, expected: u64::MAX >> 1, actual: 128 }
    );
}

/// A frame with this metadata and as many None leaves as given.
fn with_metadata(metadata: &[u8], n_leaves: u32) -> Vec<u8> {
    with_table(metadata, n_leaves, &vec![2; usize::try_from(n_leaves).unwrap()])
}

/// A frame with this metadata and leaf table, without payloads.
fn with_table(metadata: &[u8], n_leaves: u32, table: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..8].copy_from_slice(b"BRGD\x01\0\0\0");
    frame[40..44].copy_from_slice(&u32::try_from(metadata.len()).unwrap().to_le_bytes());
    frame[44..48].copy_from_slice(&u32::try_from(table.len()).unwrap().to_le_bytes());
    frame[48..52].copy_from_slice(&n_leaves.to_le_bytes());
    frame.extend_from_slice(metadata);
    frame.extend_from_slice(table);
    frame.resize(frame.len().next_multiple_of(64), 0);
    let length = u64::try_from(frame.len()).unwrap();
    frame[8..16].copy_from_slice(&length.to_le_bytes());
    repair(&mut frame);
    frame
}

#[test]
fn metadata_that_is_none() {
    read(&with_metadata(&[4, 2, 2, 8], 2)).unwrap();
    for (metadata, expected) in [
        (&[][..], MetadataError::Truncated),
        (&[4], MetadataError::Truncated),
        (&[5, 9, 1], MetadataError::Truncated),
        (&[12], MetadataError::UnknownToken { offset: 0, code: 12 }),
        (&[8], MetadataError::StrayClose { offset: 0 }),
        (&[5, 10, 2, 8], MetadataError::StrayClose { offset: 3 }),
        (&[10, 2], MetadataError::StrayKey { offset: 0 }),
        (&[4, 10, 2, 2, 8], MetadataError::StrayKey { offset: 1 }),
        (&[5, 10, 2, 10, 2, 2, 8], MetadataError::StrayKey { offset: 3 }),
        (&[5, 2, 8], MetadataError::MissingKey { offset: 1 }),
        (&[5, 10, 2, 2, 3, 8, 8], MetadataError::MissingKey { offset: 4 }),
        (&[2, 2], MetadataError::Trailing { n_bytes: 1 }),
        (&[4, 8, 0], MetadataError::Trailing { n_bytes: 1 }),
        (&[5, 9, 1, 0xff, 2, 8], MetadataError::Utf8 { offset: 1 }),
        (&[5, 9, 0x80, 0, 2, 8], MetadataError::Varint { offset: 1 }),
        (&[5, 9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 8], MetadataError::Truncated),
        (&[5, 10, 2, 2, 9, 1, b'k', 2, 10, 2, 2, 8], MetadataError::DuplicateKey { key: 1_i64.into() }),
        (&[5, 9, 0, 5, 9, 0, 2, 8, 9, 0, 2, 8], MetadataError::DuplicateKey { key: "".into() }),
    ] {
        let n_leaves = u32::try_from(metadata.iter().filter(|&&byte| byte == 2).count()).unwrap();
        assert_eq!(
            read(&with_metadata(metadata, n_leaves)),
            Err(DecodeError::Metadata(expected)),
            "{metadata:?}"
        );
    }
    // The same key in different dicts is fine.
    read(&with_metadata(&[5, 9, 0, 5, 9, 0, 2, 8, 9, 1, b'a', 5, 9, 0, 2, 8, 8], 2)).unwrap();
}

#[test]
fn leaf_tables_that_are_none() {
    let leaf = |error| Err(DecodeError::Leaf { index: 0, error });
    for (kind, table, expected) in [
        (2, &[2][..], Ok(())),
        (1, &[1, 1], Ok(())),
        (6, &[7, 2, 0, 0, 0, 0xc3, 0xa9], Ok(())),
        (7, &[8, 0, 0, 0, 0], Ok(())),
        (2, &[], leaf(LeafError::Truncated)),
        (1, &[3, 0, 0, 0, 0, 0, 0, 0], leaf(LeafError::Truncated)),
        (6, &[7, 3, 0, 0, 0, b'a', b'b'], leaf(LeafError::Truncated)),
        (7, &[8, 0xff, 0xff, 0xff, 0xff, 0], leaf(LeafError::Truncated)),
        (0, &[0, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], leaf(LeafError::Truncated)),
        (1, &[1, 2], leaf(LeafError::Bool { value: 2 })),
        (6, &[7, 1, 0, 0, 0, 0xff], leaf(LeafError::Utf8)),
        (2, &[2, 2], Err(DecodeError::LeafTableTrailing { n_bytes: 1 })),
    ] {
        assert_eq!(read(&with_table(&[kind], 1, table)), expected, "{table:?}");
    }
}

#[test]
fn a_frame_that_goes_on_after_its_payloads() {
    let mut frame = frame_of(&one_of_each(), EncodeOptions::default());
    frame.extend([0; 64]);
    let length = u64::try_from(frame.len()).unwrap();
    frame[8..16].copy_from_slice(&length.to_le_bytes());
    repair(&mut frame);
    assert_eq!(read(&frame), Err(DecodeError::PayloadTrailing { n_bytes: 64 }));
}

#[test]
fn depth_and_node_bombs() {
    let nested = |depth: usize| [vec![4; depth], vec![8; depth]].concat();
    read(&with_metadata(&nested(128), 0)).unwrap();
    for depth in [129, 10_000, 1_000_000] {
        let error = read(&with_metadata(&nested(depth), 0)).unwrap_err();
        assert!(
            matches!(error, DecodeError::Metadata(MetadataError::Limit(error)) if error.limit == Limit::Depth),
            "{error}"
        );
    }
    let wide = |n_items: usize| [vec![3], [4, 8].repeat(n_items), vec![8]].concat();
    read(&with_metadata(&wide(65_535), 0)).unwrap();
    let error = read(&with_metadata(&wide(65_536), 0)).unwrap_err();
    assert!(
        matches!(error, DecodeError::Metadata(MetadataError::Limit(error)) if error.limit == Limit::Nodes)
    );
}
