//! What may flow between layers: anything that turns into a tree of tensors and back.

mod containers;
mod scalars;
mod structs;

use brigade_wire::Tree;
use burn::tensor::Tensor;
use burn::tensor::kind::{Basic, TensorKind};

pub use self::structs::Fields;

use crate::error::ValueError;
use crate::tensor::AnyTensor;

/// A value that can cross a stage boundary without losing anything.
///
/// Tensors of rank 1 to 8 and every kind, tuples of up to 8, arrays, `Option`, `Vec`, `Box`, maps with
/// string keys, booleans, integers, floats, strings, bytes (`Vec<u8>`) and `()`; structs by
/// [`value_struct!`](crate::value_struct). An [`AnyTensor`] or a whole [`Tree`] of them stands for a
/// value whose form is known only at run time.
///
/// # Examples
/// ```
/// use brigade_engine::Value;
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([1, 2], &Device::flex());
/// let tree = (x, Some(3_i64), None::<bool>).into_tree()?;
/// let (y, count, flag) = <(Tensor<2>, Option<i64>, Option<bool>)>::from_tree(tree)?;
/// assert_eq!((y.dims(), count, flag), ([1, 2], Some(3), None));
/// # Ok::<(), brigade_engine::ValueError>(())
/// ```
pub trait Value: Sized + Send + 'static {
    /// Turns the value into a tree.
    ///
    /// # Errors
    /// [`ValueError::Tensor`] for a tensor of a rank that is not carried.
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError>;

    /// Makes the value from a tree.
    ///
    /// # Errors
    /// [`ValueError`] when the tree has another structure, or a tensor another rank or kind; inside a
    /// structure, [`ValueError::Inside`] says where.
    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError>;
}

fn unexpected<T>(expected: &'static str, tree: &Tree<AnyTensor>) -> Result<T, ValueError> {
    Err(ValueError::Structure { expected, found: describe(tree) })
}

/// The top of a tree in words: its contents can be large.
pub(crate) fn describe(tree: &Tree<AnyTensor>) -> String {
    match tree {
        Tree::Tensor(t) => format!("a {} tensor of rank {}", t.kind().as_str(), t.rank()),
        Tree::List(items) => format!("a list of {}", items.len()),
        Tree::Tuple(items) => format!("a tuple of {}", items.len()),
        Tree::Dict(dict) => {
            let keys: Vec<String> = dict.keys().take(KEYS_SHOWN).map(|key| format!("`{key}`")).collect();
            let more = if dict.len() > KEYS_SHOWN { ", .." } else { "" };
            format!("a dict of {} ({}{more})", dict.len(), keys.join(", "))
        }
        Tree::Str(text) => format!("a string of {} bytes", text.len()),
        Tree::Bytes(bytes) => format!("{} bytes", bytes.len()),
        Tree::None => "none".to_owned(),
        other => format!("{other:?}"),
    }
}

/// How many keys of a dict a message names.
const KEYS_SHOWN: usize = 8;

impl<const D: usize, K: Basic + TensorKind + 'static> Value for Tensor<D, K> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        Ok(Tree::Tensor(AnyTensor::new(self)?))
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::Tensor(tensor) => Ok(tensor.into_tensor()?),
            other => unexpected("a tensor", &other),
        }
    }
}

/// A tensor of any rank and kind.
impl Value for AnyTensor {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        Ok(Tree::Tensor(self))
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::Tensor(tensor) => Ok(tensor),
            other => unexpected("a tensor", &other),
        }
    }
}

/// A value of any structure, as it is: for layers that look at it themselves.
impl Value for Tree<AnyTensor> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        Ok(self)
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        Ok(tree)
    }
}
