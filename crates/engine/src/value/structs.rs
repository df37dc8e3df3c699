//! Structs as values: a dict of their fields, in the order of the struct.

use brigade_wire::{Dict, Key, Tree};

use super::{Value, unexpected};
use crate::error::ValueError;
use crate::tensor::AnyTensor;

/// Makes a struct with named fields a [`Value`]: a dict of all its fields, whose names then stand in
/// errors.
///
/// Every field must be listed, and be a [`Value`]; the compiler checks both. Parameters of a generic
/// struct stand before it in brackets.
///
/// # Examples
/// ```
/// use brigade_engine::{Value, value_struct};
/// use burn::tensor::{Bool, Device, Tensor};
///
/// struct Encoded {
///     hidden: Tensor<3>,
///     mask: Option<Tensor<2, Bool>>,
///     n_tokens: usize,
/// }
/// value_struct!(Encoded { hidden, mask, n_tokens });
///
/// struct Scored<T> {
///     value: T,
///     score: f64,
/// }
/// value_struct!([T: Value] Scored<T> { value, score });
///
/// let hidden = Tensor::<3>::zeros([1, 2, 3], &Device::flex());
/// let value = Scored { value: Encoded { hidden, mask: None, n_tokens: 2 }, score: 0.5 };
/// let tree = value.into_tree()?;
/// let back = Scored::<Encoded>::from_tree(tree.clone())?;
/// assert_eq!((back.value.n_tokens, back.score, back.value.mask.is_none()), (2, 0.5, true));
/// assert_eq!(back.value.hidden.dims(), [1, 2, 3]);
///
/// let error = Scored::<f64>::from_tree(tree).err().map(|error| error.to_string());
/// let expected = "at `value`: expected an f64, found a dict of 3 (`hidden`, `mask`, `n_tokens`)";
/// assert_eq!(error.as_deref(), Some(expected));
/// # Ok::<(), brigade_engine::ValueError>(())
/// ```
#[macro_export]
macro_rules! value_struct {
    ([$($parameters:tt)*] $name:ty { $($field:ident),* $(,)? }) => {
        impl<$($parameters)*> $crate::Value for $name {
            fn into_tree(
                self,
            ) -> ::core::result::Result<$crate::wire::Tree<$crate::AnyTensor>, $crate::ValueError> {
                let Self { $($field),* } = self;
                ::core::result::Result::Ok(
                    $crate::Fields::new()$(.with(::core::stringify!($field), $field)?)*.into_tree(),
                )
            }

            fn from_tree(
                tree: $crate::wire::Tree<$crate::AnyTensor>,
            ) -> ::core::result::Result<Self, $crate::ValueError> {
                #[allow(unused_mut, reason = "a struct may have no field")]
                let mut fields = $crate::Fields::from_tree(tree)?;
                let value = Self { $($field: fields.take(::core::stringify!($field))?),* };
                fields.finish()?;
                ::core::result::Result::Ok(value)
            }
        }
    };
    ($name:ty { $($field:ident),* $(,)? }) => {
        $crate::value_struct!([] $name { $($field),* });
    };
}

/// The fields of a struct on their way into a tree or out of it: what [`value_struct!`](crate::value_struct)
/// uses, for an implementation of [`Value`] by hand.
///
/// # Examples
/// ```
/// use brigade_engine::{AnyTensor, Fields, Value, ValueError, wire::Tree};
///
/// enum Step {
///     Stop,
///     Go(f64),
/// }
///
/// impl Value for Step {
///     fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
///         let fields = match self {
///             Self::Stop => Fields::new(),
///             Self::Go(distance) => Fields::new().with("go", distance)?,
///         };
///         Ok(fields.into_tree())
///     }
///     fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
///         let mut fields = Fields::from_tree(tree)?;
///         let step = if fields.has("go") { Self::Go(fields.take("go")?) } else { Self::Stop };
///         fields.finish()?;
///         Ok(step)
///     }
/// }
///
/// assert!(matches!(Step::from_tree(Step::Go(1.5).into_tree()?)?, Step::Go(d) if d == 1.5));
/// assert!(matches!(Step::from_tree(Step::Stop.into_tree()?)?, Step::Stop));
/// # Ok::<(), ValueError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fields(Dict<AnyTensor>);

impl Fields {
    /// No field yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field at the end, or in its old place if there is one of this name.
    ///
    /// # Errors
    /// What the value's [`Value::into_tree`] gives, with the field's name.
    pub fn with(mut self, name: &str, value: impl Value) -> Result<Self, ValueError> {
        let tree = value.into_tree().map_err(|error| error.inside(name))?;
        self.0.insert(name, tree);
        Ok(self)
    }

    /// The tree of all fields: a dict.
    #[must_use]
    pub fn into_tree(self) -> Tree<AnyTensor> {
        Tree::Dict(self.0)
    }

    /// The fields of a tree.
    ///
    /// # Errors
    /// [`ValueError::Structure`] when it is no dict.
    pub fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        match tree {
            Tree::Dict(dict) => Ok(Self(dict)),
            other => unexpected("a dict of fields", &other),
        }
    }

    /// Tells whether there is a field of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.get(&Key::from(name)).is_some()
    }

    /// Takes the value of a field out.
    ///
    /// # Errors
    /// [`ValueError::Structure`] when the field is missing, or what the value's [`Value::from_tree`]
    /// gives; both with the field's name.
    pub fn take<T: Value>(&mut self, name: &str) -> Result<T, ValueError> {
        let value = match self.0.remove(&Key::from(name)) {
            Some(tree) => T::from_tree(tree),
            None => unexpected("this field", &Tree::Dict(self.0.clone())),
        };
        value.map_err(|error| error.inside(name))
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`ValueError::Structure`] when a field is left that nothing took.
    pub fn finish(self) -> Result<(), ValueError> {
        if self.0.is_empty() { Ok(()) } else { unexpected("no further field", &Tree::Dict(self.0)) }
    }
}
