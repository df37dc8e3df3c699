//! The list of layers that a pipeline is cut from: specifications, not yet parameters.

mod list;
mod spec;
mod tied;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

pub use self::list::LayerList;
pub use self::spec::LayerSpec;
pub use self::tied::TiedLayerSpec;

pub(crate) use self::spec::TypeTag;
pub(crate) use self::tied::resolve_ties;

use self::spec::infallible;
use crate::layer::{Layer, LayerError};
use crate::tie::Tie;
use crate::value::Value;

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
    /// How many layers the last call appended.
    n_last: usize,
    types: PhantomData<fn(I) -> O>,
}

impl<I: Value> Layers<I, I> {
    /// An empty list, whose output is its input.
    #[must_use]
    pub fn new() -> Self {
        Self { specs: Vec::new(), n_last: 0, types: PhantomData }
    }
}

impl<I: Value> Default for Layers<I, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Value, O: Value> Layers<I, O> {
    /// A list of one layer that maps `I` to `O`.
    fn of(spec: LayerSpec) -> Self {
        Self::from_specs(vec![spec])
    }

    /// A list of layers that are known to map `I` to `O`.
    pub(crate) fn from_specs(specs: Vec<LayerSpec>) -> Self {
        let n_last = specs.len();
        Self { specs, n_last, types: PhantomData }
    }

    /// The list with `new` at its end, which map its output to `P`.
    pub(crate) fn append<P>(mut self, new: impl IntoIterator<Item = LayerSpec>) -> Layers<I, P> {
        let n_before = self.specs.len();
        self.specs.extend(new);
        let n_last = self.specs.len().saturating_sub(n_before);
        Layers { specs: self.specs, n_last, types: PhantomData }
    }

    /// Appends a layer that takes what the list gives so far.
    #[must_use]
    pub fn layer<L: Layer<Input = O>>(
        self,
        build: impl Fn(&Device) -> L + Send + Sync + 'static,
    ) -> Layers<I, L::Output> {
        self.append([LayerSpec::new(build)])
    }

