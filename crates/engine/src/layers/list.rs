//! A list of layers made at run time, whose types are checked when it is given out.

use std::any::TypeId;

use brigade_wire::Tree;

use super::Layers;
use super::spec::{LayerSpec, TypeTag};
use crate::error::LayerTypeError;
use crate::tensor::AnyTensor;
use crate::value::Value;

/// A list of layers whose number and kinds are known only at run time.
///
/// [`Layers`] is the better choice where the list can be written down, since the compiler checks it. This
/// one is checked when [`typed`](LayerList::typed) turns it into [`Layers`]. A layer that takes or gives
/// a [`Tree`] of tensors fits any neighbour; a value that does not fit stops its step with an error.
///
/// # Examples
/// ```
/// use brigade_engine::{LayerList, LayerSpec, Layers, LayerTypeError};
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Tensor, activation};
///
/// let mut list = LayerList::new();
/// for (word, width) in [("linear", 4), ("relu", 0), ("linear", 2)] {
///     list.push(match word {
///         "linear" => LayerSpec::with(
///             move |d| LinearConfig::new(4, width).init(d),
///             |linear, x: Tensor<2>| linear.forward(x),
///         ),
///         _ => LayerSpec::map(activation::relu::<2>),
///     });
/// }
/// let layers: Layers<Tensor<2>, Tensor<2>> = list.typed()?;
/// assert_eq!(layers.len(), 3);
///
/// list.push(Layers::new().map(|count: f64| count + 1.0).named("count"));
/// let error = list.typed::<Tensor<2>, f64>().unwrap_err();
/// assert!(error.to_string().starts_with("layer 2 (Linear) gives "), "{error}");
/// # Ok::<(), LayerTypeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LayerList {
    specs: Vec<LayerSpec>,
}

impl LayerList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a layer, a list of layers, or another list of this kind.
    pub fn push(&mut self, layers: impl Into<Self>) {
        self.specs.extend(layers.into().specs);
    }

    /// Number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Tells whether there is no layer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// The specifications in forward order.
    #[must_use]
    pub fn specs(&self) -> &[LayerSpec] {
        &self.specs
    }

    /// The list as one from `I` to `O`, if every layer takes what the one before it gives.
    ///
    /// # Errors
    /// [`LayerTypeError`], which names the layers and the types of the first place where they differ.
    pub fn typed<I: Value, O: Value>(&self) -> Result<Layers<I, O>, LayerTypeError> {
        let (input, output) = (TypeTag::of::<I>(), TypeTag::of::<O>());
        let (Some(first), Some(last)) = (self.specs.first(), self.specs.last()) else {
            return if fits(input, output) {
                Ok(Layers::from_specs(Vec::new()))
            } else {
                Err(LayerTypeError::Empty { input: input.name, output: output.name })
            };
        };
        if !fits(input, first.input()) {
            let (layer, takes) = (first.label(0), first.input().name);
            return Err(LayerTypeError::Input { layer, takes, given: input.name });
        }
        let pairs = self.specs.iter().zip(self.specs.iter().skip(1));
        for (index, (before, after)) in pairs.enumerate() {
            if !fits(before.output(), after.input()) {
                return Err(LayerTypeError::Neighbours {
                    first: before.label(index),
                    gives: before.output().name,
                    second: after.label(index.saturating_add(1)),
                    takes: after.input().name,
                });
            }
        }
        if !fits(last.output(), output) {
            let (layer, gives) = (last.label(self.specs.len().saturating_sub(1)), last.output().name);
            return Err(LayerTypeError::Output { layer, gives, wanted: output.name });
        }
        Ok(Layers::from_specs(self.specs.clone()))
    }
}

/// Whether a value of one type can be taken as one of the other: trees are checked when they come.
fn fits(given: TypeTag, taken: TypeTag) -> bool {
    let any = TypeId::of::<Tree<AnyTensor>>();
    given.id == taken.id || given.id == any || taken.id == any
}

impl From<LayerSpec> for LayerList {
    fn from(spec: LayerSpec) -> Self {
        Self { specs: vec![spec] }
    }
}

impl<I: Value, O: Value> From<Layers<I, O>> for LayerList {
    fn from(layers: Layers<I, O>) -> Self {
        Self { specs: layers.specs().to_vec() }
    }
}

impl<L: Into<Self>> FromIterator<L> for LayerList {
    fn from_iter<T: IntoIterator<Item = L>>(layers: T) -> Self {
        let mut list = Self::new();
        list.extend(layers);
        list
    }
}

impl<L: Into<Self>> Extend<L> for LayerList {
    fn extend<T: IntoIterator<Item = L>>(&mut self, layers: T) {
        layers.into_iter().for_each(|layers| self.push(layers));
    }
}
