//! Normalisation of the last dimension by mean and variance or by the root of the mean square.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};

use super::flex;
use crate::nn::kernels::{self, Centre};

/// How an operation normalises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    epsilon: f64,
    centre: Centre,
}

/// The normalised tensor, and mean and reciprocal scale of each row where the backward pass can use them.
type Forward<B> = (FloatTensor<B>, Option<FloatTensor<B>>);

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub(crate) struct Saved<T> {
    x: T,
    gamma: T,
    statistics: Option<T>,
    settings: Settings,
}

/// Gradients of the input, of `gamma` and of `beta`.
type Backwards<B> = [FloatTensor<B>; 3];

/// The parts of the operation, for each backend that has tensors.
pub(crate) trait NormParts: Backend {
    /// `x` normalised, times `gamma`, plus `beta`.
    fn norm_forward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        settings: Settings,
    ) -> Forward<Self> {
        (plain::<Self>(x, gamma, beta, settings), None)
    }

    /// All gradients.
    fn norm_backward(saved: Saved<FloatTensor<Self>>, upstream: FloatTensor<Self>) -> Backwards<Self> {
        plain_backward::<Self>(saved, upstream)
    }
}

/// A row of parameters that lies along the last dimension of `like`.
fn along<B: Backend>(row: FloatTensor<B>, like: &Shape) -> FloatTensor<B> {
    let mut dims = vec![1; like.num_dims()];
    if let Some(last) = dims.last_mut() {
        *last = flex::width(like);
    }
    B::float_reshape(row, Shape::from(dims))
}

/// The rows with zero mean where the settings say so, and the reciprocal of their scale.
fn centred<B: Backend>(x: FloatTensor<B>, settings: Settings) -> (FloatTensor<B>, FloatTensor<B>) {
    let last = x.shape().num_dims() - 1;
    let x = match settings.centre {
        Centre::Mean => B::float_sub(x.clone(), B::float_mean_dim(x, last)),
        Centre::Zero => x,
    };
    let variance = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), last);
    let scale = B::float_sqrt(B::float_add_scalar(variance, settings.epsilon.into()));
    (x, B::float_recip(scale))
}

fn plain<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    settings: Settings,
) -> FloatTensor<B> {
    let shape = x.shape();
    if settings.centre == Centre::Mean {
        return B::layer_norm(x, gamma, beta, settings.epsilon);
    }
    let (x, scale) = centred::<B>(x, settings);
    let y = B::float_mul(B::float_mul(x, scale), along::<B>(gamma, &shape));
    match beta {
        Some(beta) => B::float_add(y, along::<B>(beta, &shape)),
        None => y,
    }
}

fn plain_backward<B: Backend>(saved: Saved<FloatTensor<B>>, upstream: FloatTensor<B>) -> Backwards<B> {
    let shape = saved.x.shape();
    let (last, width) = (shape.num_dims() - 1, flex::width(&shape));
    let (x, scale) = centred::<B>(saved.x, saved.settings);
    let x = B::float_mul(x, scale.clone());
    let over_rows = |values| {
        let n_rows = shape.num_elements() / width.max(1);
        let rows = B::float_reshape(values, Shape::new([n_rows, width]));
        B::float_reshape(B::float_sum_dim(rows, 0), Shape::new([width]))
    };
    let for_gamma = over_rows(B::float_mul(upstream.clone(), x.clone()));
    let for_beta = over_rows(upstream.clone());
    let g = B::float_mul(upstream, along::<B>(saved.gamma, &shape));
    let share = B::float_mean_dim(B::float_mul(g.clone(), x.clone()), last);
    let mut flat = B::float_sub(g.clone(), B::float_mul(x, share));
    if saved.settings.centre == Centre::Mean {
        flat = B::float_sub(flat, B::float_mean_dim(g, last));
    }
    [B::float_mul(flat, scale), for_gamma, for_beta]
}

