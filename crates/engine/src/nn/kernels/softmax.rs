//! Softmax of square score matrices in which row `i` sees columns up to `i`.

use super::lanes::{REGISTER, max, replace_and_sum, sum_of_two};
use super::math::exp_of_nonpositive;
use super::over_rows;

/// Turns scores into weights, in place: row `i` of each matrix of `n` rows becomes the softmax of `scale`
/// times its first `i + 1` values, and zeros.
pub(crate) fn causal_softmax(scores: &mut [f32], n: usize, scale: f32) {
    over_rows(scores, n, |first, scores| weigh(first, n, scale, scores));
}

vectorised! {
    fn weigh<'a>(first: usize, n: usize, scale: f32, scores: &'a mut [f32]) -> () {
        for (row, values) in (first..).zip(scores.chunks_exact_mut(n)) {
            let n_seen = row % n + 1;
            // Whole registers: what is beyond the seen values, at minus infinity, becomes zero.
            let (near, far) = values.split_at_mut(n_seen.next_multiple_of(REGISTER).min(n));
            far.fill(0.0);
            near[n_seen..].fill(f32::NEG_INFINITY);
            for x in &mut *near {
                *x *= scale;
            }
            let highest = max(near);
            let total = replace_and_sum(near, |x| exp_of_nonpositive(x - highest));
            let share = 1.0 / total;
            for x in near {
                *x *= share;
            }
        }
    }
}

/// Turns the gradient of the weights into that of the scores, in place.
pub(crate) fn causal_softmax_backward(weights: &[f32], gradient: &mut [f32], n: usize, scale: f32) {
    over_rows(gradient, n, |first, gradient| unweigh((first, n, scale), &weights[first * n..], gradient));
}

vectorised! {
    fn unweigh<'a>(settings: (usize, usize, f32), weights: &'a [f32], gradient: &'a mut [f32]) -> () {
        let (first, n, scale) = settings;
        let rows = weights.chunks_exact(n).zip(gradient.chunks_exact_mut(n));
        for (row, (weights, gradient)) in (first..).zip(rows) {
            // The weights of what is not seen are zero, and so are their gradients.
            let n_near = (row % n + 1).next_multiple_of(REGISTER).min(n);
            let (gradient, far) = gradient.split_at_mut(n_near);
            far.fill(0.0);
            let weights = &weights[..n_near];
            let along = sum_of_two(weights, gradient, |w, g| w * g);
            for (g, &w) in gradient.iter_mut().zip(weights) {
                *g = scale * (w * (*g - along));
            }
        }
    }
}