    /// Appends any Burn module with a forward function over it.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::Layers;
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::{Tensor, activation::relu};
    ///
    /// let layers = Layers::<Tensor<2>, _>::new()
    ///     .with(|d| LinearConfig::new(4, 8).init(d), |linear, x| linear.forward(x))
    ///     .map(relu);
    /// assert_eq!(layers.len(), 2);
    /// ```
    #[must_use]
    pub fn with<M: Module + 'static, P: Value>(
        self,
        build: impl Fn(&Device) -> M + Send + Sync + 'static,
        forward: impl Fn(&M, O) -> P + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.append([LayerSpec::with(build, forward)])
    }

    /// The same for a forward function that can fail; its error stops every rank.
    #[must_use]
    pub fn try_with<M: Module + 'static, P: Value, E: Into<LayerError>>(
        self,
        build: impl Fn(&Device) -> M + Send + Sync + 'static,
        forward: impl Fn(&M, O) -> Result<P, E> + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.append([LayerSpec::try_with(build, forward)])
    }

    /// Appends a layer without parameters: a function.
    ///
    /// Its type name, for `type:REGEX` cuts, is the function's name, and `closure` for a closure.
    #[must_use]
    pub fn map<P: Value>(self, function: impl Fn(O) -> P + Send + Sync + 'static) -> Layers<I, P> {
        self.append([LayerSpec::map(function)])
    }

    /// The same for a function that can fail; its error stops every rank.
    #[must_use]
    pub fn try_map<P: Value, E: Into<LayerError>>(
        self,
        function: impl Fn(O) -> Result<P, E> + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.append([LayerSpec::try_map(function)])
    }

    /// Appends a layer that shares parameters with every other layer of the same key: `attributes` are
    /// their paths inside the layer, such as `weight` or `inner.weight`; none of them means all.
    ///
    /// See [`Tie`] for what becomes of them.
    #[must_use]
    #[doc(alias = "TiedLayerSpec")]
    pub fn tied<L: Layer<Input = O>, A: Into<String>>(
        self,
        key: impl Into<String>,
        attributes: impl IntoIterator<Item = A>,
        build: impl Fn(&Device) -> L + Send + Sync + 'static,
    ) -> Layers<I, L::Output> {
        self.append([LayerSpec::new(build).with_tie(Tie::new(key, attributes))])
    }

    /// Appends a module that [`tied`](Self::tied) builds under this key, before or after this place,
    /// with another forward function.
    ///
    /// It shares the same parameters; those that are not shared are its own, made by the same builder.
    /// The key is looked up when the pipeline is built: a key that no layer builds a module for, or
    /// another module than that of `forward`, is an error then.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::{Layer, Layers};
    /// use burn::module::Module;
    /// use burn::nn::{Embedding, EmbeddingConfig};
    /// use burn::tensor::{Int, Tensor};
    ///
    /// #[derive(Module, Debug)]
    /// struct Embed {
    ///     tokens: Embedding,
    /// }
    /// impl Layer for Embed {
    ///     type Input = Tensor<2, Int>;
    ///     type Output = Tensor<3>;
    ///     fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
    ///         self.tokens.forward(ids)
    ///     }
    /// }
    ///
    /// let layers = Layers::new()
    ///     .tied("embedding", ["tokens.weight"], |d| Embed { tokens: EmbeddingConfig::new(7, 4).init(d) })
    ///     .tied_with("embedding", |e: &Embed, x| x.matmul(e.tokens.weight.val().transpose().unsqueeze()));
    /// assert_eq!(layers.len(), 2);
    /// ```
    #[must_use]
    pub fn tied_with<M: Module + 'static, P: Value>(
        self,
        key: impl Into<String>,
        forward: impl Fn(&M, O) -> P + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.try_tied_with(key, infallible(forward))
    }

    /// The same for a forward function that can fail; its error stops every rank.
    #[must_use]
    pub fn try_tied_with<M: Module + 'static, P: Value, E: Into<LayerError>>(
        self,
        key: impl Into<String>,
        forward: impl Fn(&M, O) -> Result<P, E> + Send + Sync + 'static,
    ) -> Layers<I, P> {
        self.append([LayerSpec::keyed(key.into(), forward)])
    }

    /// Appends `count` layers of one type; `build` is told which of them it makes, from 0.
    #[must_use]
    pub fn repeat<L: Layer<Input = O, Output = O>>(
        self,
        count: usize,
        build: impl Fn(usize, &Device) -> L + Send + Sync + 'static,
    ) -> Self {
        let build = Arc::new(build);
        self.append((0..count).map(|i| {
            let build = Arc::clone(&build);
            LayerSpec::new(move |device| build(i, device))
        }))
    }

    /// Appends another list.
    #[must_use]
    pub fn then<P: Value>(self, other: Layers<O, P>) -> Layers<I, P> {
        self.append(other.specs)
    }

    /// Names what the last call appended: messages and the parameter summary say it.
    ///
    /// A single layer without a name gets it. Otherwise each gets the name, a dot, and its own name or its
    /// number among them. Names of one list must differ; parameters keep the path that starts with
    /// their layer's index, so that naming a layer breaks no checkpoint.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::Layers;
    ///
    /// let pair = Layers::new().map(|x: f64| x + 1.0).map(|x: f64| x * 2.0).named("double");
    /// let layers = Layers::new().map(|x: f64| -x).named("negate").then(pair).named("body");
    /// let names: Vec<_> = layers.specs().iter().map(|spec| spec.name().unwrap_or("")).collect();
    /// assert_eq!(names, ["negate", "body.0", "body.double"]);
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        let first = self.specs.len().saturating_sub(self.n_last);
        let new = self.specs.split_off(first);
        match <[LayerSpec; 1]>::try_from(new) {
            Ok([spec]) if spec.name().is_none() => self.specs.push(spec.named(name)),
            Ok([spec]) => self.specs.push(spec.nested(name, 0)),
            Err(new) => self.specs.extend(new.into_iter().enumerate().map(|(i, spec)| spec.nested(name, i))),
        }
        self
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
        Self { specs: self.specs.clone(), n_last: self.n_last, types: PhantomData }
    }
}

impl<I, O> fmt::Debug for Layers<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.specs.iter().map(LayerSpec::type_name)).finish()
    }
}
