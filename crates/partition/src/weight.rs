//! Weights: integers and floats, turned into whole numbers of one unit, so that sums are exact.

use crate::WeightError;

/// The room for a sum of weights, in bits. It leaves 32 bits of a `u128` for the ratio of device speeds.
pub(crate) const SUM_BITS: u32 = 95;

/// A number that can be the weight of a layer: an unsigned or signed integer, or a finite float.
///
/// The trait is sealed: its work is to turn a list of weights into whole multiples of one unit, and the
/// algorithms rely on how.
pub trait Weight: Copy + sealed::Sealed {}

pub(crate) mod sealed {
    use crate::WeightError;

    /// The implementation of [`Weight`](super::Weight).
    pub trait Sealed: Sized {
        /// Turns weights into whole multiples of one unit.
        fn units(weights: &[Self]) -> Result<super::Units, WeightError>;

        /// Adds weights up as numpy does, and returns the sums from the left as floats.
        fn numpy_sums(weights: &[Self]) -> Vec<f64>;
    }
}

/// Weights as whole multiples of a unit, summed from the left: `prefix[i]` is the sum of the first `i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    pub(crate) prefix: Vec<u128>,
    /// One unit is 2 to this power.
    pub(crate) exponent: i32,
}

impl Units {
    /// Adds up whole weights.
    pub(crate) fn from_whole(
        weights: impl ExactSizeIterator<Item = Result<u128, WeightError>>,
        exponent: i32,
    ) -> Result<Self, WeightError> {
        let mut prefix = Vec::with_capacity(weights.len() + 1);
        let mut sum = 0_u128;
        prefix.push(sum);
        for (layer, weight) in weights.enumerate() {
            sum = sum
                .checked_add(weight?)
                .filter(|sum| sum.leading_zeros() >= u128::BITS - SUM_BITS)
                .ok_or(WeightError::Overflow { layer, bits: SUM_BITS })?;
            prefix.push(sum);
        }
        Ok(Self { prefix, exponent })
    }

    pub(crate) fn n_layers(&self) -> usize {
        self.prefix.len() - 1
    }

    /// Returns the sums in 64 bits, when they leave room there for twice the total and more.
    pub(crate) fn short_prefix(&self) -> Option<Vec<u64>> {
        let total = self.prefix.last().copied().unwrap_or(0);
        if total >= 1 << 62 {
            return None;
        }
        self.prefix.iter().map(|&sum| u64::try_from(sum).ok()).collect()
    }
}

macro_rules! unsigned_weight {
    ($($int:ty),*) => {$(
        impl Weight for $int {}

        impl sealed::Sealed for $int {
            fn units(weights: &[Self]) -> Result<Units, WeightError> {
                // `usize` has no lossless conversion, though it fits everywhere: the error is unreachable.
                let whole = |(layer, &weight)| {
                    u128::try_from(weight).map_err(|_| WeightError::Overflow { layer, bits: SUM_BITS })
                };
                Units::from_whole(weights.iter().enumerate().map(whole), 0)
            }

            fn numpy_sums(weights: &[Self]) -> Vec<f64> {
                crate::numpy::whole_sums(weights.iter().map(|&weight| u128::try_from(weight).unwrap_or(0)))
            }
        }
    )*};
}

macro_rules! signed_weight {
    ($($int:ty),*) => {$(
        impl Weight for $int {}

        impl sealed::Sealed for $int {
            fn units(weights: &[Self]) -> Result<Units, WeightError> {
                let whole = |(layer, &weight)| {
                    u128::try_from(weight)
                        .map_err(|_| WeightError::Negative { layer, value: to_f64(i128::from(weight)) })
                };
                Units::from_whole(weights.iter().enumerate().map(whole), 0)
            }

            fn numpy_sums(weights: &[Self]) -> Vec<f64> {
                crate::numpy::whole_sums(weights.iter().map(|&weight| u128::try_from(weight).unwrap_or(0)))
            }
        }
    )*};
}

unsigned_weight!(u8, u16, u32, u64, u128, usize);
signed_weight!(i32, i64);

impl Weight for f32 {}

impl sealed::Sealed for f32 {
    fn units(weights: &[Self]) -> Result<Units, WeightError> {
        let wide: Vec<f64> = weights.iter().map(|&weight| weight.into()).collect();
        f64::units(&wide)
    }

    fn numpy_sums(weights: &[Self]) -> Vec<f64> {
        crate::numpy::float_sums(weights.iter().map(|&weight| weight.into()))
    }
}

impl Weight for f64 {}

impl sealed::Sealed for f64 {
    fn units(weights: &[Self]) -> Result<Units, WeightError> {
        for (layer, &value) in weights.iter().enumerate() {
            if !value.is_finite() {
                return Err(WeightError::NotFinite { layer, value });
            }
            if value < 0.0 {
                return Err(WeightError::Negative { layer, value });
            }
        }
        let exponent = unit_exponent(weights);
        let whole = |&weight: &f64| Ok(Float::of(weight).in_units(exponent));
        Units::from_whole(weights.iter().map(whole), exponent)
    }

    fn numpy_sums(weights: &[Self]) -> Vec<f64> {
        crate::numpy::float_sums(weights.iter().copied())
    }
}

/// A non-negative float as `mantissa * 2^exponent` with an odd mantissa (or zero).
struct Float {
    mantissa: u64,
    exponent: i32,
}

