//! GELU, exact, with its slope computed in the forward pass.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;

use super::flex;
use crate::nn::kernels;

/// The parts of the operation, for each backend that has tensors.
pub(crate) trait GeluParts: Backend {
    /// GELU of `x`, and its slope there.
    fn gelu_and_slope(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        plain::<Self>(x)
    }

    /// The gradient times the slope.
    fn gelu_slope_times(slope: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_mul(gradient, slope)
    }
}

fn plain<B: Backend>(x: FloatTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
    let ones = B::float_ones(x.shape(), &x.device(), x.dtype().into());
    (B::gelu(x.clone()), B::gelu_backward(x, ones))
}

impl GeluParts for Flex {
    fn gelu_and_slope(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let mut x = match flex::take(x) {
            Ok(x) => x,
            Err(x) => return plain::<Self>(x),
        };
        let mut y = vec![0.0; x.shape().num_elements()];
        kernels::gelu(x.storage_mut(), &mut y);
        (flex::tensor(y, x.shape()), x)
    }

    fn gelu_slope_times(slope: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        match (flex::contiguous(&slope), flex::take(gradient)) {
            (Some(slope), Ok(mut gradient)) => {
                kernels::gelu_backward(flex::values(&slope), gradient.storage_mut());
                gradient
            }
            (_, Ok(gradient) | Err(gradient)) => Self::float_mul(gradient, slope),
        }
    }
}

/// The operation, for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait GeluBackend: Backend {
    /// GELU of `x`.
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl GeluBackend for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        match flex::take(x) {
            Ok(mut x) => {
                kernels::gelu_alone(x.storage_mut());
                x
            }
            Err(x) => Self::gelu(x),
        }
    }
}

impl<B: Backend + GeluBackend + GeluParts, C: CheckpointStrategy> GeluBackend for Autodiff<B, C> {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match Gelu.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (y, slope) = B::gelu_and_slope(x);
                prepared.finish(slope, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::fused_gelu(x)),
        }
    }
}

#[derive(Debug)]
struct Gelu;

impl<B: Backend + GeluParts> Backward<B, 1> for Gelu {
    type State = B::FloatTensorPrimitive;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        if let [Some(x)] = ops.parents {
            gradients.register::<B>(x.id, B::gelu_slope_times(ops.state, upstream));
        }
    }
}

/// GELU on whatever backend the tensor lives.
pub(crate) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as GeluBackend>::fused_gelu(x.into_dispatch()))
}
