//! Any tree comes back from flatten, text and frames. `PROPTEST_CASES` sets the number of trees.

use brigade_wire::{
    DecodeOptions, Dialect, EncodeOptions, EncodeTextError, Leaf, PayloadCheck, Tree, decode,
    decode_metadata, encode, encode_into, encode_metadata, flatten, frame_bytes, unflatten,
};
use proptest::{collection::vec, prelude::*};

use crate::common::{Owned, header, slapo_trees, trees};

/// What Slapo gives back of a structure: every container is a tuple, and a last item without leaves is lost.
/// `None` where it fails: on a top that is no sequence, on a string, and when there is no leaf at all.
fn through_slapo(tree: &Tree<Owned>) -> Option<Tree<()>> {
    fn inner(tree: &Tree<Owned>) -> Option<Tree<()>> {
        Some(match tree {
            Tree::Tensor(_) => Tree::Tensor(()),
            Tree::None => Tree::None,
            Tree::Str(_) | Tree::Bytes(_) => return None,
            Tree::List(items) | Tree::Tuple(items) => sequence(items.iter())?,
            Tree::Dict(dict) => sequence(dict.values())?,
            _ => Tree::Bool(true),
        })
    }
    fn sequence<'a>(items: impl Iterator<Item = &'a Tree<Owned>>) -> Option<Tree<()>> {
        let mut items = items.map(inner).collect::<Option<Vec<_>>>()?;
        while items.last().is_some_and(|item| flatten(item.as_ref()).1.is_empty()) {
            items.pop();
        }
        // A skipped position comes back as an empty tuple, whatever stood there.
        let skip =
            |item: Tree<()>| if flatten(item.as_ref()).1.is_empty() { Tree::Tuple(vec![]) } else { item };
        Some(Tree::Tuple(items.into_iter().map(skip).collect()))
    }
    let (Tree::List(items) | Tree::Tuple(items)) = tree else { return None };
    sequence(items.iter()).filter(|tree| !flatten(tree.as_ref()).1.is_empty())
}

