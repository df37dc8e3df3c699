//! Layers: what a user writes, and their type-erased form inside a stage.

use std::any::{Any, type_name};
use std::error::Error;
use std::fmt::Debug;

use brigade_wire::Tree;
use burn::module::{
    Content, Devices, Flag, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
};
use burn::tensor::Device;
use burn::tensor::kind::Kind;

use crate::erased::{DynMapper, DynVisitor, FromDynMapper, FromDynVisitor, ToDynMapper, ToDynVisitor};
use crate::error::ValueError;
use crate::tensor::{AnyTensor, RANK_MAX};
use crate::value::Value;

/// What a layer reports when it cannot compute its output.
pub type LayerError = Box<dyn Error + Send + Sync>;

/// One element of the list that a pipeline is cut from: a Burn module with one forward function.
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

/// Why a type-erased layer gave no output.
#[derive(Debug)]
pub(crate) enum ForwardError {
    Input(ValueError),
    Output(ValueError),
    Layer(LayerError),
}

/// A [`Layer`] behind a pointer, with its types checked when values come in.
pub(crate) trait ErasedLayer: Send + Debug {
    fn forward(&self, input: Tree<AnyTensor>) -> Result<Tree<AnyTensor>, ForwardError>;
    fn visit(&self, visitor: &mut dyn DynVisitor);
    fn map(self: Box<Self>, mapper: &mut dyn DynMapper) -> Box<dyn ErasedLayer>;
    fn collect_devices(&self, devices: Devices) -> Devices;
    fn fork(self: Box<Self>, device: &Device) -> Box<dyn ErasedLayer>;
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedLayer>;
    fn train(self: Box<Self>) -> Box<dyn ErasedLayer>;
    fn valid(&self) -> Box<dyn ErasedLayer>;
    fn materialize(self: Box<Self>) -> Box<dyn ErasedLayer>;
    fn boxed_clone(&self) -> Box<dyn ErasedLayer>;
}

impl<L: Layer> ErasedLayer for L {
    fn forward(&self, input: Tree<AnyTensor>) -> Result<Tree<AnyTensor>, ForwardError> {
        let input = L::Input::from_tree(input).map_err(ForwardError::Input)?;
        let output = self.try_forward(input).map_err(ForwardError::Layer)?;
        output.into_tree().map_err(ForwardError::Output)
    }
    fn visit(&self, visitor: &mut dyn DynVisitor) {
        Module::visit(self, &mut ToDynVisitor(visitor));
    }
    fn map(self: Box<Self>, mapper: &mut dyn DynMapper) -> Box<dyn ErasedLayer> {
        Box::new(Module::map(*self, &mut ToDynMapper(mapper)))
    }
    fn collect_devices(&self, devices: Devices) -> Devices {
        Module::collect_devices(self, devices)
    }
    fn fork(self: Box<Self>, device: &Device) -> Box<dyn ErasedLayer> {
        Box::new(Module::fork(*self, device))
    }
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedLayer> {
        Box::new(Module::to_device(*self, device))
    }
    fn train(self: Box<Self>) -> Box<dyn ErasedLayer> {
        Box::new(Module::train(*self))
    }
    fn valid(&self) -> Box<dyn ErasedLayer> {
        Box::new(Module::valid(self))
    }
    fn materialize(self: Box<Self>) -> Box<dyn ErasedLayer> {
        Box::new(Module::materialize(*self))
    }
    fn boxed_clone(&self) -> Box<dyn ErasedLayer> {
        Box::new(self.clone())
    }
}

/// A layer of any type; itself a Burn module, so optimizers and records work on it unchanged.
#[derive(Debug)]
pub struct AnyLayer(Box<dyn ErasedLayer>);

impl AnyLayer {
    /// Erases the type of a layer.
    #[must_use]
    pub fn new(layer: impl Layer) -> Self {
        Self(Box::new(layer))
    }

    pub(crate) fn forward(&self, input: Tree<AnyTensor>) -> Result<Tree<AnyTensor>, ForwardError> {
        self.0.forward(input)
    }

    /// The rank of a parameter that Brigade cannot carry, if there is one.
    pub(crate) fn unsupported_rank(&self) -> Option<usize> {
        struct Ranks(Option<usize>);
        impl DynVisitor for Ranks {
            fn param(&mut self, _kind: Kind, rank: usize, _param: &dyn Any) {
                if rank == 0 || rank > RANK_MAX {
                    self.0 = Some(rank);
                }
            }
            fn flag(&mut self, _flag: &Param<Flag>) {}
            fn enter(&mut self, _name: &str, _container: &str) {}
            fn exit(&mut self, _name: &str, _container: &str) {}
        }
        let mut ranks = Ranks(None);
        self.0.visit(&mut ranks);
        ranks.0
    }
}

impl Clone for AnyLayer {
    fn clone(&self) -> Self {
        Self(self.0.boxed_clone())
    }
}

impl Module for AnyLayer {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visit(&mut FromDynVisitor(visitor));
    }
    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        Self(self.0.map(&mut FromDynMapper(mapper)))
    }
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.collect_devices(devices)
    }
    fn fork(self, device: &Device) -> Self {
        Self(self.0.fork(device))
    }
    fn to_device(self, device: &Device) -> Self {
        Self(self.0.to_device(device))
    }
    fn train(self) -> Self {
        Self(self.0.train())
    }
    fn valid(&self) -> Self {
        Self(self.0.valid())
    }
    fn materialize(self) -> Self {
        Self(self.0.materialize())
    }
}

impl ModuleDisplayDefault for AnyLayer {
    fn content(&self, content: Content) -> Option<Content> {
        Some(content)
    }
}

impl ModuleDisplay for AnyLayer {}

/// The name of a type without its path and parameters: `Block` for `gpt::Block<f32>`.
pub(crate) fn short_type_name<T>() -> &'static str {
    let full = type_name::<T>();
    let head = full.split('<').next().unwrap_or(full);
    head.rsplit("::").next().unwrap_or(head)
}
