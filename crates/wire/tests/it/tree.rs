//! Values, flatten and unflatten: the small cases by hand.

use brigade_wire::{
    ConvertError, Dict, DictError, Key, Leaf, LeafKind, Tree, UnflattenError, flatten, unflatten,
};

/// Trees over `&str` with one of everything that other systems lose.
fn cases() -> Vec<Tree<&'static str>> {
    let t = Tree::Tensor;
    let mut dict = Dict::new();
    dict.insert("a.b,c|d", Tree::I64(1));
    dict.insert("", Tree::List(vec![]));
    dict.insert(5_i64, t("five"));
    dict.insert(5_u64, Tree::None);
    dict.insert(i64::MIN, Tree::Dict(Dict::new()));
    dict.insert(u64::MAX, ());
    vec![
        t("x"),
        Tree::None,
        Tree::Bool(false),
        Tree::I64(i64::MIN),
        Tree::U64(u64::MAX),
        Tree::F32(f32::from_bits(0x7fa0_0001)),
        Tree::F64(f64::from_bits(0xfff4_0000_0000_0001)),
        Tree::F64(-0.0),
        Tree::F64(0.1),
        Tree::Str("\u{0}é|,.".into()),
        Tree::Bytes(vec![0, 255]),
        ().into(),
        Tree::List(vec![]),
        Tree::Dict(Dict::new()),
        (t("x"),).into(),
        Tree::List(vec![t("x")]),
        Tree::List(vec![Tree::List(vec![]), ().into(), Tree::Dict(Dict::new())]),
        (Tree::List(vec![]), t("x"), Tree::List(vec![])).into(),
        ((((((), ()),),),),).into(),
        Tree::Dict(dict.clone()),
        (t("x"), Tree::Dict(dict), (1_i64, None::<bool>), vec![1.5_f64]).into(),
    ]
}

#[test]
fn unflatten_is_the_inverse_of_flatten() {
    for tree in cases() {
        let (metadata, leaves) = flatten(tree.clone());
        assert_eq!(metadata.len(), leaves.len());
        assert_eq!(unflatten(&metadata, leaves).as_ref(), Ok(&tree), "{tree}");
        let (by_ref, refs) = flatten(tree.as_ref());
        assert_eq!(by_ref, metadata);
        assert_eq!(unflatten(&by_ref, refs).unwrap().map(|name| *name), tree);
    }
}

#[test]
fn different_structures_have_different_metadata() {
    let all: Vec<_> = cases().into_iter().map(|tree| (tree.clone(), flatten(tree).0)).collect();
    for (i, (a, ma)) in all.iter().enumerate() {
        for (b, mb) in &all[i + 1..] {
            let scalars = |tree: &Tree<&str>| matches!(tree.kind(), "bool" | "i64" | "u64" | "f32" | "f64");
            assert_eq!(ma == mb, scalars(a) && scalars(b), "{a} against {b}");
        }
    }
}

#[test]
fn a_tree_far_deeper_than_any_limit_flattens_without_recursion() {
    let mut tree: Tree<u8> = Tree::None;
    for _ in 0..200_000 {
        tree = Tree::List(vec![tree]);
    }
    let (metadata, leaves) = flatten(tree);
    assert_eq!((metadata.depth(), metadata.n_nodes(), leaves.len()), (200_000, 200_001, 1));
    let mut tree = unflatten(&metadata, leaves).unwrap();
    // Taken apart by hand: dropping it whole would recurse.
    while let Tree::List(mut items) = tree {
        tree = items.pop().unwrap();
    }
    assert_eq!(tree, Tree::None);
}

#[test]
fn leaves_that_do_not_fit_are_refused_with_the_place() {
    let (metadata, leaves) = flatten(Tree::from((Tree::Tensor(1_u8), vec![Tree::Str("s".into())])));
    let mut short = leaves.clone();
    short.pop();
    assert_eq!(unflatten(&metadata, short), Err(UnflattenError::LeafCount { expected: 2, actual: 1 }));
    let swapped = leaves.into_iter().rev().collect();
    assert_eq!(
        unflatten(&metadata, swapped),
        Err(UnflattenError::LeafKind {
            index: 0,
            path: "0".into(),
            expected: LeafKind::Tensor,
            actual: LeafKind::Str
        })
    );
    let (metadata, _) = flatten(Tree::from(((), [(Tree::<u8>::None, true)])));
    let error = unflatten(&metadata, vec![Leaf::<u8>::None, Leaf::None]).unwrap_err();
    assert_eq!(error.to_string(), "leaf 1 (path `1.0.1`) must be a scalar, got a None");
}

