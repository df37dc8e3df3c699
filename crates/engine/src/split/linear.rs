//! A linear operation whose weight gradient may wait: zero-bubble schedules fill their idle time with it.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata,
    backend_extension,
};
use burn::tensor::{Shape, Tensor};

use super::{Job, Slot};
use crate::nn::fused::flex;
use crate::nn::kernels;

/// The parts of the operation, for each backend that has tensors.
pub(crate) trait LinearParts: Backend {
    /// `x · weight + bias`.
    fn linear_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        Self::linear(x, weight, bias)
    }

    /// The gradient of `x`.
    fn linear_backward_x(weight: FloatTensor<Self>, upstream: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_x_backward(weight, upstream)
    }

    /// The gradient of the bias.
    fn linear_backward_bias(upstream: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_bias_backward(upstream)
    }
}

/// One product of all rows at once: a product for each leading index would prepare the weight each time.
fn rows_times(x: FloatTensor<Flex>, weight: FloatTensor<Flex>) -> (FloatTensor<Flex>, Shape) {
    let mut shape = x.shape();
    let width = flex::width(&shape);
    let n_rows = shape.num_elements() / width.max(1);
    let product = Flex::float_matmul(Flex::float_reshape(x, Shape::new([n_rows, width])), weight);
    let last = shape.num_dims() - 1;
    shape[last] = flex::width(&product.shape());
    (product, shape)
}

impl LinearParts for Flex {
    fn linear_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        let (product, shape) = rows_times(x, weight);
        let Some(bias) = bias else { return Self::float_reshape(product, shape) };
        let sum = match (flex::take(product), flex::contiguous(&bias)) {
            (Ok(mut product), Some(bias)) => {
                kernels::add_to_rows(product.storage_mut(), flex::values(&bias));
                product
            }
            (Ok(product) | Err(product), _) => {
                let width = flex::width(&shape);
                Self::float_add(product, Self::float_reshape(bias, Shape::new([1, width])))
            }
        };
        Self::float_reshape(sum, shape)
    }

    fn linear_backward_x(weight: FloatTensor<Self>, upstream: FloatTensor<Self>) -> FloatTensor<Self> {
        let (product, shape) = rows_times(upstream, Self::float_swap_dims(weight, 0, 1));
        Self::float_reshape(product, shape)
    }

    fn linear_backward_bias(upstream: FloatTensor<Self>) -> FloatTensor<Self> {
        let Some(rows) = flex::contiguous(&upstream) else { return Self::linear_bias_backward(upstream) };
        let width = flex::width(&upstream.shape());
        flex::tensor(kernels::sum_of_rows(flex::values(&rows), width), [width])
    }
}

/// The operation behind [`linear`], for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait SplitBackend: Backend {
    /// `x · weight`.
    fn split_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, slot: Slot) -> FloatTensor<Self>;
    /// `x · weight + bias`.
    fn split_linear_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        slot: Slot,
    ) -> FloatTensor<Self>;
}

impl SplitBackend for Flex {
    fn split_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, _slot: Slot) -> FloatTensor<Self> {
        Self::linear_forward(x, weight, None)
    }

    fn split_linear_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        _slot: Slot,
    ) -> FloatTensor<Self> {
        Self::linear_forward(x, weight, Some(bias))
    }
}

impl<B: Backend + SplitBackend + LinearParts, C: CheckpointStrategy> SplitBackend for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn split_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, slot: Slot) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        match Split.prepare::<C>([x_node, weight_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let y = B::linear_forward(x.clone(), weight.clone(), None);
                prepared.finish(Saved { x, weight, slot }, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::linear_forward(x, weight, None)),
        }
    }

    fn split_linear_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        slot: Slot,
    ) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let (bias, bias_node) = bias.into_parts();
        match Split.prepare::<C>([x_node, weight_node, bias_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let y = B::linear_forward(x.clone(), weight.clone(), Some(bias));
                prepared.finish(Saved { x, weight, slot }, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::linear_forward(x, weight, Some(bias))),
        }
    }
}

/// What the backward pass of a linear operation needs.
#[derive(Clone, Debug)]
struct Saved<T> {
    x: T,
    weight: T,
    slot: Slot,
}

#[derive(Debug)]
struct Split;

impl<B: Backend + LinearParts> Backward<B, 2> for Split
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Saved<B::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let [x, weight] = ops.parents.map(|node| node.map(|node| node.id));
        backward::<B>(gradients, upstream, ops.state, [x, weight, None]);
    }
}

impl<B: Backend + LinearParts> Backward<B, 3> for Split
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Saved<B::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let nodes = ops.parents.map(|node| node.map(|node| node.id));
        backward::<B>(gradients, upstream, ops.state, nodes);
    }
}

/// Gives the input its gradient now, and weight and bias theirs now or later: by the same kernels, so that
/// both ways give the same bits.
fn backward<B: Backend + LinearParts>(
    gradients: &mut Gradients,
    upstream: B::FloatTensorPrimitive,
    saved: Saved<B::FloatTensorPrimitive>,
    [x_node, weight_node, bias_node]: [Option<NodeId>; 3],
) where
    DispatchTensor: DispatchKindConversion<B>,
{
    let Saved { x, weight, slot } = saved;
    if let Some(node) = x_node {
        gradients.register::<B>(node, B::linear_backward_x(weight, upstream.clone()));
    }
    let Some(deferred) = slot.deferred else {
        if let Some(node) = bias_node {
            gradients.register::<B>(node, B::linear_backward_bias(upstream.clone()));
        }
        if let Some(node) = weight_node {
            gradients.register::<B>(node, B::linear_weight_backward(x, upstream));
        }
        return;
    };
    let (wants_weight, wants_bias) = (weight_node.is_some(), bias_node.is_some());
    if !wants_weight && !wants_bias {
        return;
    }
    let erase =
        |tensor| <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor));
    let run = Box::new(move || {
        let for_bias = wants_bias.then(|| erase(B::linear_backward_bias(upstream.clone())));
        (wants_weight.then(|| erase(B::linear_weight_backward(x, upstream))), for_bias)
    });
    deferred.push(Job { weight: slot.weight, bias: slot.bias, run });
}

/// `x · weight + bias` on whatever backend the tensors live.
pub(crate) fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    slot: Slot,
) -> Tensor<D> {
    let slot = slot.for_leaf(&weight);
    let slot = bias.iter().fold(slot, Slot::for_leaf);
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(match bias {
        Some(bias) => <Dispatch as SplitBackend>::split_linear_bias(x, weight, bias.into_dispatch(), slot),
        None => <Dispatch as SplitBackend>::split_linear(x, weight, slot),
    })
}
