//! The copies of parameters that one rank holds: their gradients and values without static types.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Float, Tensor};

use super::groups::{ParameterInfo, Place};
use crate::any_layer::AnyLayer;
use crate::error::TensorError;

use crate::stage::RankModule;
use crate::tensor::{AnyTensor, by_rank};

/// A parameter of this rank's module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) id: ParamId,
    /// Number of dimensions.
    rank: usize,
}

/// The float parameters of a layer, in the order of its fields; none is made for it.
pub(crate) fn parameters(layer: AnyLayer) -> Vec<ParameterInfo> {
    struct Collect {
        path: Vec<String>,
        found: Vec<ParameterInfo>,
    }
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let shape = param.lazy_shape().as_slice().to_vec();
            self.found.push(ParameterInfo {
                path: self.path.join("."),
                shape,
                is_statistic: false,
                is_trainable: is_trainable(param),
                element_bytes: u64::try_from(float_type(param).size()).unwrap_or(u64::MAX),
            });
        }
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
    }
    let mut collect = Collect { path: Vec::new(), found: Vec::new() };
    layer.visit(&mut collect);
    let mut found = collect.found;
    for (info, is_statistic) in found.iter_mut().zip(statistics(layer)) {
        info.is_statistic = is_statistic;
    }
    found
}

/// Which of a layer's float parameters are running statistics: they refuse to be trained. Burn shows them
/// as parameters like others.
fn statistics(layer: AnyLayer) -> Vec<bool> {
    struct Ask;
    impl ModuleMapper for Ask {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            // Statistics always have a value; a parameter that has none yet is left without.
            let asked = param.is_initialized() && param.lazy_device().is_autodiff();
            if asked { param.set_require_grad(true) } else { param }
        }
    }
    struct Collect(Vec<bool>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let asked = param.is_initialized() && param.lazy_device().is_autodiff();
            self.0.push(asked && !param.is_require_grad());
        }
    }
    let mut collect = Collect(Vec::new());
    layer.map(&mut Ask).visit(&mut collect);
    collect.0
}

/// Whether training changes a parameter, which is not made for the answer: a value of one element is
/// loaded into a handle of it, and takes over what the parameter was set to.
fn is_trainable<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let stand_in = Tensor::<D>::zeros([1; D], &param.lazy_device().inner());
    let handle = param.clone().load_mapper(|value| value);
    handle.transform_for_load(stand_in, param.id).train().base().is_require_grad()
}

/// The element type of a parameter: where it is not made yet, the one that its device makes.
fn float_type<const D: usize>(param: &Param<Tensor<D>>) -> DType {
    if param.is_initialized() {
        param.base().dtype()
    } else {
        param.lazy_device().settings().float_dtype.into()
    }
}

/// The copies that a module holds, by their places in the model.
pub(crate) fn copies(module: &RankModule) -> BTreeMap<Place, Copy> {
    struct Collect(Vec<Copy>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(Copy { id: param.id, rank: D });
        }
    }
    let mut copies = BTreeMap::new();
    for placed in module.stages.iter().flat_map(|stage| &stage.layers) {
        let mut collect = Collect(Vec::new());
        placed.layer.visit(&mut collect);
        let layer = placed.label.index;
        let found = collect.0.into_iter().enumerate();
        copies.extend(found.map(|(parameter, copy)| (Place { layer, parameter }, copy)));
    }
    copies
}

impl Copy {
    pub(crate) fn take_gradient(self, gradients: &mut GradientsParams) -> Option<AnyTensor> {
        by_rank!(self.rank, D => {
            AnyTensor::new(gradients.remove::<D>(self.id)?).ok()
        }, else None)
    }

    pub(crate) fn gradient(self, gradients: &GradientsParams) -> Option<AnyTensor> {
        by_rank!(self.rank, D => AnyTensor::new(gradients.get::<D>(self.id)?).ok(), else None)
    }

    pub(crate) fn put_gradient(
        self,
        gradients: &mut GradientsParams,
        gradient: AnyTensor,
    ) -> Result<(), TensorError> {
        by_rank!(self.rank, D => {
            gradients.register::<D>(self.id, gradient.into_tensor::<D, Float>()?);
            Ok(())
        }, else Err(TensorError::Rank { rank: self.rank }))
    }
}

/// Adds two gradients of one parameter, in this order.
pub(crate) fn add(one: AnyTensor, other: AnyTensor) -> Result<AnyTensor, TensorError> {
    if (one.dtype(), one.shape()) != (other.dtype(), other.shape()) {
        let describe = |tensor: &AnyTensor| format!("{:?}{:?}", tensor.dtype(), tensor.shape().as_slice());
        return Err(TensorError::GradientShape { output: describe(&one), gradient: describe(&other) });
    }
    let rank = one.rank();
    by_rank!(rank, D => {
        AnyTensor::new(one.into_tensor::<D, Float>()?.add(other.into_tensor::<D, Float>()?))
    }, else Err(TensorError::Rank { rank }))
}

/// What a parameter takes over from another copy of it.
#[derive(Clone, Debug)]
pub(crate) struct NewValue {
    pub(crate) value: AnyTensor,
    /// Whether it is trained, where that is taken over too.
    pub(crate) is_trained: Option<bool>,
}

/// The values of all float parameters of a layer, in the order of its fields.
pub(crate) fn in_order(layer: &AnyLayer) -> Vec<NewValue> {
    struct Collect(Vec<NewValue>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let is_trained = Some(param.is_require_grad());
            let value = AnyTensor::new(param.val().inner()).ok();
            self.0.extend(value.map(|value| NewValue { value, is_trained }));
        }
    }
    let mut collect = Collect(Vec::new());
    layer.visit(&mut collect);
    collect.0
}

/// The values of the parameters that `wanted` picks, without their graphs.
pub(crate) fn values<M: Module>(module: &M, wanted: impl Fn(ParamId) -> bool) -> BTreeMap<u64, AnyTensor> {
    struct Collect<F>(F, BTreeMap<u64, AnyTensor>);
    impl<F: Fn(ParamId) -> bool> ModuleVisitor for Collect<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if (self.0)(param.id) {
                let value = AnyTensor::new(param.val().inner());
                self.1.extend(value.ok().map(|value| (param.id.val(), value)));
            }
        }
    }
    let mut collect = Collect(wanted, BTreeMap::new());
    module.visit(&mut collect);
    collect.1
}

/// The module with the values of some parameters replaced, each as a new leaf of this thread.
pub(crate) fn with_values<M: Module>(module: M, values: BTreeMap<u64, NewValue>) -> Result<M, TensorError> {
    struct Replace(BTreeMap<u64, NewValue>, Result<(), TensorError>);
    impl ModuleMapper for Replace {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(new) = self.0.get(&param.id.val()) else { return param };
            match new.value.clone().into_tensor::<D, Float>() {
                Ok(value) => {
                    let is_trained = new.is_trained;
                    let (id, old, mapper) = param.consume();
                    let value = value.autodiff().set_require_grad(old.is_require_grad());
                    let param = Param::from_mapped_value(id, value, mapper);
                    match is_trained {
                        Some(is_trained) => param.set_require_grad(is_trained),
                        None => param,
                    }
                }
                Err(error) => {
                    self.1 = Err(error);
                    param
                }
            }
        }
    }
    let mut replace = Replace(values, Ok(()));
    let module = module.map(&mut replace);
    replace.1.map(|()| module)
}
