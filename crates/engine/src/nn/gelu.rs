//! The exact GELU.

use burn::tensor::Tensor;

use crate::nn::fused;

/// GELU with the normal distribution's own probabilities, as [`burn::tensor::activation::gelu`].
///
/// Where a gradient is wanted it computes its slope in the same pass, which shares the exponential, and keeps
/// that in place of the input.
///
/// # Source
/// Hendrycks and Gimpel, 2016; the kernel is our own.
///
/// # Examples
/// ```
/// use brigade_engine::nn::gelu;
/// use burn::tensor::{Device, Tensor};
///
/// let y = gelu(Tensor::<1>::from_floats([-1.0, 0.0, 1.0], &Device::flex()));
/// let found = y.into_data().to_vec::<f32>().unwrap();
/// assert!((found[2] - 0.841_344_7).abs() < 1e-6 && found[1] == 0.0);
/// ```
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    fused::gelu(x)
}
