//! Values that hold values: options, lists, maps and tuples.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use brigade_wire::{Dict, Key, Tree};

use super::{Value, unexpected};
use crate::error::ValueError;
use crate::tensor::AnyTensor;

/// A present value is a list of one and an absent one is none, so that `Option<Option<T>>` and
/// `Option` of a value that is itself none keep their difference.
impl<T: Value> Value for Option<T> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        match self {
            Some(value) => Ok(Tree::List(vec![value.into_tree()?])),
            None => Ok(Tree::None),
        }
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::None => Ok(None),
            Tree::List(items) => match <[_; 1]>::try_from(items) {
                Ok([item]) => Ok(Some(T::from_tree(item)?)),
                Err(items) => unexpected("none or a list of one", &Tree::List(items)),
            },
            other => unexpected("none or a list of one", &other),
        }
    }
}

/// The value itself.
impl<T: Value> Value for Box<T> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        (*self).into_tree()
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        T::from_tree(tree).map(Self::new)
    }
}

fn into_list<T: Value>(items: impl IntoIterator<Item = T>) -> Result<Tree<AnyTensor>, ValueError> {
    let items = items.into_iter().enumerate();
    let trees = items.map(|(index, item)| item.into_tree().map_err(|error| error.inside(index)));
    Ok(Tree::List(trees.collect::<Result<_, _>>()?))
}

fn from_items<T: Value>(items: Vec<Tree<AnyTensor>>) -> Result<Vec<T>, ValueError> {
    let items = items.into_iter().enumerate();
    items.map(|(index, item)| T::from_tree(item).map_err(|error| error.inside(index))).collect()
}

impl<T: Value> Value for Vec<T> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        into_list(self)
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::List(items) => from_items(items),
            other => unexpected("a list", &other),
        }
    }
}

/// A list of its length.
impl<T: Value, const N: usize> Value for [T; N] {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        into_list(self)
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        let found = match tree {
            Tree::List(items) if items.len() == N => match from_items(items)?.try_into() {
                Ok(array) => return Ok(array),
                Err(_) => unreachable!("the length was compared"),
            },
            other => other,
        };
        unexpected("a list as long as the array", &found)
    }
}

/// A map is a dict in key order: the same on every rank.
impl<T: Value> Value for BTreeMap<String, T> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        let entry = |(key, value): (String, T)| match value.into_tree() {
            Ok(tree) => Ok((Key::Str(key), tree)),
            Err(error) => Err(error.inside(key)),
        };
        let entries = self.into_iter().map(entry).collect::<Result<_, _>>()?;
        match Dict::from_entries(entries) {
            Ok(dict) => Ok(Tree::Dict(dict)),
            Err(_) => unreachable!("a map has every key once"),
        }
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        let Tree::Dict(dict) = tree else { return unexpected("a dict with string keys", &tree) };
        let entry = |(key, value): (Key, Tree<AnyTensor>)| match key {
            Key::Str(name) => match T::from_tree(value) {
                Ok(value) => Ok((name, value)),
                Err(error) => Err(error.inside(name)),
            },
            other => Err(ValueError::Structure {
                expected: "a dict with string keys",
                found: format!("the key {other:?}"),
            }),
        };
        dict.into_iter().map(entry).collect()
    }
}

/// A dict in key order, whatever the order of the map.
impl<T: Value, S: BuildHasher + Default + Send + 'static> Value for HashMap<String, T, S> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        self.into_iter().collect::<BTreeMap<String, T>>().into_tree()
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        Ok(BTreeMap::from_tree(tree)?.into_iter().collect())
    }
}

macro_rules! tuple {
    ($n:literal: $($name:ident $index:literal),+) => {
        impl<$($name: Value),+> Value for ($($name,)+) {
            #[expect(non_snake_case, reason = "the variables are named after the type parameters")]
            fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
                let ($($name,)+) = self;
                Ok(Tree::Tuple(vec![$($name.into_tree().map_err(|error| error.inside($index))?),+]))
            }

            #[expect(non_snake_case, reason = "the variables are named after the type parameters")]
            fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
                match tree {
                    Tree::Tuple(items) => match <[_; $n]>::try_from(items) {
                        Ok([$($name),+]) => {
                            Ok(($($name::from_tree($name).map_err(|error| error.inside($index))?,)+))
                        }
                        Err(items) => unexpected(concat!("a tuple of ", $n), &Tree::Tuple(items)),
                    },
                    other => unexpected(concat!("a tuple of ", $n), &other),
                }
            }
        }
    };
}
tuple!(1: A 0);
tuple!(2: A 0, B 1);
tuple!(3: A 0, B 1, C 2);
tuple!(4: A 0, B 1, C 2, D 3);
tuple!(5: A 0, B 1, C 2, D 3, E 4);
tuple!(6: A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(7: A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
