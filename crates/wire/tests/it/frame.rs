//! The bytes of a frame, against a frame that was put together by hand.

use brigade_wire::{
    DType, DTypeError, DecodeOptions, Dict, Direction, EncodeError, EncodeOptions, Header, Leaf, LeafKind,
    Shape, Tag, TensorError, TensorView, Tree, decode, encode, flatten,
};

use crate::faults::crc32c;

#[test]
fn the_layout_is_the_documented_one() {
    // (bf16 [5] with gradient, None, True, -5) under key "a", and bytes under 7.
    let data = [1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let tensor = TensorView { dtype: DType::BF16, shape: Shape::from(&[5]), wants_grad: true, data: &data };
    let mut dict = Dict::new();
    dict.insert("a", (Tree::Tensor(tensor), None::<bool>, true, -5_i64));
    dict.insert(7_u64, Tree::Bytes(vec![0xab]));
    let tag = Tag { stage: 0x0102, direction: Direction::Backward, micro_batch: 0x0304 };
    let header = Header { run_id: 0x1122_3344_5566_7788, sender: 0x0506, tag };

    let metadata = [5, 9, 1, b'a', 4, 0, 2, 1, 1, 8, 11, 7, 7, 8];
    let table = [
        &[0, 4, 1, 1, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..],
        &[2],
        &[1, 1],
        &[3, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[8, 1, 0, 0, 0, 0xab],
    ]
    .concat();
    let mut expected = [
        &b"BRGD"[..],
        &[1, 0],
        &[1, 0],
        &192_u64.to_le_bytes(),
        &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
        &[6, 5, 0, 0],
        &[2, 1, 0, 0],
        &[1, 0, 0, 0],
        &[4, 3, 0, 0],
        &[14, 0, 0, 0],
        &[42, 0, 0, 0],
        &[5, 0, 0, 0],
        &crc32c(&data).to_le_bytes(),
        &crc32c(&[&metadata[..], &table].concat()).to_le_bytes(),
    ]
    .concat();
    assert_eq!(expected.len(), 60);
    expected.extend(crc32c(&expected).to_le_bytes());
    expected.extend(metadata);
    expected.extend(&table);
    expected.resize(128, 0);
    expected.extend(data);
    expected.resize(192, 0);

    let tree = Tree::Dict(dict);
    let (structure, leaves) = flatten(tree.clone());
    let frame = encode(&header, &structure, &leaves, EncodeOptions { payload_checksum: true }).unwrap();
    assert_eq!(frame.head(), &expected[..128]);
    assert_eq!(frame.slices().collect::<Vec<_>>(), [&expected[..128], &data, &[0; 54]]);
    assert_eq!(frame.to_vec(), expected);
    let read = decode(&expected, DecodeOptions::default()).unwrap();
    assert_eq!((read.header(), read.to_tree()), (&header, tree));
}

#[test]
fn the_checksum_is_crc32c() {
    // The check value of the catalogue of parametrised CRC algorithms for CRC-32/ISCSI.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn deepspeed_numbers_are_a_mapping() {
    let names =
        ["f32", "f64", "complex64", "complex128", "f16", "bf16", "u8", "i8", "i16", "i32", "i64", "bool"];
    for (id, name) in (0_u8..).zip(names) {
        let dtype = DType::from_deepspeed_id(id).unwrap();
        assert_eq!((dtype.name(), dtype.deepspeed_id()), (name, Some(id)));
    }
    assert_eq!(DType::from_deepspeed_id(12), Err(DTypeError::DeepSpeedId { id: 12 }));
    let others: Vec<_> =
        DType::fixed().filter(|dtype| dtype.deepspeed_id().is_none()).map(DType::name).collect();
    assert_eq!(others, ["flex32", "u64", "u32", "u16", "bool(u8)", "bool(u32)"]);
}

#[test]
fn every_dtype_crosses() {
    let scheme: Vec<u8> = (0..=255).cycle().take(1024).collect();
    for dtype in
        DType::fixed().chain([DType::Quantized { scheme: &[] }, DType::Quantized { scheme: &scheme }])
    {
        let size = usize::try_from(dtype.size().unwrap_or(1)).unwrap();
        let data: Vec<u8> = (0..u8::MAX).cycle().take(6 * size).collect();
        let view = TensorView { dtype, shape: Shape::from(&[3, 2]), wants_grad: false, data: &data };
        let (metadata, leaves) = flatten(Tree::Tensor(view));
        let tag = Tag { stage: 0, direction: Direction::Forward, micro_batch: 0 };
        let header = Header { run_id: 0, sender: 0, tag };
        let bytes = encode(&header, &metadata, &leaves, EncodeOptions::default()).unwrap().to_vec();
        assert_eq!(
            decode(&bytes, DecodeOptions::default()).unwrap().to_tree(),
            Tree::Tensor(view),
            "{dtype}"
        );
    }
}

#[test]
fn what_cannot_be_read_is_not_written() {
    let tag = Tag { stage: 0, direction: Direction::Forward, micro_batch: 0 };
    let header = Header { run_id: 0, sender: 0, tag };
    let write = |tree: Tree<TensorView<'_>>| {
        let (metadata, leaves) = flatten(tree);
        encode(&header, &metadata, &leaves, EncodeOptions::default()).map(drop)
    };
    let view = TensorView { dtype: DType::F32, shape: Shape::from(&[2]), wants_grad: false, data: &[0; 8] };
    write(Tree::Tensor(view)).unwrap();

    let (metadata, leaves) = flatten(Tree::from((Tree::Tensor(view), true)));
    let one = encode(&header, &metadata, &leaves[..1], EncodeOptions::default()).map(drop);
    assert_eq!(one, Err(EncodeError::LeafCount { expected: 2, actual: 1 }));
    let swapped = [Leaf::Bool(true), Leaf::Tensor(view)];
    let swapped = encode(&header, &metadata, &swapped, EncodeOptions::default()).map(drop);
    let expected = EncodeError::LeafKind { index: 0, expected: LeafKind::Tensor, actual: LeafKind::Scalar };
    assert_eq!(swapped, Err(expected));

    let short = write(Tree::from((true, Tree::Tensor(TensorView { data: &[0; 7], ..view }))));
    let error = TensorError::Bytes { dtype: "f32", shape: vec![2], expected: 8, actual: 7 };
    assert_eq!(short, Err(EncodeError::Tensor { index: 1, error }));
    let many = [1; 65];
    let rank =
        write(Tree::Tensor(TensorView { shape: Shape::from(&many), data: &[0; 4], ..view })).unwrap_err();
    assert_eq!(rank.to_string(), "leaf 0: dimensions of a tensor: 65 exceeds the limit of 64");
    let scheme = DType::Quantized { scheme: &[0; 1025] };
    let scheme = write(Tree::Tensor(TensorView { dtype: scheme, ..view })).unwrap_err();
    assert_eq!(scheme.to_string(), "leaf 0: bytes of a quantisation scheme: 1025 exceeds the limit of 1024");

    let deep = (0..129).fold(Tree::None, |tree, _| Tree::List(vec![tree]));
    let error = write(deep).unwrap_err();
    assert_eq!(error.to_string(), "depth of the tree: 129 exceeds the limit of 128");
    let error = write(Tree::List(vec![Tree::None; 65_536])).unwrap_err();
    assert_eq!(error.to_string(), "nodes of the tree: 65537 exceeds the limit of 65536");
    let mut dict = Dict::new();
    dict.insert("k".repeat(4097), true);
    let error = write(dict.into()).unwrap_err();
    assert_eq!(error.to_string(), "bytes of a dict key: 4097 exceeds the limit of 4096");
    let error = write(Tree::Str("s".repeat((1 << 26) + 1))).unwrap_err();
    assert!(error.to_string().starts_with("bytes of the leaf table: "), "{error}");
}
