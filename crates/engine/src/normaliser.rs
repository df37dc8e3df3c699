//! What each micro-batch counts in the loss and the gradient of a step.

use serde::{Deserialize, Serialize};

/// What the loss and the gradient of a step are a mean over.
///
/// One rule for both, applied once: the reported loss is the sum of factor times loss over all
/// micro-batches of all replicas, and the gradient is the gradient of exactly that. A factor is a
/// micro-batch's share of the whole.
///
/// A batch that the engine splits into uneven pieces counts each piece by its samples under
/// [`Normaliser::MicroBatches`] too, so that it equals the whole batch.
///
/// # Examples
/// ```
/// use brigade_engine::{Normaliser, TrainConfig};
///
/// let mut config = TrainConfig::new(1e-3);
/// assert_eq!(config.normaliser, Normaliser::MicroBatches);
/// config.normaliser = Normaliser::Weights;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Normaliser {
    /// Every micro-batch counts the same, whatever it holds. Weights of the loss function are not used.
    #[default]
    MicroBatches,
    /// Every sample counts the same: the first dimension of the tensors of the input, or of the target
    /// where the input has none.
    Samples,
    /// Each micro-batch counts the weight that the loss function returns beside the loss, for instance
    /// the number of tokens that are no padding. A micro-batch of weight 0 does not count and has no
    /// backward pass; a step without any weight is an error.
    ///
    /// The sum of the weights is known only after the last forward pass, and most schedules start
    /// backward passes before it. So gradients are summed with the bare weights and divided once by the
    /// sum of them all, before they are clipped and used.
    Weights,
}

/// What the micro-batches of one replica count while a batch runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Factors {
    /// The loss function says it.
    #[default]
    Returned,
    /// Known before anything runs, by micro-batch.
    Known(Vec<f64>),
}

/// What every micro-batch of every replica counts, replica by replica, in the unit of the normaliser.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counts {
    /// By micro-batch; empty when the loss function says it.
    pub(crate) each: Vec<f64>,
    /// Their sum; 0 when the loss function says it.
    pub(crate) total: f64,
}

impl Normaliser {
    /// What each micro-batch counts, from the samples of all of them.
    pub(crate) fn counts(self, samples: &[u64], is_split: bool) -> Counts {
        let by_samples = match self {
            Self::Weights => return Counts { each: Vec::new(), total: 0.0 },
            Self::Samples => true,
            Self::MicroBatches => is_split,
        };
        if !by_samples {
            let each = vec![1.0; samples.len()];
            return Counts { total: sum(&each), each };
        }
        let sizes: Vec<f64> = samples.iter().map(|&n| to_f64(n)).collect();
        if self == Self::Samples {
            return Counts { total: sum(&sizes), each: sizes };
        }
        // In units of a micro-batch of mean size, so that it adds up with batches that were not split.
        let n: f64 = sizes.iter().map(|_| 1.0).sum();
        let all = sum(&sizes);
        Counts { each: sizes.iter().map(|size| size * n / all).collect(), total: n }
    }
}

/// In micro-batch order.
pub(crate) fn sum(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value)
}

fn to_f64(n: u64) -> f64 {
    let (high, low) = (u32::try_from(n >> 32).unwrap_or(0), u32::try_from(n & 0xFFFF_FFFF).unwrap_or(0));
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal pieces have the factor 1/m to the last bit, however they came to be and are counted.
    #[test]
    fn equal_micro_batches_have_the_factor_of_the_plain_mean() {
        for m in 1..200_u32 {
            for size in [1_u64, 2, 3, 7, 32, 1000] {
                let samples = vec![size; usize::try_from(m).expect("small")];
                for (normaliser, is_split) in [
                    (Normaliser::MicroBatches, false),
                    (Normaliser::MicroBatches, true),
                    (Normaliser::Samples, false),
                    (Normaliser::Samples, true),
                ] {
                    let counts = normaliser.counts(&samples, is_split);
                    for count in &counts.each {
                        assert_eq!(count / counts.total, 1.0 / f64::from(m), "{m} of {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn uneven_pieces_count_by_their_samples() {
        let split = Normaliser::MicroBatches.counts(&[3, 3, 2], true);
        assert_eq!(split, Counts { each: vec![1.125, 1.125, 0.75], total: 3.0 });
        let samples = Normaliser::Samples.counts(&[3, 3, 2], false);
        assert_eq!(samples, Counts { each: vec![3.0, 3.0, 2.0], total: 8.0 });
        let plain = Normaliser::MicroBatches.counts(&[3, 3, 2], false);
        assert_eq!(plain, Counts { each: vec![1.0; 3], total: 3.0 });
    }
}
