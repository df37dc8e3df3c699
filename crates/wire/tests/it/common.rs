//! Tensors that own their bytes, any tree over them, and a message to send them in.

use brigade_wire::{
    DType, Dict, Direction, EncodeOptions, Header, Key, Shape, Tag, TensorView, Tree, encode, flatten,
};
use proptest::{collection::vec, prelude::*};

/// A tensor that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owned {
    /// Position in `DType::fixed`, or quantised with this scheme.
    pub(crate) dtype: Result<usize, Vec<u8>>,
    pub(crate) shape: Vec<usize>,
    pub(crate) wants_grad: bool,
    pub(crate) data: Vec<u8>,
}

impl Owned {
    pub(crate) fn view(&self) -> TensorView<'_> {
        let dtype = match &self.dtype {
            Ok(position) => DType::fixed().nth(*position).unwrap(),
            Err(scheme) => DType::Quantized { scheme },
        };
        TensorView { dtype, shape: Shape::from(&self.shape), wants_grad: self.wants_grad, data: &self.data }
    }
}

/// Header number `number`: every field differs from every other one.
pub(crate) fn header(number: u32) -> Header {
    let direction = if number.is_multiple_of(2) { Direction::Forward } else { Direction::Backward };
    let tag = Tag { stage: number + 1, direction, micro_batch: number + 2 };
    Header { run_id: u64::from(number) << 40 | 3, sender: number + 4, tag }
}

/// The frame of a tree in one buffer.
pub(crate) fn frame_of(tree: &Tree<Owned>, options: EncodeOptions) -> Vec<u8> {
    let (metadata, leaves) = flatten(tree.as_ref());
    let views: Vec<_> = leaves.into_iter().map(|leaf| leaf.map(Owned::view)).collect();
    encode(&header(6), &metadata, &views, options).unwrap().to_vec()
}

/// A tree with a leaf of every kind in every kind of container, for tests that take a frame apart.
pub(crate) fn one_of_each() -> Tree<Owned> {
    let tensor = |dtype, shape: &[usize], n_bytes: u8| {
        let data = (0..n_bytes).collect();
        Tree::Tensor(Owned { dtype, shape: shape.to_vec(), wants_grad: n_bytes > 8, data })
    };
    let mut dict = Dict::new();
    dict.insert("logits", tensor(Ok(1), &[2, 3], 24));
    dict.insert(-5_i64, Tree::Bytes(vec![1, 2, 3]));
    dict.insert(u64::MAX, ());
    (
        Tree::Dict(dict),
        vec![tensor(Err(b"q4s".to_vec()), &[7], 4), tensor(Ok(0), &[0, 5], 0)],
        (true, None::<bool>, -1_i64, u64::MAX, 0.1_f32, f64::NAN),
        "text",
        tensor(Ok(12), &[], 1),
    )
        .into()
}

pub(crate) fn tensors() -> impl Strategy<Value = Owned> {
    let fixed = (0..DType::fixed().len(), vec(0..4_usize, 0..4)).prop_map(|(position, shape)| {
        let size = usize::try_from(DType::fixed().nth(position).unwrap().size().unwrap()).unwrap();
        let n_bytes = shape.iter().product::<usize>() * size;
        (Ok(position), shape, n_bytes)
    });
    let quantized = (vec(any::<u8>(), 0..9), vec(0..=usize::MAX, 0..4), 0..200_usize)
        .prop_map(|(scheme, shape, n_bytes)| (Err(scheme), shape, n_bytes));
    (prop_oneof![3 => fixed, 1 => quantized], any::<bool>(), any::<u8>()).prop_map(
        |((dtype, shape, n_bytes), wants_grad, fill)| Owned {
            dtype,
            shape,
            wants_grad,
            data: vec![fill; n_bytes],
        },
    )
}

pub(crate) fn keys() -> impl Strategy<Value = Key> {
    prop_oneof![
        3 => "[a-c.,|%$#+\u{e9}\n]{0,4}".prop_map(Key::Str),
        1 => ".{0,300}".prop_map(Key::Str),
        2 => any::<i64>().prop_map(Key::I64),
        1 => (-3..3_i64).prop_map(Key::I64),
        2 => any::<u64>().prop_map(Key::U64),
        1 => (0..3_u64).prop_map(Key::U64),
    ]
}

pub(crate) fn leaves() -> impl Strategy<Value = Tree<Owned>> {
    prop_oneof![
        4 => tensors().prop_map(Tree::Tensor),
        2 => Just(Tree::None),
        1 => any::<bool>().prop_map(Tree::Bool),
        1 => any::<i64>().prop_map(Tree::I64),
        1 => any::<u64>().prop_map(Tree::U64),
        1 => any::<u32>().prop_map(|bits| Tree::F32(f32::from_bits(bits))),
        1 => any::<u64>().prop_map(|bits| Tree::F64(f64::from_bits(bits))),
        1 => ".{0,9}".prop_map(Tree::Str),
        1 => vec(any::<u8>(), 0..9).prop_map(Tree::Bytes),
    ]
}

fn dict_of(entries: Vec<(Key, Tree<Owned>)>) -> Tree<Owned> {
    let mut dict = Dict::new();
    for (key, value) in entries {
        dict.insert(key, value);
    }
    Tree::Dict(dict)
}

/// Any tree, empty containers anywhere.
pub(crate) fn trees() -> impl Strategy<Value = Tree<Owned>> {
    leaves().prop_recursive(6, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Tree::List),
            vec(inner.clone(), 0..5).prop_map(Tree::Tuple),
            vec((keys(), inner), 0..5).prop_map(dict_of),
        ]
    })
}

/// Trees of tuples, tensors, scalars and None: mostly what Slapo can send.
pub(crate) fn slapo_trees() -> impl Strategy<Value = Tree<Owned>> {
    let leaf = prop_oneof![
        tensors().prop_map(Tree::Tensor),
        Just(Tree::None),
        any::<bool>().prop_map(Tree::Bool),
        any::<i64>().prop_map(Tree::I64),
    ];
    let inner = leaf.prop_recursive(4, 24, 4, |inner| vec(inner, 0..4).prop_map(Tree::Tuple));
    vec(inner, 0..5).prop_map(Tree::Tuple)
}
