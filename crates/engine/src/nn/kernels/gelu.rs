//! The exact GELU, and its slope computed with it.

use super::math::normal;
use super::{over_rows, over_rows_of_two};

/// Turns `x` into GELU's slope at `x` and fills `y` with GELU of `x`: the exponential that both need is
/// computed once.
pub(crate) fn gelu(x: &mut [f32], y: &mut [f32]) {
    over_rows_of_two((x, 1), (y, 1), |_, x, y| value_and_slope(x, y));
}

vectorised! {
    fn value_and_slope<'a>(x: &'a mut [f32], y: &'a mut [f32]) -> () {
        for (x, y) in x.iter_mut().zip(y) {
            let (probability, density) = normal(*x);
            *y = *x * probability;
            *x = probability + *x * density;
        }
    }
}

/// GELU of `x`, in place.
pub(crate) fn gelu_alone(x: &mut [f32]) {
    over_rows(x, 1, |_, x| value(x));
}

vectorised! {
    fn value<'a>(x: &'a mut [f32]) -> () {
        for x in x {
            *x *= normal(*x).0;
        }
    }
}

/// Multiplies the gradient by the slope.
pub(crate) fn gelu_backward(slope: &[f32], gradient: &mut [f32]) {
    over_rows(gradient, 1, |start, gradient| multiply(&slope[start..], gradient));
}

vectorised! {
    fn multiply<'a>(slope: &'a [f32], gradient: &'a mut [f32]) -> () {
        for (g, &slope) in gradient.iter_mut().zip(slope) {
            *g *= slope;
        }
    }
}