impl NormParts for Flex {
    fn norm_forward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        settings: Settings,
    ) -> Forward<Self> {
        let shifts = beta.as_ref().map(flex::contiguous);
        let (Some(rows), Some(scales), None | Some(Some(_))) =
            (flex::contiguous(&x), flex::contiguous(&gamma), &shifts)
        else {
            return (plain::<Self>(x, gamma, beta, settings), None);
        };
        let shifts = shifts.flatten();
        let mut y = vec![0.0; x.shape().num_elements()];
        let statistics = kernels::norm(
            flex::values(&rows),
            flex::values(&scales),
            shifts.as_ref().map(flex::values),
            (settings.epsilon, settings.centre),
            &mut y,
        );
        let n = statistics.len();
        (flex::tensor(y, x.shape()), Some(flex::tensor(statistics, [n])))
    }

    fn norm_backward(saved: Saved<FloatTensor<Self>>, upstream: FloatTensor<Self>) -> Backwards<Self> {
        let Saved { x, gamma, statistics: Some(statistics), settings } = saved else {
            return plain_backward::<Self>(saved, upstream);
        };
        match (flex::contiguous(&x), flex::contiguous(&gamma), flex::take(upstream)) {
            (Some(x), Some(gamma), Ok(mut gradient)) => {
                let found = kernels::norm_backward(
                    flex::values(&x),
                    flex::values(&gamma),
                    flex::values(&statistics),
                    settings.centre,
                    gradient.storage_mut(),
                );
                let width = [found.gamma.len()];
                [gradient, flex::tensor(found.gamma, width), flex::tensor(found.beta, width)]
            }
            (_, _, Ok(upstream) | Err(upstream)) => {
                plain_backward::<Self>(Saved { x, gamma, statistics: None, settings }, upstream)
            }
        }
    }
}

/// The operation, for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait NormBackend: Backend {
    /// `x` normalised, times `gamma`.
    fn fused_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, settings: Settings) -> FloatTensor<Self>;
    /// `x` normalised, times `gamma`, plus `beta`.
    fn fused_norm_beta(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self>;
}

impl NormBackend for Flex {
    fn fused_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, settings: Settings) -> FloatTensor<Self> {
        Self::norm_forward(x, gamma, None, settings).0
    }

    fn fused_norm_beta(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self> {
        Self::norm_forward(x, gamma, Some(beta), settings).0
    }
}

impl<B: Backend + NormBackend + NormParts, C: CheckpointStrategy> NormBackend for Autodiff<B, C> {
    fn fused_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, settings: Settings) -> FloatTensor<Self> {
        let ((x, x_node), (gamma, gamma_node)) = (x.into_parts(), gamma.into_parts());
        match Norm.prepare::<C>([x_node, gamma_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (y, statistics) = B::norm_forward(x.clone(), gamma.clone(), None, settings);
                prepared.finish(Saved { x, gamma, statistics, settings }, y)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::norm_forward(x, gamma, None, settings).0),
        }
    }

    fn fused_norm_beta(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self> {
        let ((x, x_node), (gamma, gamma_node)) = (x.into_parts(), gamma.into_parts());
        let (beta, beta_node) = beta.into_parts();
        match Norm.prepare::<C>([x_node, gamma_node, beta_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (y, statistics) = B::norm_forward(x.clone(), gamma.clone(), Some(beta), settings);
                prepared.finish(Saved { x, gamma, statistics, settings }, y)
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(B::norm_forward(x, gamma, Some(beta), settings).0)
            }
        }
    }
}

#[derive(Debug)]
struct Norm;

impl<B: Backend + NormParts> Backward<B, 2> for Norm {
    type State = Saved<B::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let [x, gamma] = ops.parents.map(|node| node.map(|node| node.id));
        backward::<B>(gradients, upstream, ops.state, [x, gamma, None]);
    }
}

impl<B: Backend + NormParts> Backward<B, 3> for Norm {
    type State = Saved<B::FloatTensorPrimitive>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let upstream = gradients.consume::<B>(&ops.node);
        let nodes = ops.parents.map(|node| node.map(|node| node.id));
        backward::<B>(gradients, upstream, ops.state, nodes);
    }
}

fn backward<B: Backend + NormParts>(
    gradients: &mut Gradients,
    upstream: B::FloatTensorPrimitive,
    saved: Saved<B::FloatTensorPrimitive>,
    nodes: [Option<NodeId>; 3],
) {
    for (node, gradient) in nodes.into_iter().zip(B::norm_backward(saved, upstream)) {
        if let Some(node) = node {
            gradients.register::<B>(node, gradient);
        }
    }
}

/// What a normalisation scales and shifts by.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub(crate) gamma: Tensor<1>,
    pub(crate) beta: Option<Tensor<1>>,
    pub(crate) epsilon: f64,
    pub(crate) centre: Centre,
}

/// Normalises on whatever backend the tensors live.
pub(crate) fn norm<const D: usize>(x: Tensor<D>, parameters: Parameters) -> Tensor<D> {
    let Parameters { gamma, beta, epsilon, centre } = parameters;
    let settings = Settings { epsilon, centre };
    let (x, gamma) = (x.into_dispatch(), gamma.into_dispatch());
    Tensor::from_dispatch(match beta {
        Some(beta) => <Dispatch as NormBackend>::fused_norm_beta(x, gamma, beta.into_dispatch(), settings),
        None => <Dispatch as NormBackend>::fused_norm(x, gamma, settings),
    })
}
