//! A linear operation whose weight gradient may wait: zero-bubble schedules fill their idle time with it.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

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
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// The gradients of one linear operation's weight and bias.
type Found = (Option<DispatchTensor>, Option<DispatchTensor>);

/// One linear operation's weight gradient, still to be computed.
struct Job {
    weight: ParamId,
    bias: Option<ParamId>,
    run: Box<dyn FnOnce() -> Found + Send>,
}

/// The weight gradients that one micro-batch at one stage still owes.
#[derive(Clone, Default)]
pub(crate) struct Deferred(Arc<Mutex<Vec<Job>>>);

thread_local! {
    /// Where the linear operations of the forward pass that runs on this thread put their jobs.
    static CURRENT: RefCell<Option<Deferred>> = const { RefCell::new(None) };
}

impl Deferred {
    /// Runs a forward pass whose linear operations will put their weight gradients off into `self`.
    pub(crate) fn during<R>(&self, forward: impl FnOnce() -> R) -> R {
        /// Ends the collection also when the forward panics.
        struct Reset(Option<Deferred>);
        impl Drop for Reset {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _reset = Reset(CURRENT.replace(Some(self.clone())));
        forward()
    }

    fn push(&self, job: Job) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(job);
    }

    /// Computes every owed gradient and adds it to `gradients`, in the order of the backward pass.
    pub(crate) fn settle(self, gradients: &mut GradientsParams) {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for Job { weight, bias, run } in jobs {
            let (for_weight, for_bias) = run();
            if let Some(gradient) = for_weight {
                add::<2>(gradients, weight, gradient);
            }
            if let (Some(bias), Some(gradient)) = (bias, for_bias) {
                add::<1>(gradients, bias, gradient);
            }
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "Deferred({n_jobs})")
    }
}

fn add<const D: usize>(gradients: &mut GradientsParams, id: ParamId, new: DispatchTensor) {
    let new = Tensor::<D>::from_dispatch(new);
    let total = match gradients.remove::<D>(id) {
        Some(sum) => sum.add(new),
        None => new,
    };
    gradients.register::<D>(id, total);
}

/// Which parameters a linear operation uses, and whether their gradients wait.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    weight: ParamId,
    bias: Option<ParamId>,
    deferred: Option<Deferred>,
}

impl Slot {
    /// The slot of an operation that runs now on this thread.
    pub(crate) fn here(weight: ParamId, bias: Option<ParamId>) -> Self {
        Self { weight, bias, deferred: CURRENT.with_borrow(Clone::clone) }
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
