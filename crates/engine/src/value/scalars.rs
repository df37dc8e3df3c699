//! Single values that are no tensors: numbers, text, bytes.

use brigade_wire::Tree;

use super::{Value, unexpected};
use crate::error::ValueError;
use crate::tensor::AnyTensor;

macro_rules! scalar {
    ($($type:ty => $variant:ident, $name:literal;)+) => {$(
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
    )+};
}
scalar! {
    bool => Bool, "a boolean";
    i64 => I64, "an i64";
    u64 => U64, "a u64";
    f32 => F32, "an f32";
    f64 => F64, "an f64";
    String => Str, "a string";
    Vec<u8> => Bytes, "bytes";
}

/// Integers travel as the widest of their kind, and must fit when they come back.
macro_rules! narrow {
    ($($type:ty => $variant:ident, $name:literal;)+) => {$(
        impl Value for $type {
            fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
                match self.try_into() {
                    Ok(value) => Ok(Tree::$variant(value)),
                    Err(_) => Err(ValueError::Structure { expected: "64 bits", found: self.to_string() }),
                }
            }

            fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
                match tree {
                    Tree::$variant(value) => {
                        value.try_into().or_else(|_| unexpected($name, &Tree::$variant(value)))
                    }
                    other => unexpected($name, &other),
                }
            }
        }
    )+};
}
narrow! {
    i8 => I64, "an i8";
    i16 => I64, "an i16";
    i32 => I64, "an i32";
    isize => I64, "an isize";
    u16 => U64, "a u16";
    u32 => U64, "a u32";
    usize => U64, "a usize";
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
