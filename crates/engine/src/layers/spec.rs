//! How to build one layer: a specification, not yet parameters.

use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::sync::Arc;

use brigade_wire::Tree;
use burn::module::Module;
use burn::tensor::Device;

use crate::any_layer::{AnyLayer, ForwardFn};
use crate::layer::{Layer, LayerError, LayerLabel, short_type_name};
use crate::skip::SkipOp;
use crate::tensor::AnyTensor;
use crate::tie::Tie;
use crate::value::Value;

/// A Rust type, with its name for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TypeTag {
    pub(crate) id: TypeId,
    pub(crate) name: &'static str,
}

impl TypeTag {
    pub(crate) fn of<T: 'static>() -> Self {
        Self { id: TypeId::of::<T>(), name: type_name::<T>() }
    }
}

/// Builds a layer's module, whose type is known from the specification that holds it.
pub(super) type BuildModule = Arc<dyn Fn(&Device) -> Box<dyn Any> + Send + Sync>;

pub(super) fn build_module<M: 'static>(build: impl Fn(&Device) -> M + Send + Sync + 'static) -> BuildModule {
    Arc::new(move |device| Box::new(build(device)))
}

/// How to build one layer: a builder of its module and a forward function. Nothing is allocated until
/// its owner builds it.
///
/// A [`Layers`](crate::Layers) list makes its specifications itself; make them by hand for a
/// [`LayerList`](crate::LayerList), whose length is known only at run time.
///
/// # Examples
/// ```
/// use brigade_engine::LayerSpec;
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Tensor, activation::relu};
///
/// let linear = LayerSpec::with(
///     |device| LinearConfig::new(4, 2).init(device),
///     |linear, x: Tensor<2>| linear.forward(x),
/// );
/// assert_eq!(linear.type_name(), "Linear");
/// let act = LayerSpec::map(relu::<2>).named("act");
/// assert_eq!((act.type_name(), act.name()), ("relu", Some("act")));
/// ```
#[derive(Clone)]
pub struct LayerSpec {
    name: Option<Arc<str>>,
    type_name: &'static str,
    input: TypeTag,
    output: TypeTag,
    module: TypeTag,
    /// `None`: the builder of the layer that ties the same key with one of its own.
    build: Option<BuildModule>,
    apply: Arc<dyn Fn(Box<dyn Any>) -> AnyLayer + Send + Sync>,
    ties: Vec<Tie>,
    skip: Option<SkipOp>,
}

impl LayerSpec {
    /// Describes a layer by a function that builds it on a device.
    pub fn new<L: Layer>(build: impl Fn(&Device) -> L + Send + Sync + 'static) -> Self {
        Self::try_with(build, L::try_forward)
    }

