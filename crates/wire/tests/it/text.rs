//! The text form by hand: what is written, what is refused, and where.

use brigade_wire::{
    DecodeTextError, Dialect, Dict, EncodeTextError, Inexpressible, Key, Limit, MetadataError, Tree,
    decode_metadata, encode_metadata, flatten,
};

type T = Tree<()>;

const TENSOR: T = Tree::Tensor(());

fn text(tree: T) -> String {
    let (metadata, _) = flatten(tree);
    let text = encode_metadata(&metadata, Dialect::Extended).unwrap();
    assert_eq!(decode_metadata(&text, Dialect::Extended), Ok(metadata), "{text}");
    text
}

#[test]
fn slapo_where_it_can_and_the_extension_elsewhere() {
    let dict = |entries: Vec<(Key, T)>| T::from(Dict::from_entries(entries).unwrap());
    for (tree, expected) in [
        ((TENSOR,).into(), "0,0"),
        (((TENSOR, None::<bool>), 1_i64).into(), "0.0,0|0.1,2|1,1"),
        (((), (), 1_i64).into(), "2,1"),
        ((((), TENSOR), 1_i64).into(), "0.1,0|1,1"),
        (TENSOR, "v1,0"),
        (Tree::None, "v1,2"),
        ("s".into(), "v1,6"),
        (().into(), "v1,4"),
        (Tree::List(vec![]), "v1,3"),
        (Tree::List(vec![TENSOR]), "v1,3|0,0"),
        ((TENSOR, ()).into(), "v1,4|0,0|1,4"),
        ((((),), TENSOR).into(), "v1,4|0,4|0.0,4|1,0"),
        (((Tree::Bytes(vec![]),),).into(), "v1,4|0,4|0.0,7"),
        (dict(vec![]), "v1,5"),
        (
            dict(vec![("a.b,c|d%".into(), TENSOR), ("".into(), [TENSOR].into()), ("é\n".into(), Tree::None)]),
            "v1,5|$a%2Eb%2Cc%7Cd%25,0|$,3|$.0,0|$é%0A,2",
        ),
        (
            dict(vec![
                (5_i64.into(), TENSOR),
                (5_u64.into(), TENSOR),
                (i64::MIN.into(), dict(vec![(u64::MAX.into(), true.into())])),
            ]),
            "v1,5|#5,0|+5,0|#-9223372036854775808,5|#-9223372036854775808.+18446744073709551615,1",
        ),
    ] {
        assert_eq!(text(tree), expected);
    }
}

#[test]
fn strict_mode_names_what_slapo_loses() {
    let strict = |tree: T| encode_metadata(&flatten(tree).0, Dialect::Slapo).unwrap_err();
    let at = |path: &str, reason| EncodeTextError::Inexpressible { path: path.into(), reason };
    assert_eq!(strict(TENSOR), at("", Inexpressible::BareLeaf));
    assert_eq!(strict(().into()), at("", Inexpressible::EmptyTop));
    assert_eq!(strict(Tree::List(vec![TENSOR])), at("", Inexpressible::List));
    assert_eq!(strict((TENSOR, [TENSOR]).into()), at("1", Inexpressible::List));
    assert_eq!(strict((TENSOR, (1_i64, Dict::new())).into()), at("1.1", Inexpressible::Dict));
    assert_eq!(strict((TENSOR, "s").into()), at("1", Inexpressible::Str));
    assert_eq!(strict((Tree::Bytes(vec![]), TENSOR).into()), at("0", Inexpressible::Bytes));
    assert_eq!(strict((TENSOR, ()).into()), at("1", Inexpressible::LastEmpty));
    assert_eq!(strict((TENSOR, (1_i64, ()), TENSOR).into()), at("1.1", Inexpressible::LastEmpty));
    assert_eq!(strict((TENSOR, ((),), TENSOR).into()), at("1.0", Inexpressible::LastEmpty));
    let gaps = |n_empty: usize| T::Tuple([vec![().into(); n_empty], vec![TENSOR]].concat());
    assert_eq!(text(gaps(1024)), "1024,0");
    assert_eq!(strict(gaps(1025)), at("1024", Inexpressible::TooManyEmpty));
    assert!(text(gaps(1025)).starts_with("v1,4|0,4|1,4|"));
}

