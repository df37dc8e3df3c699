//! Frame decoding, as the bytes are and with their checksums put right so that the fuzzer gets past them.

#![no_main]

use brigade_wire::{DecodeOptions, EncodeOptions, PayloadCheck, decode, encode, frame_bytes};
use libfuzzer_sys::fuzz_target;

fn check(bytes: &[u8], payload_check: PayloadCheck) {
    let mut decoded = None;
    let memory = allocation_counter::measure(|| decoded = Some(decode(bytes, DecodeOptions { payload_check })));
    let bound = bytes.len() as u64 + 8192;
    assert!(memory.bytes_max <= bound, "{} bytes for a frame of {}", memory.bytes_max, bytes.len());
    let Some(Ok(frame)) = decoded else { return };

    assert_eq!(frame_bytes(bytes), Ok(bytes.len() as u64));
    let leaves: Vec<_> = frame.leaves().collect();
    assert_eq!(leaves.len(), frame.n_leaves());
    let tree = frame.to_tree();
    let (metadata, again) = brigade_wire::flatten(tree);
    assert_eq!((&metadata, &again), (&frame.metadata(), &leaves));
    if payload_check != PayloadCheck::Skip {
        // A frame has one form.
        let options = EncodeOptions { payload_checksum: bytes[6] & 1 == 1 };
        let encoded = encode(frame.header(), &metadata, &leaves, options).expect("what was read can be written");
        assert_eq!(encoded.to_vec(), bytes);
    }
}

/// Makes magic, version, lengths and checksums what they must be; everything else stays.
fn repair(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut frame = bytes.to_vec();
    frame.resize(bytes.len().next_multiple_of(64), 0);
    let length = frame.len();
    let mut head = *frame.first_chunk::<64>()?;
    head[..4].copy_from_slice(b"BRGD");
    head[4..6].copy_from_slice(&[1, 0]);
    head[6] &= 1;
    head[7] = 0;
    head[8..16].copy_from_slice(&(length as u64).to_le_bytes());
    head[33..36].fill(0);
    // Sections of a plausible size: two bytes each.
    let metadata = usize::from(u16::from_le_bytes([head[40], head[41]]));
    let table = usize::from(u16::from_le_bytes([head[44], head[45]]));
    head[42..44].fill(0);
    head[46..48].fill(0);
    frame[..64].copy_from_slice(&head);
    let end = (64 + metadata + table).min(length);
    let tables_crc = crc32c::crc32c(&frame[64..end]);
    frame[56..60].copy_from_slice(&tables_crc.to_le_bytes());
    let crc = crc32c::crc32c(&frame[..60]);
    frame[60..64].copy_from_slice(&crc.to_le_bytes());
    Some(frame)
}

fuzz_target!(|bytes: &[u8]| {
    let _ = frame_bytes(bytes);
    check(bytes, PayloadCheck::IfPresent);
    check(bytes, PayloadCheck::Required);
    if let Some(frame) = repair(bytes) {
        check(&frame, PayloadCheck::IfPresent);
        check(&frame, PayloadCheck::Skip);
    }
});
