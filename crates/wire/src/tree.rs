//! A nested value that crosses a stage boundary.

use crate::{dict::Dict, names::float_repr};

/// A value of any nesting whose tensors are of type `T`.
///
/// `T` is whatever stands for a tensor: a handle of a framework, a slice of bytes, an index. Nothing
/// is asked of it.
///
/// Equality is that of the message: floats are compared by their bits (so a NaN equals itself and
/// `-0.0` differs from `0.0`), a list differs from a tuple, a 1-tuple from its bare value, and the
/// order of a dict counts.
///
/// The methods here recurse, and so does dropping a tree; a tree that is nested many thousands deep
/// can exhaust the stack like any nested Rust value. No decoder of this crate builds one: see
/// [`MAX_DEPTH`](crate::limits::MAX_DEPTH).
///
/// # Examples
/// ```
/// use brigade_wire::Tree;
///
/// // A stage's output: a hidden state, no attention weights, and a pair.
/// let output: Tree<&str> = (Tree::Tensor("h"), None::<bool>, (1_i64, 0.1_f64)).into();
/// assert_eq!(output.to_string(), "(h, None, (1, 0.1))");
/// assert_eq!(output.n_tensors(), 1);
/// ```
#[derive(Debug, Clone)]
pub enum Tree<T> {
    /// A tensor.
    Tensor(T),
    /// No value.
    None,
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    I64(i64),
    /// An unsigned integer.
    U64(u64),
    /// A single-precision float, kept bit for bit.
    F32(f32),
    /// A double-precision float, kept bit for bit.
    F64(f64),
    /// Text.
    Str(String),
    /// Bytes that are not a tensor.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Self>),
    /// A tuple.
    Tuple(Vec<Self>),
    /// An ordered dict.
    Dict(Dict<T>),
}

impl<T> Tree<T> {
    /// The same tree over references to its tensors; text, bytes and keys are copied.
    ///
    /// # Examples
    /// ```
    /// use brigade_wire::{Tree, flatten};
    ///
    /// let tree = Tree::Tuple(vec![Tree::Tensor(String::from("big")), Tree::Bool(true)]);
    /// let (metadata, leaves) = flatten(tree.as_ref());
    /// assert_eq!((metadata.len(), leaves.len()), (2, 2));
    /// assert_eq!(tree.n_tensors(), 1, "the tree is still here");
    /// ```
    #[must_use]
    pub fn as_ref(&self) -> Tree<&T> {
        match self {
            Self::Tensor(tensor) => Tree::Tensor(tensor),
            Self::None => Tree::None,
            Self::Bool(value) => Tree::Bool(*value),
            Self::I64(value) => Tree::I64(*value),
            Self::U64(value) => Tree::U64(*value),
            Self::F32(value) => Tree::F32(*value),
            Self::F64(value) => Tree::F64(*value),
            Self::Str(value) => Tree::Str(value.clone()),
            Self::Bytes(value) => Tree::Bytes(value.clone()),
            Self::List(items) => Tree::List(items.iter().map(Self::as_ref).collect()),
            Self::Tuple(items) => Tree::Tuple(items.iter().map(Self::as_ref).collect()),
            Self::Dict(dict) => Tree::Dict(Dict::from_unique(
                dict.iter().map(|(key, value)| (key.clone(), value.as_ref())).collect(),
            )),
        }
    }

    /// The same tree with every tensor replaced by `f` of it, from left to right.
    ///
    /// # Examples
    /// ```
    /// use brigade_wire::Tree;
    ///
    /// let shapes = Tree::List(vec![Tree::Tensor([2_usize, 3]), Tree::I64(7)]).map(|shape| shape.iter().product::<usize>());
    /// assert_eq!(shapes, Tree::List(vec![Tree::Tensor(6), Tree::I64(7)]));
    /// ```
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Tree<U> {
        let mapped: Result<Tree<U>, std::convert::Infallible> = self.try_map(|tensor| Ok(f(tensor)));
        match mapped {
            Ok(tree) => tree,
            Err(never) => match never {},
        }
    }

    /// The same tree with every tensor replaced by `f` of it, from left to right, up to the first error.
    ///
    /// # Errors
    /// The first error of `f`.
    ///
    /// # Examples
    /// ```
    /// use brigade_wire::Tree;
    ///
    /// let tree = Tree::Tuple(vec![Tree::Tensor("1"), Tree::Tensor("x"), Tree::Tensor("y")]);
    /// let parsed = tree.try_map(|text| text.parse::<u8>().map_err(|_| text));
    /// assert_eq!(parsed, Err("x"));
    /// ```
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<Tree<U>, E> {
        self.try_map_dyn(&mut f)
    }