#[test]
fn texts_that_are_none() {
    let slapo = |text: &str| decode_metadata(text, Dialect::Slapo).unwrap_err();
    let extended = |text: &str| decode_metadata(text, Dialect::Extended).unwrap_err();
    for text in ["0", "|", "0,0|", "0,0,0", "0,0||1,0"] {
        assert!(matches!(slapo(text), DecodeTextError::Entry { .. }), "{text}");
    }
    for text in ["0,", "0,9", "0,x", "0,5", "0,6", "0,00"] {
        assert_eq!(slapo(text), DecodeTextError::Code { index: 0 }, "{text}");
    }
    assert_eq!(slapo("0,0|1,3"), DecodeTextError::Packed { index: 1 });
    assert_eq!(slapo("0,4"), DecodeTextError::Packed { index: 0 });
    for text in [",0", "a,0", "-1,0", "+1,0", "01,0", " 0,1", "0.,0", ".0,0", "0..1,0", "$k,0"] {
        assert_eq!(slapo(text), DecodeTextError::Path { index: 0 }, "{text}");
    }
    for text in ["0,0|0,0", "1,0|0,0", "0,0|0.0,0", "0.0,0|0,0", "0.1,0|0.0,0"] {
        assert_eq!(slapo(text), DecodeTextError::Order { index: 1 }, "{text}");
    }
    assert!(matches!(slapo("1025,0"), DecodeTextError::Limit(error) if error.limit == Limit::Implied));
    assert_eq!(slapo("v1,4|0,0"), DecodeTextError::Extension);

    assert_eq!(extended("v2,0"), DecodeTextError::Path { index: 0 });
    assert_eq!(extended("v1,8"), DecodeTextError::Code { index: 0 });
    assert_eq!(extended("v1,0|0,0"), DecodeTextError::Parent { index: 1 });
    assert_eq!(extended("v1,3|0,0|0.0,0"), DecodeTextError::Parent { index: 2 });
    assert_eq!(extended("v1,3|1,0"), DecodeTextError::Order { index: 1 });
    assert_eq!(extended("v1,3|0,0|2,0"), DecodeTextError::Order { index: 2 });
    assert_eq!(extended("v1,3|0,3|1,3|0.0,0"), DecodeTextError::Parent { index: 3 });
    for text in [
        "v1,3|$k,0",
        "v1,5|0,0",
        "v1,5|,0",
        "v1,5|#,0",
        "v1,5|#+1,0",
        "v1,5|#01,0",
        "v1,5|+-1,0",
        "v1,3|.0,0",
    ] {
        assert_eq!(extended(text), DecodeTextError::Path { index: 1 }, "{text}");
    }
    for text in [
        "v1,5|$%,0",
        "v1,5|$%4,0",
        "v1,5|$%zz,0",
        "v1,5|$%ff,0",
        "v1,5|$%FF,0",
        "v1,5|#9223372036854775808,0",
    ] {
        assert_eq!(extended(text), DecodeTextError::Path { index: 1 }, "{text}");
    }
    let duplicate = MetadataError::DuplicateKey { key: "k".into() };
    assert_eq!(extended("v1,5|$k,0|#1,0|$%6B,0"), DecodeTextError::Metadata(duplicate));
}

#[test]
fn both_forms_stop_at_the_depth_limit() {
    let nested = |depth: usize| (0..depth).fold(TENSOR, |tree, _| (tree,).into());
    assert_eq!(text(nested(128)).matches('.').count(), 127);
    let error = encode_metadata(&flatten(nested(129)).0, Dialect::Extended).unwrap_err();
    assert!(matches!(error, EncodeTextError::Limit(error) if error.limit == Limit::Depth));
    let slapo = format!("{}0,0", "0.".repeat(128));
    let mut extended = "v1,3".to_owned();
    (1..=128).for_each(|depth| extended += &format!("|{}0,3", "0.".repeat(depth - 1)));
    for text in [slapo, extended] {
        let error = decode_metadata(&text, Dialect::Extended).unwrap_err();
        assert!(matches!(error, DecodeTextError::Limit(error) if error.limit == Limit::Depth), "{error}");
    }
}
