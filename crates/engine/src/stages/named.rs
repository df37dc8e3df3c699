//! Values by name: the arguments and the outputs of a stage.

use std::collections::BTreeMap;

use brigade_wire::{Dict, Key, Tree};

use crate::error::{StageError, ValueError};
use crate::tensor::AnyTensor;
use crate::value::Value;

/// Values of any types by name, like keyword arguments.
///
/// # Examples
/// ```
/// use brigade_engine::NamedValues;
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([1, 2], &Device::flex());
/// let mut values = NamedValues::new().with("x", x)?.with("scale", 0.5_f64)?;
/// assert_eq!(values.names().collect::<Vec<_>>(), ["scale", "x"]);
/// assert_eq!(values.take::<f64>("scale")?, 0.5);
/// let error = values.take::<bool>("mask").unwrap_err();
/// assert_eq!(error.to_string(), "there is no value `mask`; there are [\"x\"]");
/// # Ok::<(), brigade_engine::StageError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct NamedValues(BTreeMap<String, Tree<AnyTensor>>);

impl NamedValues {
    /// No values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value.
    ///
    /// # Errors
    /// [`StageError::Value`] when it cannot be carried, [`StageError::Twice`] when the name is taken.
    pub fn with<V: Value>(mut self, name: impl Into<String>, value: V) -> Result<Self, StageError> {
        let name = name.into();
        match value.into_tree() {
            Ok(_) if self.0.contains_key(&name) => Err(StageError::Twice { name }),
            Ok(tree) => {
                self.0.insert(name, tree);
                Ok(self)
            }
            Err(source) => Err(StageError::Value { name, source }),
        }
    }

    /// Takes a value out.
    ///
    /// # Errors
    /// [`StageError::Missing`] when there is none of this name, [`StageError::Value`] when it is of
    /// another type.
    pub fn take<V: Value>(&mut self, name: &str) -> Result<V, StageError> {
        let tree = self.take_tree(name)?;
        V::from_tree(tree).map_err(|source| StageError::Value { name: name.to_owned(), source })
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn take_tree(&mut self, name: &str) -> Result<Tree<AnyTensor>, StageError> {
        self.0.remove(name).ok_or_else(|| StageError::Missing {
            name: name.to_owned(),
            known: self.names().map(str::to_owned).collect(),
        })
    }

    /// The values under these names; a name that stands twice is one value.
    pub(super) fn of(names: &[String], values: impl IntoIterator<Item = Tree<AnyTensor>>) -> Self {
        Self(names.iter().cloned().zip(values).collect())
    }
}

impl Value for NamedValues {
    fn into_tree(self) -> Result<Tree<AnyTensor>, ValueError> {
        let mut dict = Dict::default();
        for (name, value) in self.0 {
            dict.insert(name, value);
        }
        Ok(Tree::Dict(dict))
    }

    fn from_tree(tree: Tree<AnyTensor>) -> Result<Self, ValueError> {
        let unexpected = |found: String| ValueError::Structure { expected: "a dict with string keys", found };
        let Tree::Dict(dict) = tree else {
            return Err(unexpected(crate::value::describe(&tree)));
        };
        let entry = |(key, value)| match key {
            Key::Str(name) => Ok((name, value)),
            other => Err(unexpected(format!("the key {other}"))),
        };
        Ok(Self(dict.into_entries().into_iter().map(entry).collect::<Result<_, _>>()?))
    }
}
