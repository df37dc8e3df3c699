//! What may flow between layers: anything that turns into a tree of tensors and back.

use std::collections::BTreeMap;

use brigade_wire::Tree;
use burn::tensor::Tensor;
use burn::tensor::kind::{Basic, TensorKind};

use crate::error::ValueError;
use crate::tensor::AnyTensor;

/// A value that can cross a stage boundary without losing anything.
///
/// Tensors of rank 1 to 8 and every kind, tuples of up to 8, `Option`, `Vec`, maps with string keys,
/// booleans, 64-bit integers, floats, strings and `()`.
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
    /// [`ValueError`] when the tree has another structure, or a tensor another rank or kind.
    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError>;
}

fn unexpected<T>(expected: &'static str, tree: &Tree<AnyTensor>) -> Result<T, ValueError> {
    Err(ValueError::Structure { expected, found: describe(tree) })
}

fn describe(tree: &Tree<AnyTensor>) -> String {
    match tree {
        Tree::Tensor(t) => format!("a {} tensor of rank {}", t.kind().as_str(), t.rank()),
        Tree::List(items) => format!("a list of {}", items.len()),
        Tree::Tuple(items) => format!("a tuple of {}", items.len()),
        Tree::None => "none".to_owned(),
        other => format!("{other:?}"),
    }
}

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

/// A value of any structure, as it is: for layers that look at it themselves.
impl Value for Tree<AnyTensor> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        Ok(self)
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        Ok(tree)
    }
}

impl Value for () {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        Ok(Tree::Tuple(Vec::new()))
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::Tuple(items) if items.is_empty() => Ok(()),
            other => unexpected("an empty tuple", &other),
        }
    }
}

macro_rules! scalar {
    ($type:ty, $variant:ident, $name:literal) => {
        impl Value for $type {
            fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
                Ok(Tree::$variant(self))
            }

            fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
                match tree {
                    Tree::$variant(value) => Ok(value),
                    other => unexpected($name, &other),
                }
            }
        }
    };
}
scalar!(bool, Bool, "a boolean");
scalar!(i64, I64, "an i64");
scalar!(u64, U64, "a u64");
scalar!(f64, F64, "an f64");
scalar!(String, Str, "a string");

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

impl<T: Value> Value for Vec<T> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        Ok(Tree::List(self.into_iter().map(T::into_tree).collect::<Result<_, _>>()?))
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::List(items) => items.into_iter().map(T::from_tree).collect(),
            other => unexpected("a list", &other),
        }
    }
}

/// A map is a list of (key, value) tuples in key order.
impl<T: Value> Value for BTreeMap<String, T> {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        self.into_iter().collect::<Vec<(String, T)>>().into_tree()
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        Ok(Vec::<(String, T)>::from_tree(tree)?.into_iter().collect())
    }
}

macro_rules! tuple {
    ($n:literal: $($name:ident),+) => {
        impl<$($name: Value),+> Value for ($($name,)+) {
            #[expect(non_snake_case, reason = "the variables are named after the type parameters")]
            fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
                let ($($name,)+) = self;
                Ok(Tree::Tuple(vec![$($name.into_tree()?),+]))
            }

            #[expect(non_snake_case, reason = "the variables are named after the type parameters")]
            fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
                match tree {
                    Tree::Tuple(items) => match <[_; $n]>::try_from(items) {
                        Ok([$($name),+]) => Ok(($($name::from_tree($name)?,)+)),
                        Err(items) => unexpected(concat!("a tuple of ", $n), &Tree::Tuple(items)),
                    },
                    other => unexpected(concat!("a tuple of ", $n), &other),
                }
            }
        }
    };
}
tuple!(1: A);
tuple!(2: A, B);
tuple!(3: A, B, C);
tuple!(4: A, B, C, D);
tuple!(5: A, B, C, D, E);
tuple!(6: A, B, C, D, E, F);
tuple!(7: A, B, C, D, E, F, G);
tuple!(8: A, B, C, D, E, F, G, H);
