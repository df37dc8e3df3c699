//! Dropout whose mask depends on where it is drawn: the same at every split and when it is drawn again.

use burn::module::{Flag, Module, Param};
use burn::tensor::{DType, Tensor, TensorData};

use crate::random::{PassContext, Stream};

/// A probability of dropout outside `0 <= p < 1`.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("dropout of {probability}: give a probability of at least 0 and below 1")]
pub struct ProbabilityError {
    /// The given value.
    pub probability: f64,
}

/// Sets elements to zero at random while training and scales the others by `1 / (1 - p)`.
///
/// The mask is a function of the seed, the step, the micro-batch, the layer and the call within the
/// layer: it is the same at every number of stages and replicas, under every schedule, when a forward
/// runs again for the backward pass, and whatever was evaluated in between. `burn::nn::Dropout` draws
/// from one state of the whole process instead, which ranks take turns at in any order.
///
/// Nothing is dropped without autodiff, in an evaluation, or where `training` has been cleared by
/// `freeze`. Outside of a pipeline see [`Stream::next`] for what a mask depends on, and
/// [`PassContext::during`] to choose it.
///
/// # Source
/// Srivastava et al., "Dropout" (2014); the mask from a counter is our own.
///
/// # Examples
/// ```
/// use brigade_engine::nn::Dropout;
/// use burn::tensor::{Device, Tensor};
///
/// let dropout = Dropout::new(0.25)?;
/// let x = Tensor::<2>::ones([30, 40], &Device::flex().autodiff());
/// let kept = dropout.forward(x.clone()).into_data().iter::<f32>().filter(|&y| y > 0.0).count();
/// assert!((800..1000).contains(&kept), "about 900 of 1200");
/// assert_eq!(dropout.forward(x.clone().inner()).into_data(), x.into_data());
/// assert!(Dropout::new(1.0).is_err());
/// # Ok::<(), brigade_engine::nn::ProbabilityError>(())
/// ```
#[derive(Module, Debug)]
pub struct Dropout {
    #[module(skip)]
    probability: f64,
    /// Whether the layer takes part in training; [`freeze`](burn::module::Module::freeze) clears it.
    pub training: Param<Flag>,
}

impl Dropout {
    /// A layer that drops each element with this probability.
    ///
    /// # Errors
    /// [`ProbabilityError`] for one that is negative, 1 or more, or not a number.
    pub fn new(probability: f64) -> Result<Self, ProbabilityError> {
        if (0.0..1.0).contains(&probability) {
            Ok(Self { probability, training: Param::from_bool(true) })
        } else {
            Err(ProbabilityError { probability })
        }
    }

    /// The probability that an element is dropped.
    #[must_use]
    pub fn probability(&self) -> f64 {
        self.probability
    }

    /// Applies the layer with the next stream of the pass that runs on this thread.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let evaluating = PassContext::current().is_some_and(|pass| !pass.is_training);
        if evaluating || !self.training.is_enabled() || !x.device().is_autodiff() {
            return x;
        }
        // Also taken where nothing is dropped, so that other layers' masks do not depend on it.
        let stream = Stream::next();
        self.forward_with(x, stream)
    }

    /// Drops elements by this stream, whatever runs and on whatever device.
    #[must_use]
    pub fn forward_with<const D: usize>(&self, x: Tensor<D>, stream: Stream) -> Tensor<D> {
        let shape = x.shape();
        if self.probability == 0.0 || shape.num_elements() == 0 {
            return x;
        }
        let (n, dtype) = (shape.num_elements(), x.dtype());
        let (threshold, scale) = rule(self.probability);
        let mask = match dtype {
            DType::F64 => TensorData::new(mask(stream, n, threshold, scale), shape),
            _ => TensorData::new(mask(stream, n, threshold, single(scale)), shape),
        };
        let mask = if mask.dtype() == dtype { mask } else { mask.convert_dtype(dtype) };
        let mask = Tensor::<D>::from_data(mask, (&x.device(), dtype));
        x * mask
    }
}

/// One factor for each element: 0 below the threshold, else the scale.
fn mask<E: Copy + Default>(stream: Stream, n: usize, threshold: u32, scale: E) -> Vec<E> {
    let mut mask = Vec::with_capacity(n);
    for chunk in 0.. {
        let n_left = n - mask.len();
        if n_left == 0 {
            break;
        }
        let factors = stream.chunk(chunk).map(|word| if word < threshold { E::default() } else { scale });
        mask.extend_from_slice(&factors[..n_left.min(Stream::CHUNK)]);
    }
    mask
}

/// The words below which an element is dropped, and the factor of the others.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a probability from 0 to 1 times 2^32 fits or saturates"
)]
fn rule(probability: f64) -> (u32, f64) {
    ((probability * 4_294_967_296.0).round() as u32, 1.0 / (1.0 - probability))
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "the nearest single is wanted")]
fn single(scale: f64) -> f32 {
    scale as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_holds_at_both_ends() {
        assert_eq!(rule(0.5), (1 << 31, 2.0));
        assert_eq!(rule(1e-12).0, 0);
        assert!(rule(1e-12).1 > 1.0);
        let (threshold, scale) = rule(1.0 - f64::EPSILON);
        assert_eq!(threshold, u32::MAX);
        assert!(scale.is_finite() && single(scale).is_finite());
    }
}