impl Float {
    fn of(value: f64) -> Self {
        let bits = value.to_bits() & (u64::MAX >> 1);
        let (biased, fraction) = (bits >> 52, bits & ((1 << 52) - 1));
        let (mantissa, biased) = if biased == 0 { (fraction, 1) } else { (fraction | (1 << 52), biased) };
        // The biased exponent has 11 bits.
        let exponent = i32::try_from(biased).unwrap_or(0) - 1075;
        let zeros = if mantissa == 0 { 0 } else { mantissa.trailing_zeros() };
        Self { mantissa: mantissa >> zeros, exponent: exponent + i32::try_from(zeros).unwrap_or(0) }
    }

    /// Returns the exponent of the bit above the highest one.
    fn top(&self) -> i32 {
        self.exponent + i32::try_from(u64::BITS - self.mantissa.leading_zeros()).unwrap_or(0)
    }

    /// Rounds to the nearest multiple of the unit, upwards at the middle; exact when the unit divides it.
    fn in_units(&self, unit: i32) -> u128 {
        let shift = self.exponent.saturating_sub(unit);
        if let Ok(left) = u32::try_from(shift) {
            return u128::from(self.mantissa).checked_shl(left).unwrap_or(0);
        }
        let right = shift.unsigned_abs();
        let half = 1_u64.checked_shl(right - 1).unwrap_or(0);
        u128::from((self.mantissa + half).checked_shr(right).unwrap_or(0))
    }
}

/// Returns the exponent of the unit: the lowest bit of any weight, or as near to it as lets the sum of
/// all weights fit.
fn unit_exponent(weights: &[f64]) -> i32 {
    let floats = || weights.iter().filter(|&&weight| weight > 0.0).map(|&weight| Float::of(weight));
    let (Some(lowest), Some(top)) =
        (floats().map(|float| float.exponent).min(), floats().map(|float| float.top()).max())
    else {
        return 0;
    };
    // The sum of n numbers below 2^top is below 2^(top + ceil(log2 n)); rounding up adds less than one
    // more doubling.
    let spare = i32::try_from(usize::BITS - weights.len().leading_zeros()).unwrap_or(0) + 1;
    let room = i32::try_from(SUM_BITS).unwrap_or(0);
    lowest.max(top + spare - room)
}

/// Brings sums of weights and a list of finite, non-negative costs to one unit, whose exponent comes
/// last: the sums exactly, the costs as near as there is room.
pub(crate) fn rounded_units(
    units: &Units,
    costs: &[f64],
) -> Result<(Vec<u128>, Vec<u128>, i32), WeightError> {
    let total = units.prefix.last().copied().unwrap_or(0);
    let bits = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let room = bits(SUM_BITS) - bits(u128::BITS - total.leading_zeros());
    let exponent = unit_exponent(costs).min(units.exponent).max(units.exponent.saturating_sub(room));
    let shift = u32::try_from(units.exponent.saturating_sub(exponent)).unwrap_or(0);
    let whole = |(layer, &cost): (usize, &f64)| {
        let float = Float::of(cost);
        // Twice the cost of one cut for each stage has to fit beside the weights.
        if cost.is_finite() && float.top().saturating_sub(exponent) < bits(SUM_BITS) {
            Ok(float.in_units(exponent))
        } else {
            Err(WeightError::Overflow { layer, bits: SUM_BITS })
        }
    };
    let costs = costs.iter().enumerate().map(whole).collect::<Result<_, _>>()?;
    Ok((units.prefix.iter().map(|sum| sum << shift).collect(), costs, exponent))
}

/// Returns the whole number nearest to a float, 0 for negative ones.
pub(crate) fn whole(value: f64) -> u128 {
    Float::of(value.max(0.0)).in_units(0)
}

/// Rounds to the nearest float.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "rounding is what is asked for")]
pub(crate) fn to_f64(value: i128) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::sealed::Sealed;
    use crate::WeightError;

    #[test]
    fn floats_become_exact_whole_numbers() {
        let units = f64::units(&[0.5, 0.0, 3.25, 1024.0]).unwrap();
        assert_eq!((units.exponent, units.prefix), (-2, vec![0, 2, 2, 15, 4111]));
    }

    #[test]
    fn subnormals_and_the_largest_floats_have_units() {
        let smallest = f64::from_bits(1);
        assert_eq!(f64::units(&[smallest, smallest]).unwrap().prefix, [0, 1, 2]);
        let units = f64::units(&[f64::MAX; 3]).unwrap();
        assert_eq!(units.prefix[3], 3 * units.prefix[1]);
        // 2^-1074 is too small to count beside f64::MAX; nothing overflows.
        assert_eq!(f64::units(&[f64::MAX, smallest]).unwrap().prefix.len(), 3);
    }

    #[test]
    fn bad_floats_are_named() {
        assert!(matches!(f64::units(&[1.0, f64::NAN]), Err(WeightError::NotFinite { layer: 1, .. })));
        assert!(matches!(f64::units(&[-0.5]), Err(WeightError::Negative { layer: 0, .. })));
        assert_eq!(f64::units(&[-0.0, 1.0]).unwrap().prefix, [0, 0, 1]);
    }

    #[test]
    fn integers_overflow_with_the_layer_named() {
        assert_eq!(u128::units(&[1 << 94, 1 << 94]), Err(WeightError::Overflow { layer: 1, bits: 95 }));
        assert!(matches!(i64::units(&[3, -7]), Err(WeightError::Negative { layer: 1, .. })));
    }
}
