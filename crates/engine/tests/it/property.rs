//! Values of random structure survive the way into a tree and back, bit for bit.

use std::collections::{BTreeMap, HashMap};

use brigade_engine::wire::{Dict, Tree};
use brigade_engine::{AnyTensor, Value, ValueError, value_struct};
use burn::tensor::{Device, Int, Tensor, TensorData};
use proptest::prelude::*;

type Nested = Vec<Option<(Vec<Option<i64>>, String, BTreeMap<String, Option<Option<u64>>>, bool)>>;

fn nested() -> impl Strategy<Value = Nested> {
    let integers = prop::collection::vec(prop::option::of(any::<i64>()), 0..4);
    let map = prop::collection::btree_map(".{0,3}", prop::option::of(prop::option::of(any::<u64>())), 0..4);
    prop::collection::vec(prop::option::of((integers, ".{0,5}", map, any::<bool>())), 0..4)
}

fn round_trip<V: Value>(value: V) -> V {
    V::from_tree(value.into_tree().expect("every value has a tree")).expect("a tree gives its value back")
}

#[derive(Clone, Debug, PartialEq)]
struct Inner<T> {
    text: String,
    items: Vec<T>,
    bytes: Vec<u8>,
}
value_struct!([T: Value] Inner<T> { text, items, bytes });

#[derive(Clone, Debug, PartialEq)]
struct Outer {
    inner: Option<Box<Inner<i16>>>,
    pair: [(u32, i32); 2],
    sizes: (usize, isize, u16, i8),
    counts: HashMap<String, [u64; 3]>,
}
value_struct!(Outer { inner, pair, sizes, counts });

#[derive(Clone, Debug, PartialEq)]
struct Nothing {}
value_struct!(Nothing {});

prop_compose! {
    fn outer()(
        text in ".{0,5}",
        items in prop::collection::vec(any::<i16>(), 0..4),
        bytes in prop::collection::vec(any::<u8>(), 0..9),
        present in any::<bool>(),
        pair in any::<[(u32, i32); 2]>(),
        sizes in any::<(usize, isize, u16, i8)>(),
        counts in prop::collection::hash_map(".{0,3}", any::<[u64; 3]>(), 0..6),
    ) -> Outer {
        let inner = present.then(|| Box::new(Inner { text, items, bytes }));
        Outer { inner, pair, sizes, counts }
    }
}

/// A tree of every kind of node, floats of all bit patterns among them.
fn tree() -> impl Strategy<Value = Tree<AnyTensor>> {
    let leaf = prop_oneof![
        Just(Tree::None),
        any::<bool>().prop_map(Tree::Bool),
        any::<i64>().prop_map(Tree::I64),
        any::<u64>().prop_map(Tree::U64),
        any::<u32>().prop_map(|bits| Tree::F32(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Tree::F64(f64::from_bits(bits))),
        ".{0,5}".prop_map(Tree::Str),
        prop::collection::vec(any::<u8>(), 0..5).prop_map(Tree::Bytes),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::List),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Tuple),
            prop::collection::btree_map(".{0,3}", inner, 0..4).prop_map(|map| {
                let mut dict = Dict::new();
                for (key, value) in map {
                    dict.insert(key, value);
                }
                Tree::Dict(dict)
            }),
        ]
    })
}

/// A tree without tensors, which can be compared.
fn comparable(tree: Tree<AnyTensor>) -> Tree<()> {
    tree.map(drop)
}