    /// [`Self::try_map`] behind one pointer, so that the recursion does not build types without end.
    fn try_map_dyn<U, E>(self, f: &mut dyn FnMut(T) -> Result<U, E>) -> Result<Tree<U>, E> {
        Ok(match self {
            Self::Tensor(tensor) => Tree::Tensor(f(tensor)?),
            Self::None => Tree::None,
            Self::Bool(value) => Tree::Bool(value),
            Self::I64(value) => Tree::I64(value),
            Self::U64(value) => Tree::U64(value),
            Self::F32(value) => Tree::F32(value),
            Self::F64(value) => Tree::F64(value),
            Self::Str(value) => Tree::Str(value),
            Self::Bytes(value) => Tree::Bytes(value),
            Self::List(items) => {
                Tree::List(items.into_iter().map(|item| item.try_map_dyn(f)).collect::<Result<_, E>>()?)
            }
            Self::Tuple(items) => {
                Tree::Tuple(items.into_iter().map(|item| item.try_map_dyn(f)).collect::<Result<_, E>>()?)
            }
            Self::Dict(dict) => Tree::Dict(Dict::from_unique(
                dict.into_iter()
                    .map(|(key, value)| Ok((key, value.try_map_dyn(f)?)))
                    .collect::<Result<_, E>>()?,
            )),
        })
    }

    /// Calls `f` on every tensor from left to right.
    pub fn for_each<'a>(&'a self, mut f: impl FnMut(&'a T)) {
        self.for_each_dyn(&mut f);
    }

    fn for_each_dyn<'a>(&'a self, f: &mut dyn FnMut(&'a T)) {
        match self {
            Self::Tensor(tensor) => f(tensor),
            Self::List(items) | Self::Tuple(items) => items.iter().for_each(|item| item.for_each_dyn(f)),
            Self::Dict(dict) => dict.values().for_each(|value| value.for_each_dyn(f)),
            _ => {}
        }
    }

    /// Number of tensors in the tree.
    #[must_use]
    pub fn n_tensors(&self) -> usize {
        let mut n_tensors = 0;
        self.for_each(|_| n_tensors += 1);
        n_tensors
    }

    /// What the top of the tree is, in one word.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "tensor",
            Self::None => "None",
            Self::Bool(_) => "bool",
            Self::I64(_) => "i64",
            Self::U64(_) => "u64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
        }
    }
}

impl<T: PartialEq> PartialEq for Tree<T> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor(a), Self::Tensor(b)) => a == b,
            (Self::None, Self::None) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::I64(a), Self::I64(b)) => a == b,
            (Self::U64(a), Self::U64(b)) => a == b,
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits(),
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => a == b,
            (Self::Dict(a), Self::Dict(b)) => a == b,
            _ => false,
        }
    }
}

impl<T: Eq> Eq for Tree<T> {}

impl<T: std::fmt::Display> std::fmt::Display for Tree<T> {
    /// Python's way of writing, for logs: `[a, (1, None), {k: True}]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sequence = |f: &mut std::fmt::Formatter<'_>, items: &[Self]| {
            items.iter().enumerate().try_for_each(|(index, item)| {
                if index > 0 {
                    f.write_str(", ")?;
                }
                item.fmt(f)
            })
        };
        match self {
            Self::Tensor(tensor) => tensor.fmt(f),
            Self::None => f.write_str("None"),
            Self::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::I64(value) => write!(f, "{value}"),
            Self::U64(value) => write!(f, "{value}"),
            Self::F32(value) => f.write_str(&float_repr(*value)),
            Self::F64(value) => f.write_str(&float_repr(*value)),
            Self::Str(value) => write!(f, "{value:?}"),
            Self::Bytes(value) => write!(f, "<{} bytes>", value.len()),
            Self::List(items) => {
                f.write_str("[")?;
                sequence(f, items)?;
                f.write_str("]")
            }
            Self::Tuple(items) => {
                f.write_str("(")?;
                sequence(f, items)?;
                f.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Self::Dict(dict) => {
                f.write_str("{")?;
                dict.iter().enumerate().try_for_each(|(index, (key, value))| {
                    if index > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{key}: {value}")
                })?;
                f.write_str("}")
            }
        }
    }
}
