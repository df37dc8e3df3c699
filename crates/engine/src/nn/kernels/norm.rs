//! Normalisation of rows: by mean and variance, or by the root of the mean square.

use super::lanes::{sum, sum_of_two};
use super::math::{narrow, reciprocal};
use super::over_rows_of_two;

/// What rows are normalised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Centre {
    /// Mean and variance: layer normalisation.
    Mean,
    /// The root of the mean square.
    Zero,
}

/// Mean and reciprocal scale of each row, one after the other.
pub(crate) type Statistics = Vec<f32>;

/// Gradients of the input (in place of the output's), the scale and the shift.
#[derive(Debug)]
pub(crate) struct NormGradients {
    pub(crate) gamma: Vec<f32>,
    pub(crate) beta: Vec<f32>,
}

/// Fills `y` with the normalised rows of `x` times `gamma` plus `beta`.
pub(crate) fn norm(
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    (epsilon, centre): (f64, Centre),
    y: &mut [f32],
) -> Statistics {
    let width = gamma.len();
    let (epsilon, per_value) = (narrow(epsilon), reciprocal(width));
    let mut statistics = vec![0.0; x.len() / width * 2];
    over_rows_of_two((y, width), (&mut statistics, 2), |first, y, statistics| {
        norm_rows(&x[first * width..], gamma, beta, (epsilon, per_value, centre), y, statistics);
    });
    statistics
}

vectorised! {
    fn norm_rows<'a>(
        x: &'a [f32],
        gamma: &'a [f32],
        beta: Option<&'a [f32]>,
        settings: (f32, f32, Centre),
        y: &'a mut [f32],
        statistics: &'a mut [f32],
    ) -> () {
        let (epsilon, per_value, centre) = settings;
        let rows = x.chunks_exact(gamma.len()).zip(y.chunks_exact_mut(gamma.len()));
        for ((x, y), statistics) in rows.zip(statistics.chunks_exact_mut(2)) {
            let mean = if centre == Centre::Mean { sum(x, |x| x) * per_value } else { 0.0 };
            let variance = sum(x, |x| (x - mean) * (x - mean)) * per_value;
            let scale = 1.0 / (variance + epsilon).sqrt();
            statistics.copy_from_slice(&[mean, scale]);
            match beta {
                Some(beta) => {
                    for (((y, &x), &gamma), &beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                        *y = (x - mean) * scale * gamma + beta;
                    }
                }
                None => {
                    for ((y, &x), &gamma) in y.iter_mut().zip(x).zip(gamma) {
                        *y = (x - mean) * scale * gamma;
                    }
                }
            }
        }
    }
}

/// Turns the output's gradient into the input's and gives those of `gamma` and `beta`.
pub(crate) fn norm_backward(
    x: &[f32],
    gamma: &[f32],
    statistics: &[f32],
    centre: Centre,
    gradient: &mut [f32],
) -> NormGradients {
    let width = gamma.len();
    let mut found = NormGradients { gamma: vec![0.0; width], beta: vec![0.0; width] };
    rows_backward(x, gamma, statistics, (reciprocal(width), centre), gradient, &mut found);
    found
}

vectorised! {
    fn rows_backward<'a>(
        x: &'a [f32],
        gamma: &'a [f32],
        statistics: &'a [f32],
        settings: (f32, Centre),
        gradient: &'a mut [f32],
        found: &'a mut NormGradients,
    ) -> () {
        let (per_value, centre) = settings;
        let rows = x.chunks_exact(gamma.len()).zip(gradient.chunks_exact_mut(gamma.len()));
        for ((x, g), statistics) in rows.zip(statistics.chunks_exact(2)) {
            let (mean, scale) = (statistics[0], statistics[1]);
            row_backward(x, gamma, (mean, scale, centre), per_value, g, found);
        }
    }
}

#[inline(always)]
fn row_backward(
    x: &[f32],
    gamma: &[f32],
    (mean, scale, centre): (f32, f32, Centre),
    per_value: f32,
    g: &mut [f32],
    found: &mut NormGradients,
) {
    let sums = found.gamma.iter_mut().zip(&mut found.beta);
    for ((((for_gamma, for_beta), g), &x), &gamma) in sums.zip(&mut *g).zip(x).zip(gamma) {
        *for_gamma += *g * ((x - mean) * scale);
        *for_beta += *g;
        *g *= gamma;
    }
    let mean_g = if centre == Centre::Mean { sum(g, |g| g) * per_value } else { 0.0 };
    let along = sum_of_two(g, x, |g, x| g * ((x - mean) * scale)) * per_value;
    for (g, &x) in g.iter_mut().zip(x) {
        *g = scale * (*g - mean_g - ((x - mean) * scale) * along);
    }
}
