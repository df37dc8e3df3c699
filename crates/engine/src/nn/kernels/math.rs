//! The exponential and the normal distribution, without branches, so that loops over them vectorise.

/// `e^x` for `x <= 0`, within two units in the last place; zero where the result would be subnormal, and NaN
/// for NaN.
///
/// # Source
/// The usual reduction to `2^n * e^r`; the polynomial is a minimax fit of our own (relative error 2.0e-9).
#[inline(always)]
pub(super) fn exp_of_nonpositive(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// Below it the result is subnormal.
    const LOWEST: f32 = -87.3;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let p = 1.383_579e-3;
    let p = p * r + 8.375_645e-3;
    let p = p * r + 4.166_829e-2;
    let p = p * r + 0.166_664_1;
    let p = p * r + 0.499_999_9;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < LOWEST { 0.0 } else { p * power }
}

/// The normal distribution's cumulative probability and density at `x`, within 2e-7 of their values beside
/// what rounding `x^2` takes.
///
/// # Source
/// The form of Abramowitz and Stegun 7.1.26; the polynomial is a minimax fit of our own of degree 8 for
/// `erfcx(a / sqrt(2)) / (2 t)` in `t = 1 / (1 + 0.35 a)` (relative error 3.2e-8).
#[inline(always)]
pub(super) fn normal(x: f32) -> (f32, f32) {
    const FRAC_1_SQRT_2_PI: f32 = 0.398_942_3;
    let e = exp_of_nonpositive(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.35 * x.abs());
    let p = -2.914_587_8e-2;
    let p = p * t + 0.143_971_47;
    let p = p * t - 0.255_713_83;
    let p = p * t + 0.159_173_74;
    let p = p * t - 2.310_958_7e-2;
    let p = p * t + 0.105_507_92;
    let p = p * t + 0.119_832_89;
    let p = p * t + 0.139_861_77;
    let p = p * t + 0.139_621_4;
    let tail = p * t * e;
    (if x < 0.0 { tail } else { 1.0 - tail }, e * FRAC_1_SQRT_2_PI)
}

/// The nearest f32.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
pub(crate) fn narrow(x: f64) -> f32 {
    x as f32
}

/// One over `n`.
pub(super) fn reciprocal(n: usize) -> f32 {
    u32::try_from(n).map_or(0.0, |n| narrow(1.0 / f64::from(n)))
}

#[cfg(test)]
mod tests {
    use super::{exp_of_nonpositive, normal};

    fn close(found: f32, expected: f64, tolerance: f64, at: f64) {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance * expected.abs(), "{found} and {expected} at {at}");
    }

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        for step in 0..=87_000_u32 {
            let x = -f64::from(step) / 1000.0;
            let rounded: f32 = x.to_string().parse().expect("a number");
            close(exp_of_nonpositive(rounded), f64::from(rounded).exp(), 2.5e-7, x);
        }
        assert_eq!(exp_of_nonpositive(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp_of_nonpositive(-1e9).to_bits(), 0);
        assert_eq!(exp_of_nonpositive(f32::NEG_INFINITY).to_bits(), 0);
        assert!(exp_of_nonpositive(f32::NAN).is_nan());
    }

    /// The lower tail of the normal distribution for `x <= -0`, by Lentz's continued fraction or a series.
    fn lower_tail(x: f64) -> f64 {
        let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let a = x.abs();
        if a < 3.0 {
            let (mut term, mut sum, mut n) = (a, a, 1.0);
            while term > 1e-18 {
                n += 2.0;
                term *= a * a / n;
                sum += term;
            }
            return 0.5 - density * sum;
        }
        let fraction = (1..200).rev().fold(a, |below, k| a + f64::from(k) / below);
        density / fraction
    }

    #[test]
    fn the_normal_distribution_is_as_exact_as_f32_allows() {
        for step in 0..=1200_u32 {
            let x = -f64::from(step) / 100.0;
            let rounded: f32 = x.to_string().parse().expect("a number");
            let exact = lower_tail(f64::from(rounded));
            // Rounding x^2 / 2 to f32 moves the exponential by up to that much times 2^-24, three times.
            let tolerance = 4e-7 + 0.5 * x * x * 1.8e-7;
            close(normal(rounded).0, exact, tolerance, x);
            close(normal(-rounded).0, 1.0 - exact, 3e-7, -x);
        }
        assert!(normal(f32::NAN).0.is_nan());
        assert_eq!(normal(f32::NEG_INFINITY).0.to_bits(), 0);
    }
}
