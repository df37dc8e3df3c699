//! `balanced`: the best contiguous partition of a list of weights.

use crate::chain::Chain;
use crate::uniform::{check_stages, uniform_or_empty};
use crate::weight::Units;
use crate::{Cuts, PartitionError, Weight};

/// Returns the cuts whose heaviest stage is as light as possible.
///
/// Among all cuts with that property it returns those with the heaviest lightest stage, that is the
/// smallest spread; among these, those with the longest first stage, then the longest second stage, and
/// so on. So the answer is unique, it is the same on every rank, no stage is empty, and equal weights
/// give the cuts of [`uniform`](crate::uniform()).
///
/// Weights are integers or finite floats and are summed exactly: a float is a whole multiple of a power
/// of two. Only when the weights span more than some 70 binary digits are the lowest digits rounded.
///
/// It takes time `O(n log s)` for `n` layers and a total weight of `s` units, and memory `O(n)`.
///
/// # Errors
///
/// [`PartitionError::NoStages`], [`PartitionError::TooManyStages`], [`PartitionError::TooFewLayers`] and
/// [`PartitionError::Weight`] for a negative or non-finite weight or sums that do not fit.
///
/// # Source
///
/// Own; the module [`proof`](crate::proof) shows why it is right.
///
/// # Examples
///
/// ```
/// use brigade_partition::balanced;
///
/// // DeepSpeed's partitioner prefers a smaller spread here: its heaviest stage weighs 23, this one 21.
/// assert_eq!(balanced(&[12, 9, 3, 16, 6, 1], 3)?.boundaries(), [0, 2, 4, 6]);
/// assert_eq!(balanced(&[0.5, 0.25, 0.25], 2)?.boundaries(), [0, 1, 3]);
/// # Ok::<(), brigade_partition::PartitionError>(())
/// ```
#[doc(alias = "partition_balanced")]
pub fn balanced<W: Weight>(weights: &[W], n_stages: usize) -> Result<Cuts, PartitionError> {
    check_stages(n_stages)?;
    let n_layers = weights.len();
    if n_layers < n_stages {
        return Err(PartitionError::TooFewLayers { n_layers, n_stages });
    }
    balanced_units(&W::units(weights)?, n_stages)
}

/// Callers guarantee a layer for each stage, or accept empty stages at the end.
pub(crate) fn balanced_units(units: &Units, n_stages: usize) -> Result<Cuts, PartitionError> {
    if units.n_layers() <= n_stages {
        return uniform_or_empty(units.n_layers(), n_stages);
    }
    // Most sums fit 64 bits, where the same search is faster.
    let boundaries = match units.short_prefix() {
        Some(prefix) => Chain::new(&prefix, n_stages).best(),
        None => Chain::new(&units.prefix, n_stages).best(),
    };
    Ok(Cuts::new(boundaries)?)
}
