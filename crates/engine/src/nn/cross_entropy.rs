//! Cross entropy, with its gradient from the same softmax.

use burn::module::Module;
use burn::tensor::{Int, Tensor};

use crate::nn::fused;

/// The mean over rows of minus the logarithm of the softmax's value at the target.
///
/// Where a gradient is wanted it keeps the softmax, which is the gradient but for one subtraction a row.
///
/// # Shapes
/// Logits `[rows, classes]` and targets `[rows]` to `[1]`.
///
/// # Panics
/// Panics, as Burn's loss does, where the numbers of rows differ or a target is no class.
///
/// # Examples
/// ```
/// use brigade_engine::nn::cross_entropy;
/// use burn::tensor::{Device, Int, Tensor};
///
/// let device = Device::flex();
/// let loss = cross_entropy(Tensor::zeros([3, 4], &device), Tensor::<1, Int>::from_ints([0, 1, 3], &device));
/// assert!((loss.into_scalar::<f32>() - 4_f32.ln()).abs() < 1e-6);
/// ```
#[must_use]
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    fused::cross_entropy(logits, targets)
}

/// Burn's cross entropy, by [`cross_entropy`] where it is of logits and without weights, padding or smoothing.
///
/// # Examples
/// ```
/// use brigade_engine::nn::CrossEntropyLoss;
/// use burn::nn::loss::CrossEntropyLossConfig;
/// use burn::tensor::{Device, Int, Tensor};
///
/// let device = Device::flex();
/// let loss = CrossEntropyLoss::from(CrossEntropyLossConfig::new().init(&device));
/// let found = loss.forward(Tensor::zeros([1, 2], &device), Tensor::<1, Int>::from_ints([1], &device));
/// assert!((found.into_scalar::<f32>() - 2_f32.ln()).abs() < 1e-6);
/// ```
#[derive(Module, Debug)]
pub struct CrossEntropyLoss {
    loss: burn::nn::loss::CrossEntropyLoss,
}

impl CrossEntropyLoss {
    /// The loss of `[rows, classes]` with `[rows]`, of shape `[1]`.
    #[must_use]
    pub fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let loss = &self.loss;
        let plain =
            loss.logits && loss.weights.is_none() && loss.pad_tokens.is_none() && loss.smoothing.is_none();
        if plain { cross_entropy(logits, targets) } else { loss.forward(logits, targets) }
    }
}

impl From<burn::nn::loss::CrossEntropyLoss> for CrossEntropyLoss {
    fn from(loss: burn::nn::loss::CrossEntropyLoss) -> Self {
        Self { loss }
    }
}
