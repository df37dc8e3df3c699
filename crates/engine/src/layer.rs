//! Layers: what a user writes, and how messages name it.

use std::any::type_name;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use burn::module::Module;

use crate::error::BuildError;
use crate::value::Value;

/// What a layer reports when it cannot compute its output.
pub type LayerError = Box<dyn Error + Send + Sync>;

/// One element of the list that a pipeline is cut from: a Burn module with one forward function.
///
/// A closure, or any Burn module with a function beside it, can be a layer too: see
/// [`Layers::map`](crate::Layers::map) and [`Layers::with`](crate::Layers::with).
///
/// # Examples
/// ```
/// use brigade_engine::Layer;
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use burn::tensor::{Tensor, activation::relu};
///
/// #[derive(Module, Debug)]
/// struct Hidden {
///     linear: Linear,
/// }
///
/// impl Layer for Hidden {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         relu(self.linear.forward(x))
///     }
/// }
/// ```
pub trait Layer: Module + 'static {
    /// What the layer takes; equal to the [`Output`](Layer::Output) of the layer before it.
    type Input: Value;
    /// What the layer gives.
    type Output: Value;

    /// Computes the output.
    ///
    /// It runs on a device with autodiff while training, and without it in an evaluation. A panic in
    /// it stops every rank with an error that names this layer.
    fn forward(&self, input: Self::Input) -> Self::Output;

    /// Computes the output or says why it cannot; override it when the layer can fail.
    ///
    /// # Errors
    /// Whatever the layer reports; the default never fails. The error stops every rank.
    fn try_forward(&self, input: Self::Input) -> Result<Self::Output, LayerError> {
        Ok(self.forward(input))
    }
}

/// Which layer of the list something is about.
///
/// # Examples
/// ```
/// use brigade_engine::LayerLabel;
///
/// let label = LayerLabel { index: 7, name: Some("encoder.out".into()), type_name: "Linear" };
/// assert_eq!(label.to_string(), "layer 7 `encoder.out` (Linear)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerLabel {
    /// Global index: its place in the whole list, from 0.
    pub index: usize,
    /// The name that the list gives it, if any.
    pub name: Option<Arc<str>>,
    /// Name of its type, without path and parameters; a closure is a `closure`.
    pub type_name: &'static str,
}

impl fmt::Display for LayerLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {}", self.index)?;
        if let Some(name) = &self.name {
            write!(f, " `{name}`")?;
        }
        write!(f, " ({})", self.type_name)
    }
}

impl LayerLabel {
    /// Tells whether `name` is the layer's name, its type or its number as in parameter paths
    /// (`layer_007`).
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.type_name == name || self.name.as_deref() == Some(name) || layer_name(self.index) == name
    }
}

/// Layers chosen by type, name or number.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerNames(Vec<String>);

impl LayerNames {
    pub(crate) fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, label: &LayerLabel) -> bool {
        self.0.iter().any(|name| label.is_called(name))
    }

    /// Refuses a name that no layer has.
    pub(crate) fn check(&self, labels: &[LayerLabel], wanted: &'static str) -> Result<(), BuildError> {
        match self.0.iter().find(|name| !labels.iter().any(|label| label.is_called(name))) {
            Some(name) => Err(BuildError::UnknownLayer { name: name.clone(), wanted }),
            None => Ok(()),
        }
    }
}

/// The name of a layer in parameter paths: its global index, three digits or more.
pub(crate) fn layer_name(index: usize) -> String {
    format!("layer_{index:03}")
}

/// The name of a type without its path and parameters: `Block` for `gpt::Block<f32>`, the function's
/// name for a function, `closure` for a closure.
pub(crate) fn short_type_name<T: ?Sized>() -> &'static str {
    let full = type_name::<T>();
    if full.ends_with("{{closure}}") {
        return "closure";
    }
    let head = full.split(['<', '(', '[']).next().unwrap_or(full);
    head.rsplit("::").next().filter(|name| !name.is_empty()).unwrap_or(full)
}
