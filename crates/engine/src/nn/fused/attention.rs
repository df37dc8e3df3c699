//! Attention in which each position sees itself and those before it.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor, TensorData};

use super::flex;
use crate::nn::kernels;

/// The parts of the operation, for each backend that has tensors.
pub(crate) trait AttentionParts: Backend {
    /// Softmax over the last dimension of `scale` times the scores, where row `i` sees columns up to `i`.
    fn causal_weights(scores: FloatTensor<Self>, scale: f32) -> FloatTensor<Self> {
        plain_weights::<Self>(scores, scale)
    }

    /// The gradient of the scores, from the weights and their gradient.
    fn causal_weights_backward(
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        plain_weights_backward::<Self>(weights, gradient, scale)
    }
}

fn plain_weights<B: Backend>(scores: FloatTensor<B>, scale: f32) -> FloatTensor<B> {
    let shape = scores.shape();
    let (rank, n) = (shape.num_dims(), flex::width(&shape));
    let unseen: Vec<bool> = (0..n * n).map(|i| i % n > i / n).collect();
    let mut dims = vec![1; rank];
    dims[rank - 2..].fill(n);
    let mask = B::bool_from_data(TensorData::new(unseen, dims), &scores.device());
    let mask = B::bool_expand(mask, shape);
    let scores = B::float_mul_scalar(scores, scale.into());
    B::softmax(B::float_mask_fill(scores, mask, f32::NEG_INFINITY.into()), rank - 1)
}

fn plain_weights_backward<B: Backend>(
    weights: FloatTensor<B>,
    gradient: FloatTensor<B>,
    scale: f32,
) -> FloatTensor<B> {
    let last = weights.shape().num_dims() - 1;
    let share = B::float_sum_dim(B::float_mul(weights.clone(), gradient.clone()), last);
    B::float_mul_scalar(B::float_mul(weights, B::float_sub(gradient, share)), scale.into())
}

impl AttentionParts for Flex {
    fn causal_weights(scores: FloatTensor<Self>, scale: f32) -> FloatTensor<Self> {
        match flex::take(scores) {
            Ok(mut scores) => {
                let n = flex::width(&scores.shape());
                kernels::causal_softmax(scores.storage_mut(), n, scale);
                scores
            }
            Err(scores) => plain_weights::<Self>(scores, scale),
        }
    }

    fn causal_weights_backward(
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        match (flex::contiguous(&weights), flex::take(gradient)) {
            (Some(weights), Ok(mut gradient)) => {
                let n = flex::width(&weights.shape());
                kernels::causal_softmax_backward(flex::values(&weights), gradient.storage_mut(), n, scale);
                gradient
            }
            (_, Ok(gradient) | Err(gradient)) => plain_weights_backward::<Self>(weights, gradient, scale),
        }
    }
}

/// How an operation is split into heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    n_heads: usize,
    scale: f32,
}

impl Heads {
    /// `[batch, seq, width]` to `[batch, head, seq, width of a head]`.
    fn apart<B: Backend>(self, x: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, seq, width] = x.shape().dims();
        let x = B::float_reshape(x, Shape::new([batch, seq, self.n_heads, width / self.n_heads]));
        B::float_swap_dims(x, 1, 2)
    }

    /// The way back.
    fn together<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, n_heads, seq, width] = x.shape().dims();
        B::float_reshape(B::float_swap_dims(x, 1, 2), Shape::new([batch, seq, n_heads * width]))
    }

    /// The result and the weights.
    fn attend<B: Backend + AttentionParts>(
        self,
        query: FloatTensor<B>,
        key: FloatTensor<B>,
        value: FloatTensor<B>,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let key = B::float_swap_dims(self.apart::<B>(key), 2, 3);
        let weights = B::causal_weights(B::float_matmul(self.apart::<B>(query), key), self.scale);
        let y = B::float_matmul(weights.clone(), self.apart::<B>(value));
        (Self::together::<B>(y), weights)
    }
}

/// The operation, for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait AttentionBackend: Backend {
    /// What each position attends to, `[batch, seq, width]` as all three inputs.
    fn fused_causal_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        heads: Heads,
    ) -> FloatTensor<Self>;
}

impl AttentionBackend for Flex {
    fn fused_causal_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        heads: Heads,
    ) -> FloatTensor<Self> {
        heads.attend::<Self>(query, key, value).0
    }
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<T> {
    query: T,
    key: T,
    value: T,
    weights: T,
    heads: Heads,
}

impl<B: Backend + AttentionBackend + AttentionParts, C: CheckpointStrategy> AttentionBackend
    for Autodiff<B, C>
{
    fn fused_causal_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        heads: Heads,
    ) -> FloatTensor<Self> {
        let ((query, query_node), (key, key_node)) = (query.into_parts(), key.into_parts());
        let (value, value_node) = value.into_parts();
        match Attention.prepare::<C>([query_node, key_node, value_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (y, weights) = heads.attend::<B>(query.clone(), key.clone(), value.clone());
                prepared.finish(Saved { query, key, value, weights, heads }, y)
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(B::fused_causal_attention(query, key, value, heads))
            }
        }
    }
}

#[derive(Debug)]
struct Attention;

impl<B: Backend + AttentionParts> Backward<B, 3> for Attention {
    type State = Saved<B::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let Saved { query, key, value, weights, heads } = ops.state;
        let [query_node, key_node, value_node] = ops.parents.map(|node| node.map(|node| node.id));
        let upstream = heads.apart::<B>(upstream);
        if let Some(node) = value_node {
            let turned = B::float_swap_dims(weights.clone(), 2, 3);
            let found = B::float_matmul(turned, upstream.clone());
            gradients.register::<B>(node, Heads::together::<B>(found));
        }
        if query_node.is_none() && key_node.is_none() {
            return;
        }
        let value = B::float_swap_dims(heads.apart::<B>(value), 2, 3);
        let scores = B::causal_weights_backward(weights, B::float_matmul(upstream, value), heads.scale);
        if let Some(node) = query_node {
            let found = B::float_matmul(scores.clone(), heads.apart::<B>(key));
            gradients.register::<B>(node, Heads::together::<B>(found));
        }
        if let Some(node) = key_node {
            let found = B::float_matmul(B::float_swap_dims(scores, 2, 3), heads.apart::<B>(query));
            gradients.register::<B>(node, Heads::together::<B>(found));
        }
    }
}

/// Causal attention with `n_heads` heads on whatever backend the tensors live.
pub(crate) fn causal_attention(
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    n_heads: usize,
) -> Tensor<3> {
    let [_, _, width] = query.dims();
    assert_eq!(query.dims(), key.dims(), "query and key of causal attention have one shape");
    assert_eq!(query.dims(), value.dims(), "query and value of causal attention have one shape");
    assert!(n_heads > 0 && width % n_heads == 0, "{n_heads} heads do not divide a width of {width}");
    let head_width = u32::try_from(width / n_heads).map_or(f64::INFINITY, f64::from);
    let heads = Heads { n_heads, scale: kernels::narrow(head_width.sqrt().recip()) };
    let (query, key, value) = (query.into_dispatch(), key.into_dispatch(), value.into_dispatch());
    Tensor::from_dispatch(<Dispatch as AttentionBackend>::fused_causal_attention(query, key, value, heads))
}
