//! Cross entropy of rows of logits with the index of the right class.

use super::lanes::{max, replace_and_sum};
use super::math::exp_of_nonpositive;
use super::{over_rows, over_rows_of_two};

/// Turns each row of logits into probabilities, in place, and gives each row's loss: minus the logarithm of
/// the probability of its target, each of which is a class.
pub(crate) fn cross_entropy(logits: &mut [f32], targets: &[usize], n_classes: usize) -> Vec<f32> {
    let mut losses = vec![0.0; targets.len()];
    over_rows_of_two((logits, n_classes), (&mut losses, 1), |first, logits, losses| {
        rows(n_classes, &targets[first..], logits, losses);
    });
    losses
}

vectorised! {
    fn rows<'a>(n_classes: usize, targets: &'a [usize], logits: &'a mut [f32], losses: &'a mut [f32]) -> () {
        for ((row, loss), &target) in logits.chunks_exact_mut(n_classes).zip(losses).zip(targets) {
            let highest = max(row);
            let right = row[target];
            let total = replace_and_sum(row, |x| exp_of_nonpositive(x - highest));
            let share = 1.0 / total;
            for x in row {
                *x *= share;
            }
            *loss = total.ln() - (right - highest);
        }
    }
}

/// Turns probabilities into the gradient of the logits, in place: minus one at the target, times `weight`.
pub(crate) fn cross_entropy_backward(
    probabilities: &mut [f32],
    targets: &[usize],
    n_classes: usize,
    weight: f32,
) {
    over_rows(probabilities, n_classes, |first, probabilities| {
        rows_backward(n_classes, weight, &targets[first..], probabilities);
    });
}

vectorised! {
    fn rows_backward<'a>(
        n_classes: usize,
        weight: f32,
        targets: &'a [usize],
        probabilities: &'a mut [f32],
    ) -> () {
        for (row, &target) in probabilities.chunks_exact_mut(n_classes).zip(targets) {
            row[target] -= 1.0;
            for x in row {
                *x *= weight;
            }
        }
    }
}
