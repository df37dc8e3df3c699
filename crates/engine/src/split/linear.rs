//! A linear operation whose weight gradient may wait: zero-bubble schedules fill their idle time with it.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::ModuleOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex,
    backend_extension,
};
use burn::tensor::Tensor;

use super::{Job, Slot};

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
        <Self as ModuleOps<Self>>::linear(x, weight, None)
    }

    fn split_linear_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        _slot: Slot,
    ) -> FloatTensor<Self> {
        <Self as ModuleOps<Self>>::linear(x, weight, Some(bias))
    }
}

impl<B: Backend + SplitBackend, C: CheckpointStrategy> SplitBackend for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn split_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>, slot: Slot) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        match Split.prepare::<C>([x_node, weight_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let y = B::linear(x.clone(), weight.clone(), None);
                prepared.finish(Saved { x, weight, slot }, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::linear(x, weight, None)),
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
                let y = B::linear(x.clone(), weight.clone(), Some(bias));
                prepared.finish(Saved { x, weight, slot }, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::linear(x, weight, Some(bias))),
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

impl<B: Backend> Backward<B, 2> for Split
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

impl<B: Backend> Backward<B, 3> for Split
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
fn backward<B: Backend>(
    gradients: &mut Gradients,
    upstream: B::FloatTensorPrimitive,
    saved: Saved<B::FloatTensorPrimitive>,
    [x_node, weight_node, bias_node]: [Option<NodeId>; 3],
) where
    DispatchTensor: DispatchKindConversion<B>,
{
    let Saved { x, weight, slot } = saved;
    if let Some(node) = x_node {
        gradients.register::<B>(node, B::linear_x_backward(weight, upstream.clone()));
    }
    let Some(deferred) = slot.deferred else {
        if let Some(node) = bias_node {
            gradients.register::<B>(node, B::linear_bias_backward(upstream.clone()));
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
        let for_bias = wants_bias.then(|| erase(B::linear_bias_backward(upstream.clone())));
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
    // Only a leaf's gradient can wait: that of a computed weight must flow on through the graph.
    let computed = |tracked: bool, leaf: bool| tracked && !leaf;
    let weight_computed = computed(weight.is_tracked(), weight.is_require_grad());
    let bias_computed = bias.as_ref().is_some_and(|b| computed(b.is_tracked(), b.is_require_grad()));
    let slot = if weight_computed || bias_computed { Slot { deferred: None, ..slot } } else { slot };
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(match bias {
        Some(bias) => <Dispatch as SplitBackend>::split_linear_bias(x, weight, bias.into_dispatch(), slot),
        None => <Dispatch as SplitBackend>::split_linear(x, weight, slot),
    })
}
