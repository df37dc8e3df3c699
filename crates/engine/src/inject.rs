//! Backward from gradients that came from elsewhere: a custom autodiff operation.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients as AutodiffGradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, DispatchTensor, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Gradients, Tensor};

use crate::error::TensorError;
use crate::tensor::AnyTensor;

/// The operation behind [`backward_with`], for each backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait InjectBackend: Backend {
    /// Forward: `chain` unchanged. Backward: hands `gradient` to `output` and passes the gradient of
    /// the result on to `chain`.
    fn inject(
        chain: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl InjectBackend for Flex {
    fn inject(
        chain: FloatTensor<Self>,
        _output: FloatTensor<Self>,
        _gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        chain
    }
}

#[derive(Debug)]
struct Inject;

impl<B: Backend> Backward<B, 2> for Inject {
    type State = B::FloatTensorPrimitive;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut AutodiffGradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [chain, output] = ops.parents;
        let upstream = gradients.consume::<B>(&ops.node);
        if let Some(chain) = chain {
            gradients.register::<B>(chain.id, upstream);
        }
        if let Some(output) = output {
            gradients.register::<B>(output.id, ops.state);
        }
    }
}

impl<B: Backend + InjectBackend, C: CheckpointStrategy> InjectBackend for Autodiff<B, C> {
    fn inject(
        chain: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        assert_eq!(output.shape(), gradient.shape(), "backward_with checks shapes first");
        let (chain, chain_node) = chain.into_parts();
        let (_, output_node) = output.into_parts();
        match Inject.prepare::<C>([chain_node, output_node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(gradient.into_primitive(), chain),
            OpsKind::UnTracked(prepared) => prepared.finish(chain),
        }
    }
}

/// Runs one backward pass from any number of `(output, gradient)` pairs.
///
/// Outputs that no gradient can flow through (integers, booleans, constants) are skipped; `None`
/// when that leaves nothing. Equal to `sum over pairs of (output * gradient).sum().backward()`
/// without computing the products.
///
/// # Errors
/// [`TensorError::GradientShape`] when a gradient differs from its output in shape or dtype.
///
/// # Source
/// Own, over Burn's backend-extension interface.
///
/// # Examples
/// ```
/// use brigade_engine::{AnyTensor, backward_with};
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<1>::from_floats([1.0, 2.0], &device).require_grad();
/// let y = x.clone() * 3.0;
/// let gradient = Tensor::<1>::from_floats([1.0, 10.0], &Device::flex());
/// let mut gradients =
///     backward_with(vec![(AnyTensor::new(y)?, AnyTensor::new(gradient)?)])?.expect("y is tracked");
/// let dx = x.grad_remove(&mut gradients).expect("x took part");
/// assert_eq!(dx.into_data().to_vec::<f32>().unwrap(), [3.0, 30.0]);
/// # Ok::<(), brigade_engine::TensorError>(())
/// ```
pub fn backward_with(pairs: Vec<(AnyTensor, AnyTensor)>) -> Result<Option<Gradients>, TensorError> {
    let mut chain: Option<DispatchTensor> = None;
    for (output, gradient) in pairs {
        if output.shape() != gradient.shape() || output.dtype() != gradient.dtype() {
            return Err(TensorError::GradientShape {
                output: format!("{:?} {:?}", output.dtype(), output.shape().as_slice()),
                gradient: format!("{:?} {:?}", gradient.dtype(), gradient.shape().as_slice()),
            });
        }
        if !output.is_tracked() {
            continue;
        }
        let link = match chain.take() {
            Some(link) => link,
            None => Tensor::<1>::zeros([1], &output.device()).into_dispatch(),
        };
        let output: DispatchTensor = output.into_bridge().into();
        let gradient: DispatchTensor = gradient.detached().into_bridge().into();
        chain = Some(<Dispatch as InjectBackend>::inject(link, output, gradient));
    }
    Ok(chain.map(|link| Tensor::<1>::from_dispatch(link).backward()))
}
