//! A layer of any type: a module and a forward function behind one pointer, itself a Burn module.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use brigade_wire::Tree;
use burn::module::{
    Content, Devices, Flag, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
};
use burn::tensor::Device;
use burn::tensor::kind::Kind;

use crate::erased::{DynMapper, DynVisitor, FromDynMapper, FromDynVisitor, ToDynMapper, ToDynVisitor};
use crate::error::ValueError;
use crate::layer::{Layer, LayerError};
use crate::tensor::{AnyTensor, RANK_MAX};
use crate::value::Value;

/// What a layer computes from its module and its input.
pub(crate) type ForwardFn<M, I, O> = Arc<dyn Fn(&M, I) -> Result<O, LayerError> + Send + Sync>;

/// Why a type-erased layer gave no output.
#[derive(Debug)]
pub(crate) enum ForwardError {
    Input(ValueError),
    Output(ValueError),
    Layer(LayerError),
}

/// A module with its forward function.
struct Applied<M, I, O> {
    module: M,
    forward: ForwardFn<M, I, O>,
}

impl<M: fmt::Debug, I, O> fmt::Debug for Applied<M, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.module.fmt(f)
    }
}

/// An [`Applied`] behind a pointer, with its types checked when values come in.
trait ErasedLayer: Send + fmt::Debug {
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

impl<M, I: Value, O: Value> Applied<M, I, O> {
    /// The same forward function over another state of the module.
    fn change(self, change: impl FnOnce(M) -> M) -> Box<Self> {
        Box::new(Self { module: change(self.module), forward: self.forward })
    }
}

impl<M: Module + 'static, I: Value, O: Value> ErasedLayer for Applied<M, I, O> {
    fn forward(&self, input: Tree<AnyTensor>) -> Result<Tree<AnyTensor>, ForwardError> {
        let input = I::from_tree(input).map_err(ForwardError::Input)?;
        let output = (self.forward)(&self.module, input).map_err(ForwardError::Layer)?;
        output.into_tree().map_err(ForwardError::Output)
    }
    fn visit(&self, visitor: &mut dyn DynVisitor) {
        self.module.visit(&mut ToDynVisitor(visitor));
    }
    fn map(self: Box<Self>, mapper: &mut dyn DynMapper) -> Box<dyn ErasedLayer> {
        self.change(|module| module.map(&mut ToDynMapper(mapper)))
    }
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.module.collect_devices(devices)
    }
    fn fork(self: Box<Self>, device: &Device) -> Box<dyn ErasedLayer> {
        self.change(|module| module.fork(device))
    }
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedLayer> {
        self.change(|module| module.to_device(device))
    }
    fn train(self: Box<Self>) -> Box<dyn ErasedLayer> {
        self.change(Module::train)
    }
    fn valid(&self) -> Box<dyn ErasedLayer> {
        Box::new(Self { module: self.module.valid(), forward: Arc::clone(&self.forward) })
    }
    fn materialize(self: Box<Self>) -> Box<dyn ErasedLayer> {
        self.change(Module::materialize)
    }
    fn boxed_clone(&self) -> Box<dyn ErasedLayer> {
        Box::new(Self { module: self.module.clone(), forward: Arc::clone(&self.forward) })
    }
}

/// A layer of any type; itself a Burn module, so optimizers and records work on it unchanged.
///
/// Its parameters have the paths that they have inside its module.
#[derive(Debug)]
pub struct AnyLayer(Box<dyn ErasedLayer>);

impl AnyLayer {
    /// Erases the type of a layer.
    #[must_use]
    pub fn new<L: Layer>(layer: L) -> Self {
        Self::with(layer, Arc::new(L::try_forward))
    }

    /// Makes a layer from a module and a function over it.
    pub(crate) fn with<M: Module + 'static, I: Value, O: Value>(
        module: M,
        forward: ForwardFn<M, I, O>,
    ) -> Self {
        Self(Box::new(Applied { module, forward }))
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