proptest! {
    #[test]
    fn nested_values_come_back(value in nested()) {
        prop_assert_eq!(round_trip(value.clone()), value);
    }

    #[test]
    fn structs_maps_arrays_and_narrow_integers_come_back(value in outer()) {
        prop_assert_eq!(round_trip(value.clone()), value);
    }

    #[test]
    fn a_value_of_any_structure_comes_back_as_it_is(value in tree()) {
        prop_assert_eq!(comparable(round_trip(value.clone())), comparable(value));
    }

    #[test]
    fn floats_come_back_bit_for_bit(bits in any::<u64>(), narrow in any::<u32>()) {
        prop_assert_eq!(round_trip(f64::from_bits(bits)).to_bits(), bits);
        prop_assert_eq!(round_trip(f32::from_bits(narrow)).to_bits(), narrow);
    }

    #[test]
    fn tensors_come_back_among_other_values(
        values in prop::collection::vec(any::<i32>(), 0..20),
        count in any::<u64>(),
    ) {
        let length = values.len();
        let data = TensorData::new(values.clone(), [length]);
        let tensor = Tensor::<1, Int>::from_data(data, &Device::flex());
        let any = AnyTensor::new(tensor.clone()).expect("rank 1");
        let (back, (), found, any) = round_trip((vec![tensor], (), Some(count), any));
        prop_assert_eq!(found, Some(count));
        prop_assert_eq!(back[0].clone().into_data().iter::<i32>().collect::<Vec<_>>(), values.clone());
        prop_assert_eq!(any.into_data().iter::<i32>().collect::<Vec<_>>(), values);
    }

    #[test]
    fn integers_that_do_not_fit_are_refused(value in any::<i64>(), other in any::<u64>()) {
        let back = |tree: i64| tree.into_tree().expect("an i64 has a tree");
        prop_assert_eq!(i8::from_tree(back(value)).ok(), i8::try_from(value).ok());
        prop_assert_eq!(i32::from_tree(back(value)).ok(), i32::try_from(value).ok());
        let back = |tree: u64| tree.into_tree().expect("a u64 has a tree");
        prop_assert_eq!(u16::from_tree(back(other)).ok(), u16::try_from(other).ok());
        prop_assert_eq!(u32::from_tree(back(other % (1 << 33))).ok(), u32::try_from(other % (1 << 33)).ok());
        prop_assert!(i32::from_tree(back(other)).is_err(), "a signed integer is none without sign");
    }

    #[test]
    fn a_value_of_another_type_is_refused(value in any::<i64>(), text in ".{0,5}") {
        prop_assert!(String::from_tree(value.into_tree().expect("a tree")).is_err());
        prop_assert!(<(i64, i64)>::from_tree((1_i64, 2_i64, 3_i64).into_tree().expect("a tree")).is_err());
        prop_assert!(<[i64; 2]>::from_tree(vec![1_i64, 2, 3].into_tree().expect("a tree")).is_err());
        prop_assert!(Tensor::<1>::from_tree(text.clone().into_tree().expect("a tree")).is_err());
        prop_assert!(AnyTensor::from_tree(text.into_tree().expect("a tree")).is_err());
    }

    /// A hash map has another order in every process; its tree has one.
    #[test]
    fn a_hash_map_has_one_tree(entries in prop::collection::vec((".{0,3}", any::<i64>()), 0..8)) {
        let one: HashMap<String, i64> = entries.iter().cloned().collect();
        let other: BTreeMap<String, i64> = entries.into_iter().collect();
        let trees = (one.into_tree().expect("a tree"), other.into_tree().expect("a tree"));
        prop_assert_eq!(comparable(trees.0), comparable(trees.1));
    }
}

#[test]
fn the_ends_of_every_number_come_back() {
    for value in [i64::MIN, -1, 0, i64::MAX] {
        assert_eq!(round_trip(value), value);
    }
    assert_eq!(round_trip((u64::MAX, usize::MAX, isize::MIN)), (u64::MAX, usize::MAX, isize::MIN));
    for bits in [0x7ff0_0000_0000_0001, 0xffff_ffff_ffff_ffff, 0x8000_0000_0000_0000_u64] {
        assert_eq!(round_trip(f64::from_bits(bits)).to_bits(), bits, "signalling and quiet NaN, minus zero");
    }
    for bits in [0x7f80_0001, 0xffff_ffff, 0x8000_0000_u32] {
        assert_eq!(round_trip(f32::from_bits(bits)).to_bits(), bits);
    }
    assert_eq!(round_trip(Nothing {}), Nothing {});
}

/// A misfit deep inside says where it is, by the names of the fields.
#[test]
fn errors_say_where_in_a_structure() {
    fn message<V: Value>(tree: impl Value) -> String {
        let error = V::from_tree(tree.into_tree().expect("a tree")).err();
        error.as_ref().map(ValueError::to_string).unwrap_or_default()
    }
    let inner = Inner { text: "x".to_owned(), items: vec![1_i64, 1 << 40], bytes: Vec::new() };
    let map = BTreeMap::from([("a key".to_owned(), (true, Some(inner.clone())))]);
    assert_eq!(
        message::<BTreeMap<String, (bool, Option<Inner<i16>>)>>(map),
        "at `a key.1.items.1`: expected an i16, found I64(1099511627776)"
    );
    assert_eq!(
        message::<Outer>(inner.clone()),
        "at `inner`: expected this field, found a dict of 3 (`text`, `items`, `bytes`)"
    );
    assert_eq!(
        message::<Nothing>(inner),
        "expected no further field, found a dict of 3 (`text`, `items`, `bytes`)"
    );
    assert_eq!(message::<Nothing>(3.5), "expected a dict of fields, found F64(3.5)");
}