#[test]
fn integers_too_wide_are_errors() {
    type T = Tree<()>;
    assert_eq!(T::try_from(i128::from(i64::MIN)), Ok(Tree::I64(i64::MIN)));
    assert_eq!(T::try_from(i128::from(u64::MAX)), Ok(Tree::U64(u64::MAX)));
    assert_eq!(T::try_from(7_usize), Ok(Tree::I64(7)));
    for wide in [i128::from(i64::MIN) - 1, i128::from(u64::MAX) + 1, i128::MIN, i128::MAX] {
        assert_eq!(T::try_from(wide), Err(ConvertError::TooWide { value: wide.to_string() }));
    }
    assert!(T::try_from(u128::MAX).is_err());
}

#[test]
fn dicts_keep_order_and_refuse_a_second_key() {
    let entries = vec![(Key::from("b"), Tree::<()>::I64(1)), (Key::from("a"), Tree::I64(2))];
    let mut dict = Dict::from_entries(entries.clone()).unwrap();
    assert_eq!(dict.insert("b", 3_i64), Some(Tree::I64(1)));
    assert_eq!(dict.keys().map(Key::to_string).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(dict.remove(&"b".into()), Some(Tree::I64(3)));
    assert_eq!(dict.len(), 1);
    let twice = [entries.clone(), entries].concat();
    assert_eq!(Dict::from_entries(twice), Err(DictError::DuplicateKey { key: "b".into() }));
}

#[test]
fn equality_is_by_bits_and_by_type() {
    let nan = Tree::<()>::F64(f64::NAN);
    assert_eq!(nan, nan.clone());
    assert_ne!(Tree::<()>::F64(0.0), Tree::F64(-0.0));
    assert_ne!(Tree::<()>::F64(f64::NAN), Tree::F64(-f64::NAN));
    assert_ne!(Tree::<()>::I64(1), Tree::U64(1));
    assert_ne!(Tree::<()>::F32(1.0), Tree::F64(1.0));
    assert_ne!(Tree::<()>::from(()), Tree::List(vec![]));
    assert_ne!(Tree::<()>::from((1_i64,)), Tree::I64(1));
}

#[test]
fn metadata_shows_its_structure() {
    let mut dict = Dict::new();
    dict.insert("k", (Tree::Tensor(1_u8),));
    dict.insert(5_i64, Tree::List(vec![Tree::None, Tree::Str("s".into())]));
    let (metadata, _) = flatten(Tree::from((dict, (), true, Tree::Bytes(vec![]))));
    assert_eq!(format!("{metadata:?}"), "({k: (tensor), 5: [None, str]}, (), scalar, bytes)");
    let kinds: Vec<_> = metadata.leaf_kinds().map(|kind| kind.to_string()).collect();
    assert_eq!(kinds, ["tensor", "None", "str", "scalar", "bytes"]);
    let paths: Vec<_> = (0..6).map(|index| metadata.leaf_path(index)).collect();
    assert_eq!(
        paths,
        ["0.0.0", "0.1.0", "0.1.1", "2", "3"]
            .map(|path| Some(path.to_owned()))
            .into_iter()
            .chain([None])
            .collect::<Vec<_>>()
    );
    assert_eq!((metadata.len(), metadata.n_nodes(), metadata.depth()), (5, 10, 3));
}

#[test]
fn conversions_build_what_they_say() {
    let tree: Tree<u8> = (Some("s"), None::<i64>, vec![1_u32, 2], [true], ((1.5_f32,),), ()).into();
    assert_eq!(tree.to_string(), r#"("s", None, [1, 2], [True], ((1.5,),), ())"#);
    let map = std::collections::BTreeMap::from([("b", 1_i64), ("a", 2)]);
    assert_eq!(Tree::<u8>::from(map).to_string(), "{a: 2, b: 1}");
    assert_eq!(Tree::Tensor(3).into_tensor(), Ok(3));
    let error = Tree::<u8>::None.into_tensor().unwrap_err();
    assert_eq!(error, ConvertError::Kind { expected: "tensor", actual: "None" });
    let error = Tree::<()>::from([1_i64, 2]).into_array::<3>().unwrap_err();
    assert_eq!(error, ConvertError::Length { expected: 3, actual: 2 });
}

/// Python prints 711741867502121.25 with the even one of the two nearest digits, Rust with the larger.
#[test]
fn floats_are_printed_as_python_prints_them() {
    for (value, text) in [
        (711_741_867_502_121.2, "711741867502121.2"),
        (2_251_799_813_685_248.5, "2251799813685248.5"),
        (-0.0, "-0.0"),
        (100.0, "100.0"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1e-5, "1e-05"),
        (5e-324, "5e-324"),
        (f64::MAX, "1.7976931348623157e+308"),
    ] {
        let printed = brigade_wire::nested_list_string(&brigade_wire::Tree::<()>::F64(value), |()| {
            brigade_wire::TensorText::default()
        });
        assert_eq!(printed, text);
    }
}
