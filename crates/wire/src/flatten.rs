//! Between a tree and its metadata and leaves, exactly, both ways.

use crate::{
    dict::{Dict, Key},
    error::UnflattenError,
    leaf::Leaf,
    metadata::{Metadata, Writer},
    token::{Container, KeyRef, Token},
    tree::Tree,
};

/// Bytes and leaves for which room is made at first; a boundary message rarely has more.
const ROOM: usize = 16;

/// The items of a container that are still to be visited.
enum Rest<T> {
    Items(std::vec::IntoIter<Tree<T>>),
    Entries(std::vec::IntoIter<(Key, Tree<T>)>),
}

impl<T> Rest<T> {
    /// The next item; the key of a dict entry is written before it.
    fn next(&mut self, writer: &mut Writer) -> Option<Tree<T>> {
        match self {
            Self::Items(items) => items.next(),
            Self::Entries(entries) => entries.next().map(|(key, value)| {
                writer.key(KeyRef::from(&key));
                value
            }),
        }
    }
}

/// Takes a tree apart into its structure and its leaves from left to right.
///
/// It works for every tree, however deep, without recursion; a caller that only borrows passes
/// [`tree.as_ref()`](Tree::as_ref).
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `flatten`; here containers and scalars keep
/// their exact type, dicts their keys, and empty containers their place.
///
/// # Examples
/// ```
/// use brigade_wire::{Leaf, Tree, flatten};
///
/// let (metadata, leaves) = flatten(Tree::from((Tree::Tensor("h"), (7_i64, true))));
/// assert_eq!(metadata.leaf_path(2).as_deref(), Some("1.1"));
/// assert_eq!(leaves, [Leaf::Tensor("h"), Leaf::I64(7), Leaf::Bool(true)]);
/// ```
#[must_use]
pub fn flatten<T>(tree: Tree<T>) -> (Metadata, Vec<Leaf<T>>) {
    let mut writer = Writer::with_capacity(ROOM);
    let mut leaves = Vec::new();
    let mut open: Vec<Rest<T>> = Vec::new();
    let mut next = Some(tree);
    loop {
        match next.take().map(split) {
            Some(Ok(leaf)) => {
                writer.leaf(leaf.kind());
                leaves.push(leaf);
            }
            Some(Err((container, rest))) => {
                writer.open(container);
                if let Rest::Items(items) = &rest {
                    leaves.reserve(items.len());
                }
                open.push(rest);
            }
            // The innermost container has no items left.
            None if open.pop().is_some() => writer.close(),
            None => return (writer.finish(), leaves),
        }
        next = open.last_mut().and_then(|rest| rest.next(&mut writer));
    }
}

/// A leaf, or a container and its items.
fn split<T>(tree: Tree<T>) -> Result<Leaf<T>, (Container, Rest<T>)> {
    Ok(match tree {
        Tree::Tensor(tensor) => Leaf::Tensor(tensor),
        Tree::None => Leaf::None,
        Tree::Bool(value) => Leaf::Bool(value),
        Tree::I64(value) => Leaf::I64(value),
        Tree::U64(value) => Leaf::U64(value),
        Tree::F32(value) => Leaf::F32(value),
        Tree::F64(value) => Leaf::F64(value),
        Tree::Str(value) => Leaf::Str(value),
        Tree::Bytes(value) => Leaf::Bytes(value),
        Tree::List(items) => return Err((Container::List, Rest::Items(items.into_iter()))),
        Tree::Tuple(items) => return Err((Container::Tuple, Rest::Items(items.into_iter()))),
        Tree::Dict(dict) => return Err((Container::Dict, Rest::Entries(dict.into_iter()))),
    })
}

/// A container whose items are on the stack of values from `start` on, and its keys from `keys` on.
struct Open {
    container: Container,
    start: usize,
    keys: usize,
}

/// Puts a tree together again: the inverse of [`flatten`] for every tree.
///
/// # Errors
/// [`UnflattenError::LeafCount`] when the number of leaves is not [`Metadata::len`], and
/// [`UnflattenError::LeafKind`] for the first leaf that is of another kind than the metadata says.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `unflatten`, which makes every container a tuple.
///
/// # Examples
/// ```
/// use brigade_wire::{Leaf, Tree, UnflattenError, flatten, unflatten};
///
/// let (metadata, mut leaves) = flatten(Tree::from((Tree::Tensor("h"), true)));
/// leaves[1] = Leaf::Tensor("surprise");
/// let error = unflatten(&metadata, leaves).unwrap_err();
/// assert_eq!(error.to_string(), "leaf 1 (path `1`) must be a scalar, got a tensor");
/// ```
pub fn unflatten<T>(metadata: &Metadata, leaves: Vec<Leaf<T>>) -> Result<Tree<T>, UnflattenError> {
    if leaves.len() != metadata.len() {
        return Err(UnflattenError::LeafCount { expected: metadata.len(), actual: leaves.len() });
    }
    let mismatch = metadata.leaf_kinds().zip(&leaves).position(|(expected, leaf)| expected != leaf.kind());
    match mismatch {
        Some(index) => Err(kind_error(metadata, index, &leaves)),
        None => Ok(assemble(metadata, leaves)),
    }
}

/// Builds the tree from leaves that fit.
pub(crate) fn assemble<T>(metadata: &Metadata, leaves: Vec<Leaf<T>>) -> Tree<T> {
    let mut values: Vec<Tree<T>> = Vec::with_capacity(leaves.len() + 1);
    let mut keys: Vec<Key> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut leaves = leaves.into_iter();
    let mut tokens = metadata.tokens();
    while let Some(token) = tokens.next().expect("metadata holds whole tokens") {
        match token {
            Token::Leaf(_) => values.push(leaves.next().expect("metadata counts its leaves").into()),
            Token::Open(container) => open.push(Open { container, start: values.len(), keys: keys.len() }),
            Token::Key(key) => keys.push(key.into()),
            Token::Close => {
                let Open { container, start, keys: first } =
                    open.pop().expect("metadata closes what it opened");
                let items = values.split_off(start);
                values.push(match container {
                    Container::List => Tree::List(items),
                    Container::Tuple => Tree::Tuple(items),
                    Container::Dict => {
                        Tree::Dict(Dict::from_unique(keys.drain(first..).zip(items).collect()))
                    }
                });
            }
        }
    }
    values.pop().expect("metadata describes one tree")
}

/// The error for leaf `index`, which is of another kind than the metadata says.
#[cold]
fn kind_error<T>(metadata: &Metadata, index: usize, leaves: &[Leaf<T>]) -> UnflattenError {
    let kinds = metadata.leaf_kinds().nth(index).zip(leaves.get(index));
    let (expected, leaf) = kinds.expect("the caller found the leaf");
    let path = metadata.leaf_path(index).unwrap_or_default();
    UnflattenError::LeafKind { index, path, expected, actual: leaf.kind() }
}
