//! Rows of a table by index; the table's gradient may wait.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::ModuleOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata,
    backend_extension,
};
use burn::tensor::{Int, Tensor};

use super::{Job, Slot};
use crate::nn::fused::flex;
use crate::nn::kernels;

/// The parts of the operation, for each backend that has tensors.
pub(crate) trait EmbeddingParts: Backend {
    /// The rows of `table` at `indices`.
    fn rows_at(table: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        Self::embedding(table, indices)
    }

    /// The gradient of `table`.
    fn rows_at_backward(
        table: FloatTensor<Self>,
        upstream: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::embedding_backward(table, upstream, indices)
    }
}

impl EmbeddingParts for Flex {
    fn rows_at(table: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        let width = flex::width(&table.shape());
        let shape = indices.shape();
        let found = flex::contiguous(&table)
            .zip(flex::indices(&indices))
            .and_then(|(table, indices)| kernels::gather(flex::values(&table), width, &indices));
        match (found, shape.as_slice()) {
            (Some(found), &[batch, seq]) => flex::tensor(found, [batch, seq, width]),
            _ => Self::embedding(table, indices),
        }
    }

    fn rows_at_backward(
        table: FloatTensor<Self>,
        upstream: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let width = flex::width(&table.shape());
        match (flex::contiguous(&upstream), flex::indices(&indices)) {
            (Some(upstream), Some(found)) => {
                let mut gradient = vec![0.0; table.shape().num_elements()];
                kernels::scatter_add(&mut gradient, width, &found, flex::values(&upstream));
                flex::tensor(gradient, table.shape())
            }
            _ => Self::embedding_backward(table, upstream, indices),
        }
    }
}

/// The operation behind [`embedding`], for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait EmbeddingBackend: Backend {
    /// The rows of `table` at `indices`.
    fn split_embedding(table: FloatTensor<Self>, indices: IntTensor<Self>, slot: Slot) -> FloatTensor<Self>;
}

impl EmbeddingBackend for Flex {
    fn split_embedding(table: FloatTensor<Self>, indices: IntTensor<Self>, _slot: Slot) -> FloatTensor<Self> {
        Self::rows_at(table, indices)
    }
}

impl<B: Backend + EmbeddingBackend + EmbeddingParts, C: CheckpointStrategy> EmbeddingBackend
    for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn split_embedding(table: FloatTensor<Self>, indices: IntTensor<Self>, slot: Slot) -> FloatTensor<Self> {
        let (table, node) = table.into_parts();
        match Split.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let y = B::rows_at(table.clone(), indices.clone());
                prepared.finish((table, indices, slot), y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::rows_at(table, indices)),
        }
    }
}

#[derive(Debug)]
struct Split;

impl<B: Backend + EmbeddingParts> Backward<B, 1> for Split
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (B::FloatTensorPrimitive, B::IntTensorPrimitive, Slot);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let [Some(node)] = ops.parents else { return };
        let (table, indices, slot) = ops.state;
        let Some(deferred) = slot.deferred else {
            gradients.register::<B>(node.id, B::rows_at_backward(table, upstream, indices));
            return;
        };
        let run = Box::new(move || {
            let found = BackendTensor::Float(B::rows_at_backward(table, upstream, indices));
            (Some(<DispatchTensor as DispatchKindConversion<B>>::from_backend(found)), None)
        });
        deferred.push(Job { weight: slot.weight, bias: None, run });
    }
}

/// The rows of `table` at `indices` on whatever backend the tensors live.
pub(crate) fn embedding(table: Tensor<2>, indices: Tensor<2, Int>, slot: Slot) -> Tensor<3> {
    let slot = slot.for_leaf(&table);
    let (table, indices) = (table.into_dispatch(), indices.into_dispatch());
    Tensor::from_dispatch(<Dispatch as EmbeddingBackend>::split_embedding(table, indices, slot))
}
