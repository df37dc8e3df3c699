//! Trees made from bytes: flatten, text and frame give every one of them back.

#![no_main]

use brigade_wire::{
    DType, DecodeOptions, Dialect, Dict, Direction, EncodeOptions, Header, Key, Shape, Tag, TensorView, Tree, decode,
    decode_metadata, encode, encode_metadata, flatten, unflatten,
};
use libfuzzer_sys::fuzz_target;

/// Deals out bytes; zeros once they are used up.
struct Deal<'a>(&'a [u8]);

impl<'a> Deal<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn word(&mut self) -> u64 {
        self.take(8).iter().fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    fn text(&mut self) -> String {
        let length = usize::from(self.byte() % 32);
        String::from_utf8_lossy(self.take(length)).into_owned()
    }

    fn tree(&mut self, depth: usize) -> Tree<&'a [u8]> {
        let code = self.byte();
        let n_items = if depth < 40 { usize::from(code >> 4) % 5 } else { 0 };
        match code & 15 {
            0 => Tree::None,
            1 => Tree::Bool(code > 127),
            2 => Tree::I64(self.word().cast_signed()),
            3 => Tree::U64(self.word()),
            4 => Tree::F32(f32::from_bits(self.word() as u32)),
            5 => Tree::F64(f64::from_bits(self.word())),
            6 => Tree::Str(self.text()),
            7 => Tree::Bytes(self.take(usize::from(code >> 4)).to_vec()),
            8 | 9 => Tree::List((0..n_items).map(|_| self.tree(depth + 1)).collect()),
            10 | 11 => Tree::Tuple((0..n_items).map(|_| self.tree(depth + 1)).collect()),
            12 | 13 => {
                let mut dict = Dict::new();
                for _ in 0..n_items {
                    let key = match self.byte() % 3 {
                        0 => Key::Str(self.text()),
                        1 => Key::I64(self.word().cast_signed()),
                        _ => Key::U64(self.word()),
                    };
                    let value = self.tree(depth + 1);
                    dict.insert(key, value);
                }
                Tree::Dict(dict)
            }
            _ => {
                let length = usize::from(self.byte());
                Tree::Tensor(self.take(length))
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut deal = Deal(bytes);
    let header = Header {
        run_id: deal.word(),
        sender: u32::from(deal.byte()),
        tag: Tag { stage: u32::from(deal.byte()), direction: Direction::Backward, micro_batch: 0 },
    };
    let payload_checksum = deal.byte() & 1 == 1;
    let tree = deal.tree(0);

    let (metadata, leaves) = flatten(tree.clone());
    assert_eq!(metadata.len(), leaves.len());
    assert_eq!(unflatten(&metadata, leaves).as_ref(), Ok(&tree));

    let text = encode_metadata(&metadata, Dialect::Extended).expect("the tree is within the limits");
    assert_eq!(decode_metadata(&text, Dialect::Extended).as_ref(), Ok(&metadata));

    let shapes: Vec<[usize; 1]> = {
        let mut shapes = Vec::new();
        tree.for_each(|data| shapes.push([data.len()]));
        shapes
    };
    let mut next = shapes.iter();
    let views = tree.map(|data| {
        let shape = Shape::from(next.next().expect("one shape a tensor"));
        let dtype = if data.len() % 2 == 0 { DType::U8 } else { DType::Quantized { scheme: &data[..1] } };
        TensorView { dtype, shape, wants_grad: data.len() % 3 == 0, data }
    });
    let (_, leaves) = flatten(views.clone());
    let frame = encode(&header, &metadata, &leaves, EncodeOptions { payload_checksum }).expect("within the limits");
    let bytes = frame.to_vec();
    assert_eq!(bytes.len() as u64, frame.n_bytes());
    let frame = decode(&bytes, DecodeOptions::default()).expect("what was written can be read");
    assert_eq!(frame.header(), &header);
    assert_eq!(frame.to_tree(), views);
});
