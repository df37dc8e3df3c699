//! The list of layers that a pipeline is cut from: specifications, not yet parameters.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::tensor::Device;

use crate::layer::{AnyLayer, Layer, short_type_name};
use crate::tie::Tie;
use crate::value::Value;

type BuildFn = Arc<dyn Fn(&Device) -> AnyLayer + Send + Sync>;

/// How to build one layer; nothing is allocated until its owner builds it.
#[derive(Clone)]
pub struct LayerSpec {
    type_name: &'static str,
    build: BuildFn,
    tie: Option<Tie>,
}

impl LayerSpec {
    /// Describes a layer by a function that builds it on a device.
    pub fn new<L: Layer>(build: impl Fn(&Device) -> L + Send + Sync + 'static) -> Self {
        Self {
            type_name: short_type_name::<L>(),
            build: Arc::new(move |device| AnyLayer::new(build(device))),
            tie: None,
        }
    }

    /// Shares parameters of this layer with every other layer whose tie has the same key.
    #[must_use]
    pub fn with_tie(mut self, tie: Tie) -> Self {
        self.tie = Some(tie);
        self
    }

    /// What the layer shares with others, if anything.
    #[must_use]
    pub fn tie(&self) -> Option<&Tie> {
        self.tie.as_ref()
    }

    /// Name of the layer's type, without path and parameters; `type:REGEX` cuts look at it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    pub(crate) fn build(&self, device: &Device) -> AnyLayer {
        (self.build)(device)
    }
}

impl fmt::Debug for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerSpec").field("type_name", &self.type_name).finish_non_exhaustive()
    }
}

/// A model as a list of layers from input `I` to output `O`.
///
/// Each layer's `Input` is the `Output` of the one before it; the compiler checks it. Cloning is
/// cheap, and the list may move to other threads.
///
/// # Examples
/// ```
/// use brigade_engine::{Layer, Layers};
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Tensor;
///
/// #[derive(Module, Debug)]
/// struct Dense {
///     linear: Linear,
/// }
///
/// impl Layer for Dense {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         self.linear.forward(x)
///     }
/// }
///
/// let layers = Layers::new()
///     .layer(|d| Dense { linear: LinearConfig::new(4, 8).init(d) })
///     .repeat(3, |_i, d| Dense { linear: LinearConfig::new(8, 8).init(d) });
/// assert_eq!(layers.len(), 4);
/// assert_eq!(layers.specs()[0].type_name(), "Dense");
/// ```
pub struct Layers<I, O> {
    specs: Vec<LayerSpec>,
    types: PhantomData<fn(I) -> O>,
}

impl<I: Value> Layers<I, I> {
    /// An empty list, whose output is its input.
    #[must_use]
    pub fn new() -> Self {
        Self { specs: Vec::new(), types: PhantomData }
    }
}

impl<I: Value> Default for Layers<I, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Value, O: Value> Layers<I, O> {
    /// Appends a layer that takes what the list gives so far.
    #[must_use]
    pub fn layer<L: Layer<Input = O>>(
        mut self,
        build: impl Fn(&Device) -> L + Send + Sync + 'static,
    ) -> Layers<I, L::Output> {
        self.specs.push(LayerSpec::new(build));
        Layers { specs: self.specs, types: PhantomData }
    }

    /// Appends a layer that shares parameters with every other layer of the same key: `attributes` are
    /// their paths inside the layer, such as `weight` or `inner.weight`; none of them means all.
    ///
    /// See [`Tie`] for what becomes of them.
    #[must_use]
    #[doc(alias = "TiedLayerSpec")]
    pub fn tied<L: Layer<Input = O>, A: Into<String>>(
        mut self,
        key: impl Into<String>,
        attributes: impl IntoIterator<Item = A>,
        build: impl Fn(&Device) -> L + Send + Sync + 'static,
    ) -> Layers<I, L::Output> {
        self.specs.push(LayerSpec::new(build).with_tie(Tie::new(key, attributes)));
        Layers { specs: self.specs, types: PhantomData }
    }

    /// Appends `count` layers of one type; `build` is told which of them it makes, from 0.
    #[must_use]
    pub fn repeat<L: Layer<Input = O, Output = O>>(
        mut self,
        count: usize,
        build: impl Fn(usize, &Device) -> L + Send + Sync + 'static,
    ) -> Self {
        let build = Arc::new(build);
        self.specs.extend((0..count).map(|i| {
            let build = Arc::clone(&build);
            LayerSpec::new(move |device| build(i, device))
        }));
        self
    }

    /// Appends another list.
    #[must_use]
    pub fn then<P: Value>(mut self, other: Layers<O, P>) -> Layers<I, P> {
        self.specs.extend(other.specs);
        Layers { specs: self.specs, types: PhantomData }
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
}

impl<I, O> Clone for Layers<I, O> {
    fn clone(&self) -> Self {
        Self { specs: self.specs.clone(), types: PhantomData }
    }
}

impl<I, O> fmt::Debug for Layers<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.specs.iter().map(|s| s.type_name)).finish()
    }
}
