//! Parameters and gradients of a module by name, and the sum of gradients over micro-batches.

use std::collections::BTreeMap;

use brigade_schedule::MicroBatch;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor, TensorData};

/// The sum of one module's gradients over micro-batches, always added in micro-batch order: that order
/// decides the last bit, and a schedule may run the backward passes in another one.
///
/// Gradients that come early are kept until those before them are there.
#[derive(Debug)]
pub(crate) struct OrderedSum<'a> {
    /// The micro-batches that are still to be added, in their order: where two ranks hold a stage, each
    /// runs some of them.
    left: &'a [MicroBatch],
    early: BTreeMap<MicroBatch, Option<GradientsParams>>,
}

impl<'a> OrderedSum<'a> {
    /// A sum over these micro-batches, which are in their order.
    pub(crate) fn over(micro_batches: &'a [MicroBatch]) -> Self {
        Self { left: micro_batches, early: BTreeMap::new() }
    }

    /// Takes the gradients of one micro-batch, if it had any, and adds all whose turn it is to `sum`.
    pub(crate) fn add<M: Module>(
        &mut self,
        sum: &mut GradientsParams,
        module: &M,
        micro_batch: MicroBatch,
        gradients: Option<GradientsParams>,
    ) {
        self.early.insert(micro_batch, gradients);
        while let Some((next, rest)) = self.left.split_first()
            && let Some(new) = self.early.remove(next)
        {
            self.left = rest;
            if let Some(new) = new {
                module.visit(&mut Add { sum, new });
            }
        }
    }
}

struct Add<'a> {
    sum: &'a mut GradientsParams,
    new: GradientsParams,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(new) = self.new.remove::<D>(param.id) else { return };
        // Half-precision sums would lose the small gradients.
        let new = match new.dtype() {
            DType::F16 | DType::BF16 => new.cast(FloatDType::F32),
            _ => new,
        };
        let total = match self.sum.remove::<D>(param.id) {
            Some(sum) => sum.add(new),
            None => new,
        };
        self.sum.register::<D>(param.id, total);
    }
}

/// Makes every parameter exist now, so that no later clone shares a value that is still to be made.
pub(crate) fn initialize<M: Module>(module: &M) {
    struct Touch;
    impl ModuleVisitor for Touch {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            let _ = param.val();
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            let _ = param.val();
        }
    }
    module.visit(&mut Touch);
}

/// A tensor with the name that it has at any number of stages: `layer_007.attention.query.weight`.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    /// Global layer index and path of the parameter.
    pub name: String,
    /// The values, on the host.
    pub data: TensorData,
}

/// The float parameters of a module, in the order of its layers and fields.
pub(crate) fn named_parameters<M: Module>(module: &M) -> Vec<NamedTensor> {
    named(module, None)
}

/// The gradients of a module's parameters, in the same order; those without one are left out.
pub(crate) fn named_gradients<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<NamedTensor> {
    named(module, Some(gradients))
}

/// The parameters of a module, or in their place their gradients.
fn named<M: Module>(module: &M, gradients: Option<&GradientsParams>) -> Vec<NamedTensor> {
    struct Collect<'a> {
        gradients: Option<&'a GradientsParams>,
        path: Vec<String>,
        found: Vec<NamedTensor>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = match self.gradients {
                Some(gradients) => gradients.get::<D>(param.id),
                None => Some(param.val()),
            };
            let name = self.path.join(".");
            self.found.extend(tensor.map(|tensor| NamedTensor { name, data: tensor.into_data() }));
        }
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
    }
    let mut collect = Collect { gradients, path: Vec::new(), found: Vec::new() };
    module.visit(&mut collect);
    collect.found
}