    /// Describes a layer by a builder of any Burn module and a forward function over it.
    pub fn with<M: Module + 'static, I: Value, O: Value>(
        build: impl Fn(&Device) -> M + Send + Sync + 'static,
        forward: impl Fn(&M, I) -> O + Send + Sync + 'static,
    ) -> Self {
        Self::try_with(build, infallible(forward))
    }

    /// The same for a forward function that can fail; its error stops every rank.
    pub fn try_with<M: Module + 'static, I: Value, O: Value, E: Into<LayerError>>(
        build: impl Fn(&Device) -> M + Send + Sync + 'static,
        forward: impl Fn(&M, I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        Self::from_parts(Some(build_module(build)), short_type_name::<M>(), forward)
    }

    /// Describes a layer without parameters by a function.
    pub fn map<I: Value, O: Value, F: Fn(I) -> O + Send + Sync + 'static>(function: F) -> Self {
        let name = short_type_name::<F>();
        Self::function(name, move |input| Ok::<_, LayerError>(function(input)))
    }

    /// The same for a function that can fail; its error stops every rank.
    pub fn try_map<I: Value, O: Value, E: Into<LayerError>, F>(function: F) -> Self
    where
        F: Fn(I) -> Result<O, E> + Send + Sync + 'static,
    {
        Self::function(short_type_name::<F>(), function)
    }

    fn function<I: Value, O: Value, E: Into<LayerError>>(
        name: &'static str,
        function: impl Fn(I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        let forward = move |_: &NoParameters, input: I| function(input);
        Self::from_parts(Some(build_module(|_| NoParameters)), name, forward)
    }

    /// A layer whose module comes from the builder that another layer ties with the same key.
    pub(super) fn keyed<M: Module + 'static, I: Value, O: Value, E: Into<LayerError>>(
        key: String,
        forward: impl Fn(&M, I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        let spec = Self::from_parts(None, short_type_name::<M>(), forward);
        spec.with_tie(Tie { key, attributes: Vec::new() })
    }

    /// A layer over a builder that others may use too; it must give an `M`.
    pub(super) fn over<M: Module + 'static, I: Value, O: Value, E: Into<LayerError>>(
        build: BuildModule,
        forward: impl Fn(&M, I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        Self::from_parts(Some(build), short_type_name::<M>(), forward)
    }

    fn from_parts<M: Module + 'static, I: Value, O: Value, E: Into<LayerError>>(
        build: Option<BuildModule>,
        type_name: &'static str,
        forward: impl Fn(&M, I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Self {
        let forward: ForwardFn<M, I, O> =
            Arc::new(move |module, input| forward(module, input).map_err(Into::into));
        let apply = move |module: Box<dyn Any>| {
            let module = module.downcast::<M>().expect("ties are resolved only between equal modules");
            AnyLayer::with(*module, Arc::clone(&forward))
        };
        Self {
            name: None,
            type_name,
            input: TypeTag::of::<I>(),
            output: TypeTag::of::<O>(),
            module: TypeTag::of::<M>(),
            build,
            apply: Arc::new(apply),
            ties: Vec::new(),
            skip: None,
        }
    }

    /// An entry without parameters that stashes or uses a named value, and maps `I` to `O`.
    pub(crate) fn skip_op<I: Value, O: Value>(op: SkipOp) -> Self {
        let no_layer = |_: &NoParameters, tree: Tree<AnyTensor>| Ok::<_, LayerError>(tree);
        let spec = Self::from_parts(Some(build_module(|_| NoParameters)), op.kind.type_name(), no_layer);
        Self { input: TypeTag::of::<I>(), output: TypeTag::of::<O>(), skip: Some(op), ..spec }
    }

    /// What the entry does with a named value, if anything.
    pub(crate) fn skip(&self) -> Option<&SkipOp> {
        self.skip.as_ref()
    }

    /// Puts `namespace/` before the name of the value that the entry stashes or uses, if it does.
    pub(crate) fn namespaced(self, namespace: &str) -> Self {
        Self { skip: self.skip.map(|op| op.namespaced(namespace)), ..self }
    }

    /// Names the layer: messages and the parameter summary say it. Names of one list must differ.
    ///
    /// The paths of parameters keep the layer's index, so that naming a layer breaks no checkpoint.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Puts `prefix` and a dot before the layer's name, or before `index` when it has none.
    pub(super) fn nested(self, prefix: &str, index: usize) -> Self {
        let name = match &self.name {
            Some(name) => format!("{prefix}.{name}"),
            None => format!("{prefix}.{index}"),
        };
        self.named(name)
    }

    /// Shares parameters of this layer with every other layer that has a tie of the same key; a layer may
    /// have several ties, of other keys and other parameters.
    #[must_use]
    pub fn with_tie(mut self, tie: Tie) -> Self {
        self.ties.push(tie);
        self
    }

    /// What the layer shares with others.
    #[must_use]
    pub fn ties(&self) -> &[Tie] {
        &self.ties
    }

    /// The layer's name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Name of the layer's type, without path and parameters; `type:REGEX` cuts look at it.
    ///
    /// It is the module's type; for a function the function's name, and `closure` for a closure.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// What messages call the layer at a place of the list.
    pub(crate) fn label(&self, index: usize) -> LayerLabel {
        LayerLabel { index, name: self.name.clone(), type_name: self.type_name }
    }

    pub(crate) fn input(&self) -> TypeTag {
        self.input
    }

    pub(crate) fn output(&self) -> TypeTag {
        self.output
    }

    pub(super) fn module(&self) -> TypeTag {
        self.module
    }

    /// Whether the layer has a builder of its own.
    pub(super) fn has_builder(&self) -> bool {
        self.build.is_some()
    }

    /// Whether both come from one builder: copies of one specification do.
    pub(super) fn shares_builder(&self, other: &Self) -> bool {
        matches!((&self.build, &other.build), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
    }

    /// The same layer over a module of another one's builder, and with its tie.
    pub(super) fn built_like(&self, other: &Self) -> Self {
        Self { build: other.build.clone(), ties: other.ties.clone(), ..self.clone() }
    }

    pub(crate) fn build(&self, device: &Device) -> AnyLayer {
        let build = self.build.as_ref().expect("ties are resolved before layers are built");
        (self.apply)(build(device))
    }
}

impl fmt::Debug for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerSpec")
            .field("name", &self.name)
            .field("type_name", &self.type_name)
            .field("ties", &self.ties)
            .field("skip", &self.skip)
            .finish_non_exhaustive()
    }
}

/// The module of a layer that is a function.
#[derive(Module, Debug)]
struct NoParameters;

/// A function that never fails, as one that could.
pub(super) fn infallible<M, I, O>(
    forward: impl Fn(&M, I) -> O + Send + Sync + 'static,
) -> impl Fn(&M, I) -> Result<O, LayerError> + Send + Sync + 'static {
    move |module, input| Ok(forward(module, input))
}
