//! Text decoding: no panic, bounded memory, and what is read is written back as the same structure.

#![no_main]

use brigade_wire::{Dialect, decode_metadata, encode_metadata};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut decoded = None;
    let memory = allocation_counter::measure(|| decoded = Some(decode_metadata(text, Dialect::Extended)));
    let bound = 2 * bytes.len() as u64 + 8192;
    assert!(memory.bytes_max <= bound, "{} bytes for {} of text", memory.bytes_max, bytes.len());

    let strict = decode_metadata(text, Dialect::Slapo);
    let Some(Ok(metadata)) = decoded else {
        assert!(strict.is_err());
        return;
    };
    if let Ok(strict) = strict {
        assert_eq!(strict, metadata);
    }
    let written = encode_metadata(&metadata, Dialect::Extended).expect("what was read is within the limits");
    assert_eq!(decode_metadata(&written, Dialect::Extended).as_ref(), Ok(&metadata));
    match encode_metadata(&metadata, Dialect::Slapo) {
        Ok(slapo) => {
            assert_eq!(slapo, written);
            assert_eq!(decode_metadata(&slapo, Dialect::Slapo), Ok(metadata));
        }
        Err(_) => assert!(written.starts_with("v1,")),
    }
});