proptest! {
    #[test]
    fn flatten_and_back(tree in trees()) {
        let (metadata, leaves) = flatten(tree.clone());
        prop_assert_eq!(metadata.len(), leaves.len());
        prop_assert_eq!(metadata.leaf_kinds().collect::<Vec<_>>(), leaves.iter().map(Leaf::kind).collect::<Vec<_>>());
        prop_assert_eq!(unflatten(&metadata, leaves), Ok(tree.clone()));
        let (by_ref, refs) = flatten(tree.as_ref());
        prop_assert_eq!(&by_ref, &metadata);
        prop_assert_eq!(unflatten(&by_ref, refs).unwrap().map(Owned::clone), tree);
    }

    #[test]
    fn metadata_tells_structures_apart(a in trees(), b in trees()) {
        // The same structure exactly when the trees agree once every leaf is replaced by its kind.
        let kinds = |tree: &Tree<Owned>| {
            let (metadata, leaves) = flatten(tree.as_ref());
            let kinds = leaves.iter().map(|leaf| match leaf {
                Leaf::Tensor(_) => Leaf::Tensor(()),
                Leaf::None => Leaf::None,
                Leaf::Str(_) => Leaf::Str(String::new()),
                Leaf::Bytes(_) => Leaf::Bytes(vec![]),
                _ => Leaf::Bool(true),
            });
            unflatten(&metadata, kinds.collect()).unwrap()
        };
        prop_assert_eq!(flatten(a.as_ref()).0 == flatten(b.as_ref()).0, kinds(&a) == kinds(&b));
    }

    #[test]
    fn text_and_back(tree in prop_oneof![trees(), slapo_trees()]) {
        let (metadata, _) = flatten(tree.as_ref());
        let text = encode_metadata(&metadata, Dialect::Extended).unwrap();
        prop_assert_eq!(decode_metadata(&text, Dialect::Extended), Ok(metadata.clone()));
        // Strict mode takes exactly what Slapo gives back unchanged, in the same text.
        let scalars = |tree: &Tree<Owned>| -> Option<Tree<()>> {
            let (metadata, leaves) = flatten(tree.as_ref());
            let plain = leaves.iter().map(|leaf| match leaf {
                Leaf::Tensor(_) => Some(Leaf::Tensor(())),
                Leaf::None => Some(Leaf::None),
                Leaf::Str(_) | Leaf::Bytes(_) => None,
                _ => Some(Leaf::Bool(true)),
            });
            plain.collect::<Option<Vec<_>>>().map(|plain| unflatten(&metadata, plain).unwrap())
        };
        let survives = through_slapo(&tree).is_some_and(|back| Some(back) == scalars(&tree));
        match encode_metadata(&metadata, Dialect::Slapo) {
            Ok(strict) => {
                prop_assert!(survives, "{}", strict);
                prop_assert_eq!(&strict, &text);
                prop_assert_eq!(decode_metadata(&strict, Dialect::Slapo), Ok(metadata));
            }
            Err(EncodeTextError::Inexpressible { .. }) => {
                prop_assert!(!survives, "{}", text);
                prop_assert!(text.starts_with("v1,"));
                prop_assert!(decode_metadata(&text, Dialect::Slapo).is_err());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn frame_and_back(tree in trees(), payload_checksum: bool) {
        let (metadata, leaves) = flatten(tree.as_ref());
        let views: Vec<_> = leaves.into_iter().map(|leaf| leaf.map(Owned::view)).collect();
        let frame = encode(&header(1), &metadata, &views, EncodeOptions { payload_checksum }).unwrap();
        let bytes = frame.to_vec();
        prop_assert_eq!(u64::try_from(bytes.len()), Ok(frame.n_bytes()));
        prop_assert_eq!(frame_bytes(&bytes), Ok(frame.n_bytes()));
        prop_assert_eq!(frame.slices().collect::<Vec<_>>().concat(), bytes.clone());

        let payload_check = if payload_checksum { PayloadCheck::Required } else { PayloadCheck::IfPresent };
        let read = decode(&bytes, DecodeOptions { payload_check }).unwrap();
        prop_assert_eq!(read.header(), &header(1));
        prop_assert_eq!(&read.metadata(), &metadata);
        prop_assert_eq!(read.leaves().len(), metadata.len());
        prop_assert_eq!(&read.leaves().collect::<Vec<_>>(), &views);
        let start = bytes.as_ptr().addr();
        for data in read.leaves().filter_map(|leaf| leaf.tensor().map(|tensor| tensor.data)) {
            prop_assert!(data.is_empty() || (data.as_ptr().addr() - start).is_multiple_of(64));
        }
        let tree_again = read.to_tree();
        prop_assert_eq!(&tree_again, &tree.as_ref().map(Owned::view));

        // A second frame in the same buffer has nothing of the first.
        let buffer = frame.into_buffer();
        let again = encode_into(buffer, &header(1), &metadata, &views, EncodeOptions { payload_checksum }).unwrap();
        prop_assert_eq!(again.to_vec(), bytes);
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&bytes, DecodeOptions::default()).is_err());
    }

    #[test]
    fn any_text_is_refused_or_written_again(text in r"(v1,[0-7](\|(\$[a-c%0-9]{0,3}|[#+]-?[0-9]{1,2}|[0-9]{1,3})(\.([0-9]|\$[ab]?)){0,3},[0-8]){0,6})|(([0-9]{1,2}(\.[0-9]){0,3},[0-3]\|?){0,5})|\PC{0,40}") {
        if let Ok(metadata) = decode_metadata(&text, Dialect::Extended) {
            let again = encode_metadata(&metadata, Dialect::Extended).unwrap();
            prop_assert_eq!(decode_metadata(&again, Dialect::Extended), Ok(metadata));
        }
    }
}
