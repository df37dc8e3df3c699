//! Decoders allocate no more than their input and a constant, counted by the allocator itself.

use allocation_counter::measure;
use brigade_wire::{
    DecodeOptions, Dialect, Dict, EncodeOptions, Key, Leaf, Tree, decode, decode_metadata, encode,
    encode_metadata, flatten,
};

use crate::{
    common::{Owned, frame_of, header, one_of_each},
    faults::repair,
};

/// What a decoder may allocate beside its input: stacks as deep as the depth limit, and an error's text.
const CONSTANT: u64 = 8192;

/// The most memory that is in use at one time while `work` runs, in bytes.
fn peak(work: impl FnOnce()) -> u64 {
    measure(work).bytes_max
}

fn bytes(length: usize) -> u64 {
    u64::try_from(length).unwrap()
}

/// Reads a frame within its size and a constant; tells whether it was one.
fn assert_frame_bound(frame: &[u8]) -> bool {
    let mut is_frame = false;
    let peak = peak(|| is_frame = decode(frame, DecodeOptions::default()).is_ok());
    assert!(peak <= bytes(frame.len()) + CONSTANT, "{peak} bytes for a frame of {}", frame.len());
    is_frame
}

/// Reads a text so that no allocation exceeds its size and a constant: text and keys need at most two at a time.
fn assert_text_bound(text: &str) -> bool {
    let mut is_text = false;
    let peak = peak(|| is_text = decode_metadata(text, Dialect::Extended).is_ok());
    assert!(peak <= 2 * bytes(text.len()) + CONSTANT, "{peak} bytes for a text of {}", text.len());
    is_text
}

#[test]
fn a_payload_is_never_copied() {
    let tensor = Owned { dtype: Ok(12), shape: vec![1 << 22], wants_grad: true, data: vec![7; 1 << 22] };
    let frame = frame_of(&Tree::Tensor(tensor.clone()), EncodeOptions { payload_checksum: true });
    let read = measure(|| {
        let frame = decode(&frame, DecodeOptions::default()).unwrap();
        assert_eq!(frame.leaves().next().unwrap().tensor().unwrap().data.len(), 1 << 22);
        assert_eq!(frame.to_tree().n_tensors(), 1);
    });
    assert!(read.bytes_total < 1024, "{read:?}");

    let (metadata, _) = flatten(Tree::Tensor(()));
    let leaves = [Leaf::Tensor(tensor.view())];
    let written = measure(|| {
        let frame = encode(&header(0), &metadata, &leaves, EncodeOptions::default()).unwrap();
        assert_eq!(frame.slices().map(<[u8]>::len).sum::<usize>(), (1 << 22) + 128);
    });
    assert!(written.bytes_total < 1024, "{written:?}");
}

#[test]
fn a_frame_without_containers_is_read_without_allocating() {
    let tensor = Owned { dtype: Ok(1), shape: vec![2, 2], wants_grad: false, data: vec![0; 16] };
    let frame = frame_of(&Tree::Tensor(tensor), EncodeOptions::default());
    assert_eq!(measure(|| drop(decode(&frame, DecodeOptions::default()))).count_total, 0);
}

#[test]
fn damaged_frames_stay_within_their_size() {
    let frame = frame_of(&one_of_each(), EncodeOptions { payload_checksum: true });
    assert!(assert_frame_bound(&frame));
    for at in 0..frame.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = frame.clone();
            damaged[at] = value;
            assert_frame_bound(&damaged);
            if damaged[40..48] == frame[40..48] {
                repair(&mut damaged);
                assert_frame_bound(&damaged);
            }
        }
    }
}

#[test]
fn the_densest_dicts_stay_within_their_size() {
    // Every key in as few bytes as there are, in one dict and in dicts of one.
    let entries = (0..20_000_u64).map(|number| (Key::U64(number), Tree::None)).collect();
    let one = Tree::<Owned>::Dict(Dict::from_entries(entries).unwrap());
    let many = Tree::List(
        (0..20_000)
            .map(|_| {
                let mut dict = Dict::new();
                dict.insert("", Tree::None);
                Tree::Dict(dict)
            })
            .collect(),
    );
    for tree in [one, many] {
        assert!(assert_frame_bound(&frame_of(&tree, EncodeOptions::default())));
        let text = encode_metadata(&flatten(tree.as_ref()).0, Dialect::Extended).unwrap();
        assert!(assert_text_bound(&text));
    }
}

#[test]
fn texts_that_promise_much_get_little() {
    for text in [
        "4294967295,0".to_owned(),
        "18446744073709551615,0".into(),
        "99999999999999999999999999,0".into(),
        "1000,0|2000.1000,1".into(),
        format!("{}0,0", "0.".repeat(100_000)),
        format!("{}0,0", "900.".repeat(127)),
        "|".repeat(1 << 20),
        format!("v1,3{}", "|0,3".repeat(100_000)),
        format!("v1,5|${},0", "%41".repeat(100_000)),
        format!("v1,5|${},0", "k".repeat(1 << 20)),
        "v1,4|0,4|0.0,4".replace("v1", "v2"),
    ] {
        assert!(!assert_text_bound(&text), "{}", &text[..20.min(text.len())]);
    }
    // What is read is within the bound too, at its worst: empty containers, and as many gaps as are allowed.
    let lists = (0..60_000).fold("v1,3".to_owned(), |text, index| text + &format!("|{index},3"));
    assert!(assert_text_bound(&lists));
    assert!(assert_text_bound("1023,0|1025,0"));
    let keys = (0..4000).fold("v1,5".to_owned(), |text, index| text + &format!("|${index:0>200},5"));
    assert!(assert_text_bound(&keys));
}
