//! A linear layer whose weight gradient can wait.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::split::{self, Slot};

/// A linear layer whose weight gradient can wait.
///
/// Under a schedule that splits the backward pass it gives its input's gradient at once and computes
/// that of its weight and bias when the schedule says so, which is what zero-bubble schedules live from.
/// Under any other schedule, and outside a pipeline, it does both at once, with the same bits. It uses
/// Burn's fused kernels, which also makes it faster than Burn's own layer.
///
/// Parameters have the names and shapes of [`burn::nn::Linear`]; make one from it.
///
/// # Shapes
/// `[.., d_input]` to `[.., d_output]`, of rank 2 or more.
///
/// # Source
/// The split is that of zero-bubble pipeline parallelism (Qi et al., 2023); the operation is our own.
///
/// # Examples
/// ```
/// use brigade_engine::nn::Linear;
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let linear = Linear::new(&LinearConfig::new(3, 2), &device);
/// let y = linear.forward(Tensor::<2>::ones([4, 3], &device));
/// assert_eq!(y.dims(), [4, 2]);
/// assert!(linear.weight.val().grad(&y.sum().backward()).is_some());
/// ```
#[derive(Module, Debug)]
pub struct Linear {
    /// Weight, `[d_input, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// Bias, `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Initialises a layer as Burn does.
    #[must_use]
    pub fn new(config: &burn::nn::LinearConfig, device: &Device) -> Self {
        config.init(device).into()
    }

    /// Applies the layer to the last dimension of `x`.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let slot = Slot::here(self.weight.id, self.bias.as_ref().map(|bias| bias.id));
        split::linear(x, self.weight.val(), self.bias.as_ref().map(Param::val), slot)
    }
}

impl From<burn::nn::Linear> for Linear {
    fn from(linear: burn::nn::Linear) -> Self {
        Self { weight: linear.weight, bias: linear.bias }
    }
}
