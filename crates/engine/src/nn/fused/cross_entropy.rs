//! Mean cross entropy of logits with the right classes, whose gradient is the softmax less one at the target.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{IndexingUpdateOp, Int, Shape, Tensor};

use super::flex;
use crate::nn::kernels;

/// The parts of the operation, for each backend that has tensors.
pub(crate) trait CrossEntropyParts: Backend {
    /// The mean loss, of shape `[1]`, and the classes' probabilities.
    fn loss_and_probabilities(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        plain::<Self>(logits, targets)
    }

    /// The gradient of the logits, from the probabilities and the gradient of the loss.
    fn cross_entropy_backward(
        probabilities: FloatTensor<Self>,
        targets: IntTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        plain_backward::<Self>(probabilities, targets, gradient)
    }
}

fn plain<B: Backend>(logits: FloatTensor<B>, targets: IntTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
    let n_rows = targets.shape().num_elements();
    let logarithms = B::log_softmax(logits, 1);
    let targets = B::int_reshape(targets, Shape::new([n_rows, 1]));
    let right = B::float_reshape(B::float_gather(1, logarithms.clone(), targets), Shape::new([n_rows]));
    (B::float_neg(B::float_mean(right)), B::float_exp(logarithms))
}

fn plain_backward<B: Backend>(
    probabilities: FloatTensor<B>,
    targets: IntTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let n_rows = targets.shape().num_elements();
    let count = u32::try_from(n_rows).map_or(f64::INFINITY, f64::from);
    let targets = B::int_reshape(targets, Shape::new([n_rows, 1]));
    let (device, dtype) = (probabilities.device(), probabilities.dtype());
    let ones = B::float_ones(Shape::new([n_rows, 1]), &device, dtype.into());
    let difference = B::float_scatter(1, probabilities, targets, B::float_neg(ones), IndexingUpdateOp::Add);
    let gradient = B::float_reshape(gradient, Shape::new([1, 1]));
    B::float_mul(difference, B::float_div_scalar(gradient, count.into()))
}

impl CrossEntropyParts for Flex {
    fn loss_and_probabilities(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let n_classes = flex::width(&logits.shape());
        let found = flex::indices(&targets).filter(|found| found.iter().all(|&index| index < n_classes));
        match (found, flex::take(logits)) {
            (Some(found), Ok(mut logits)) => {
                let losses = kernels::cross_entropy(logits.storage_mut(), &found, n_classes);
                (flex::tensor(vec![kernels::mean(&losses)], [1]), logits)
            }
            (_, Ok(logits) | Err(logits)) => plain::<Self>(logits, targets),
        }
    }

    fn cross_entropy_backward(
        probabilities: FloatTensor<Self>,
        targets: IntTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let n_classes = flex::width(&probabilities.shape());
        let weight =
            flex::contiguous(&gradient).and_then(|gradient| flex::values(&gradient).first().copied());
        let found = flex::indices(&targets);
        match (weight, found, flex::take(probabilities)) {
            (Some(weight), Some(found), Ok(mut probabilities)) => {
                let count = u32::try_from(found.len()).map_or(f64::INFINITY, f64::from);
                let weight = kernels::narrow(f64::from(weight) / count);
                kernels::cross_entropy_backward(probabilities.storage_mut(), &found, n_classes, weight);
                probabilities
            }
            (_, _, Ok(probabilities) | Err(probabilities)) => {
                plain_backward::<Self>(probabilities, targets, gradient)
            }
        }
    }
}

/// The operation, for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait CrossEntropyBackend: Backend {
    /// The mean loss of `[rows, classes]` with `[rows]`.
    fn fused_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self>;
}

impl CrossEntropyBackend for Flex {
    fn fused_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        Self::loss_and_probabilities(logits, targets).0
    }
}

impl<B: Backend + CrossEntropyBackend + CrossEntropyParts, C: CheckpointStrategy> CrossEntropyBackend
    for Autodiff<B, C>
{
    fn fused_cross_entropy(logits: FloatTensor<Self>, targets: IntTensor<Self>) -> FloatTensor<Self> {
        let (logits, node) = logits.into_parts();
        match CrossEntropy.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (loss, probabilities) = B::loss_and_probabilities(logits, targets.clone());
                prepared.finish((probabilities, targets), loss)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::fused_cross_entropy(logits, targets)),
        }
    }
}

#[derive(Debug)]
struct CrossEntropy;

impl<B: Backend + CrossEntropyParts> Backward<B, 1> for CrossEntropy {
    type State = (B::FloatTensorPrimitive, B::IntTensorPrimitive);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let (probabilities, targets) = ops.state;
        if let [Some(logits)] = ops.parents {
            let found = B::cross_entropy_backward(probabilities, targets, upstream);
            gradients.register::<B>(logits.id, found);
        }
    }
}

/// Mean cross entropy on whatever backend the tensors live.
pub(crate) fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [n_rows, _] = logits.dims();
    assert_eq!(targets.dims(), [n_rows], "one target for each row of logits");
    let (logits, targets) = (logits.into_dispatch(), targets.into_dispatch());
    Tensor::from_dispatch(<Dispatch as CrossEntropyBackend>::fused_cross_entropy(logits, targets))
}
