//! The leaves of a tree, which travel beside its metadata.

use crate::tree::Tree;

/// One leaf of a tree: everything that is not a list, tuple or dict.
///
/// Equality is that of [`Tree`]: floats by their bits.
#[derive(Debug, Clone)]
pub enum Leaf<T> {
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
    /// A single-precision float.
    F32(f32),
    /// A double-precision float.
    F64(f64),
    /// Text.
    Str(String),
    /// Bytes that are not a tensor.
    Bytes(Vec<u8>),
}

/// What the metadata says of a leaf.
///
/// The type of a scalar is not part of it: the leaf itself tells, as in Slapo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeafKind {
    /// A tensor.
    Tensor,
    /// A truth value, an integer or a float.
    Scalar,
    /// No value.
    None,
    /// Text.
    Str,
    /// Bytes that are not a tensor.
    Bytes,
}

impl std::fmt::Display for LeafKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tensor => "tensor",
            Self::Scalar => "scalar",
            Self::None => "None",
            Self::Str => "str",
            Self::Bytes => "bytes",
        })
    }
}

impl<T> Leaf<T> {
    /// What the metadata says of this leaf.
    pub const fn kind(&self) -> LeafKind {
        match self {
            Self::Tensor(_) => LeafKind::Tensor,
            Self::None => LeafKind::None,
            Self::Bool(_) | Self::I64(_) | Self::U64(_) | Self::F32(_) | Self::F64(_) => LeafKind::Scalar,
            Self::Str(_) => LeafKind::Str,
            Self::Bytes(_) => LeafKind::Bytes,
        }
    }

    /// The same leaf with a tensor replaced by `f` of it.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Leaf<U> {
        match self {
            Self::Tensor(tensor) => Leaf::Tensor(f(tensor)),
            Self::None => Leaf::None,
            Self::Bool(value) => Leaf::Bool(value),
            Self::I64(value) => Leaf::I64(value),
            Self::U64(value) => Leaf::U64(value),
            Self::F32(value) => Leaf::F32(value),
            Self::F64(value) => Leaf::F64(value),
            Self::Str(value) => Leaf::Str(value),
            Self::Bytes(value) => Leaf::Bytes(value),
        }
    }

    /// The same leaf over a reference to its tensor; text and bytes are copied.
    pub fn as_ref(&self) -> Leaf<&T> {
        match self {
            Self::Tensor(tensor) => Leaf::Tensor(tensor),
            Self::None => Leaf::None,
            Self::Bool(value) => Leaf::Bool(*value),
            Self::I64(value) => Leaf::I64(*value),
            Self::U64(value) => Leaf::U64(*value),
            Self::F32(value) => Leaf::F32(*value),
            Self::F64(value) => Leaf::F64(*value),
            Self::Str(value) => Leaf::Str(value.clone()),
            Self::Bytes(value) => Leaf::Bytes(value.clone()),
        }
    }

    /// The tensor, if the leaf is one.
    pub const fn tensor(&self) -> Option<&T> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl<T> From<Leaf<T>> for Tree<T> {
    fn from(leaf: Leaf<T>) -> Self {
        match leaf {
            Leaf::Tensor(tensor) => Self::Tensor(tensor),
            Leaf::None => Self::None,
            Leaf::Bool(value) => Self::Bool(value),
            Leaf::I64(value) => Self::I64(value),
            Leaf::U64(value) => Self::U64(value),
            Leaf::F32(value) => Self::F32(value),
            Leaf::F64(value) => Self::F64(value),
            Leaf::Str(value) => Self::Str(value),
            Leaf::Bytes(value) => Self::Bytes(value),
        }
    }
}

impl<T: PartialEq> PartialEq for Leaf<T> {
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
            _ => false,
        }
    }
}

impl<T: Eq> Eq for Leaf<T> {}
