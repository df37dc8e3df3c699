//! Sums as numpy makes them: DeepSpeed adds weights up with `numpy.cumsum` before it compares floats.

use crate::weight::to_f64;

/// Adds floats up one by one; the first sum is 0.
pub(crate) fn float_sums(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0];
    let mut sum = 0.0;
    for weight in weights {
        sum += weight;
        sums.push(sum);
    }
    sums
}

/// Adds whole numbers up in the type that numpy takes for them, which wraps around, and turns the sums
/// into floats: 64 bits with a sign, without one when a weight needs it, Python's own beyond.
pub(crate) fn whole_sums(weights: impl Iterator<Item = u128> + Clone) -> Vec<f64> {
    let largest = weights.clone().max().unwrap_or(0);
    let mut sum = 0_u128;
    let mut sums = vec![0.0];
    for weight in weights {
        sum = sum.saturating_add(weight);
        let low = u64::try_from(sum & u128::from(u64::MAX)).unwrap_or(0);
        sums.push(if i64::try_from(largest).is_ok() {
            to_f64(low.cast_signed().into())
        } else if u64::try_from(largest).is_ok() {
            to_f64(low.into())
        } else {
            to_f64(i128::try_from(sum).unwrap_or(i128::MAX))
        });
    }
    sums
}
