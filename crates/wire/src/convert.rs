//! Conversions between Rust values and trees.
//!
//! There is none from a `HashMap`, whose order differs from process to process, and no
//! `From<u8>`: it would make a `Vec<u8>` a list of integers where bytes are meant. Use [`Tree::Bytes`].

use std::collections::BTreeMap;

use crate::{
    dict::{Dict, Key},
    error::ConvertError,
    tree::Tree,
};

macro_rules! scalar {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl<T> From<$from> for Tree<T> {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

scalar! {
    bool => Bool, i16 => I64, i32 => I64, i64 => I64, u16 => U64, u32 => U64, u64 => U64,
    f32 => F32, f64 => F64, &str => Str, String => Str,
}

macro_rules! wide {
    ($($from:ty),*) => {$(
        impl<T> TryFrom<$from> for Tree<T> {
            type Error = ConvertError;

            /// An `I64` where the value fits, else a `U64`, else an error.
            fn try_from(value: $from) -> Result<Self, ConvertError> {
                i64::try_from(value)
                    .map(Self::I64)
                    .or_else(|_| u64::try_from(value).map(Self::U64))
                    .map_err(|_| ConvertError::TooWide { value: value.to_string() })
            }
        }
    )*};
}

wide!(i128, u128, isize, usize);

impl<T, C: Into<Self>> From<Option<C>> for Tree<T> {
    fn from(value: Option<C>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

impl<T, C: Into<Self>> From<Vec<C>> for Tree<T> {
    fn from(items: Vec<C>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl<T, C: Into<Self>, const N: usize> From<[C; N]> for Tree<T> {
    fn from(items: [C; N]) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl<T> From<Dict<T>> for Tree<T> {
    fn from(dict: Dict<T>) -> Self {
        Self::Dict(dict)
    }
}

impl<T, K: Into<Key>, V: Into<Self>> From<BTreeMap<K, V>> for Tree<T> {
    /// A dict in the order of the map's keys.
    fn from(map: BTreeMap<K, V>) -> Self {
        let mut dict = Dict::new();
        for (key, value) in map {
            dict.insert(key, value);
        }
        Self::Dict(dict)
    }
}

impl<T> From<()> for Tree<T> {
    fn from((): ()) -> Self {
        Self::Tuple(Vec::new())
    }
}

macro_rules! tuple {
    ($($name:ident),+) => {
        impl<T, $($name: Into<Self>),+> From<($($name,)+)> for Tree<T> {
            fn from(value: ($($name,)+)) -> Self {
                #[expect(non_snake_case, reason = "one binding a type parameter")]
                let ($($name,)+) = value;
                Self::Tuple(vec![$($name.into()),+])
            }
        }
    };
}

tuple!(A);
tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);
tuple!(A, B, C, D, E);
tuple!(A, B, C, D, E, F);
tuple!(A, B, C, D, E, F, G);
tuple!(A, B, C, D, E, F, G, H);
tuple!(A, B, C, D, E, F, G, H, I);
tuple!(A, B, C, D, E, F, G, H, I, J);
tuple!(A, B, C, D, E, F, G, H, I, J, K);
tuple!(A, B, C, D, E, F, G, H, I, J, K, L);

impl<T> Tree<T> {
    /// The tensor that this tree is.
    ///
    /// # Errors
    /// [`ConvertError::Kind`] when it is anything else.
    pub fn into_tensor(self) -> Result<T, ConvertError> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            other => Err(ConvertError::Kind { expected: "tensor", actual: other.kind() }),
        }
    }

    /// The items of a list or tuple.
    ///
    /// # Errors
    /// [`ConvertError::Kind`] when it is anything else.
    pub fn into_items(self) -> Result<Vec<Self>, ConvertError> {
        match self {
            Self::List(items) | Self::Tuple(items) => Ok(items),
            other => Err(ConvertError::Kind { expected: "list or tuple", actual: other.kind() }),
        }
    }

    /// The `N` items of a list or tuple.
    ///
    /// # Errors
    /// [`ConvertError::Kind`] when it is anything else, [`ConvertError::Length`] when it has more or
    /// fewer items.
    ///
    /// # Examples
    /// ```
    /// use brigade_wire::Tree;
    ///
    /// let pair = Tree::<u8>::from((1_i64, "two"));
    /// let [one, two] = pair.into_array()?;
    /// assert_eq!((one, two), (Tree::I64(1), Tree::Str("two".into())));
    /// # Ok::<(), brigade_wire::ConvertError>(())
    /// ```
    pub fn into_array<const N: usize>(self) -> Result<[Self; N], ConvertError> {
        let items = self.into_items()?;
        let actual = items.len();
        items.try_into().map_err(|_| ConvertError::Length { expected: N, actual })
    }

    /// The dict that this tree is.
    ///
    /// # Errors
    /// [`ConvertError::Kind`] when it is anything else.
    pub fn into_dict(self) -> Result<Dict<T>, ConvertError> {
        match self {
            Self::Dict(dict) => Ok(dict),
            other => Err(ConvertError::Kind { expected: "dict", actual: other.kind() }),
        }
    }
}
