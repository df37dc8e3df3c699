//! Bridges between Burn's generic module traversal and layers behind a trait object.

use std::any::Any;

use burn::module::{Flag, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::kind::Kind;
use burn::tensor::{Bool, Float, Int, Tensor};

use crate::tensor::by_rank;

/// The object-safe counterpart of Burn's `ModuleVisitor`: a parameter arrives as
/// `&Param<Tensor<D, K>>` behind `Any`, with its kind and rank.
pub(crate) trait DynVisitor {
    fn param(&mut self, kind: Kind, rank: usize, param: &dyn Any);
    fn flag(&mut self, flag: &Param<Flag>);
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
}

/// The object-safe counterpart of Burn's `ModuleMapper`.
pub(crate) trait DynMapper {
    fn param(&mut self, kind: Kind, rank: usize, param: Box<dyn Any>) -> Box<dyn Any>;
    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag>;
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
}

/// A generic visitor that calls an object-safe one.
pub(crate) struct ToDynVisitor<'a>(pub(crate) &'a mut dyn DynVisitor);

impl ModuleVisitor for ToDynVisitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.param(Kind::Float, D, param);
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.param(Kind::Int, D, param);
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.param(Kind::Bool, D, param);
    }
    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.flag(flag);
    }
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }
    fn exit_module(&mut self, name: &str, container: &str) {
        self.0.exit(name, container);
    }
}

/// An object-safe visitor that calls a generic one.
pub(crate) struct FromDynVisitor<'a, V>(pub(crate) &'a mut V);

impl<V: ModuleVisitor> DynVisitor for FromDynVisitor<'_, V> {
    fn param(&mut self, kind: Kind, rank: usize, param: &dyn Any) {
        by_rank!(rank, D => match kind {
            Kind::Float => self.0.visit_float::<D>(typed(param)),
            Kind::Int => self.0.visit_int::<D>(typed(param)),
            Kind::Bool => self.0.visit_bool::<D>(typed(param)),
        }, else unsupported(rank));
    }
    fn flag(&mut self, flag: &Param<Flag>) {
        self.0.visit_flag(flag);
    }
    fn enter(&mut self, name: &str, container: &str) {
        self.0.enter_module(name, container);
    }
    fn exit(&mut self, name: &str, container: &str) {
        self.0.exit_module(name, container);
    }
}

/// A generic mapper that calls an object-safe one.
pub(crate) struct ToDynMapper<'a>(pub(crate) &'a mut dyn DynMapper);

impl ModuleMapper for ToDynMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        owned(self.0.param(Kind::Float, D, Box::new(param)))
    }
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        owned(self.0.param(Kind::Int, D, Box::new(param)))
    }
    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        owned(self.0.param(Kind::Bool, D, Box::new(param)))
    }
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.flag(flag)
    }
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }
    fn exit_module(&mut self, name: &str, container: &str) {
        self.0.exit(name, container);
    }
}

/// An object-safe mapper that calls a generic one.
pub(crate) struct FromDynMapper<'a, M>(pub(crate) &'a mut M);

impl<M: ModuleMapper> DynMapper for FromDynMapper<'_, M> {
    fn param(&mut self, kind: Kind, rank: usize, param: Box<dyn Any>) -> Box<dyn Any> {
        by_rank!(rank, D => match kind {
            Kind::Float => Box::new(self.0.map_float::<D>(owned::<Param<Tensor<D, Float>>>(param))),
            Kind::Int => Box::new(self.0.map_int::<D>(owned::<Param<Tensor<D, Int>>>(param))),
            Kind::Bool => Box::new(self.0.map_bool::<D>(owned::<Param<Tensor<D, Bool>>>(param))),
        }, else unsupported(rank))
    }
    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.map_flag(flag)
    }
    fn enter(&mut self, name: &str, container: &str) {
        self.0.enter_module(name, container);
    }
    fn exit(&mut self, name: &str, container: &str) {
        self.0.exit_module(name, container);
    }
}

/// The two halves of a bridge agree on kind and rank; anything else is a bug of ours.
fn typed<T: 'static>(param: &dyn Any) -> &T {
    param.downcast_ref().expect("kind and rank travel with the parameter")
}

fn owned<T: 'static>(param: Box<dyn Any>) -> T {
    *param.downcast().expect("kind and rank travel with the parameter")
}

/// `Layers` refuses a layer with such a parameter when it is built.
fn unsupported(rank: usize) -> ! {
    unreachable!("a parameter of rank {rank} is refused when its layer is built")
}
