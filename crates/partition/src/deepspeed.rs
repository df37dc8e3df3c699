//! DeepSpeed's own cuts, for runs that are moved over and have to keep their stages.
//!
//! These functions give what DeepSpeed 0.19 gives, its quirks included: they make empty stages without a
//! word, sum in 64-bit floats and prefer a small spread to a small maximum. New runs are better served by
//! [`partition`](crate::partition()).

use crate::uniform::{check_stages, uniform_or_empty};
use crate::weigh::found;
use crate::{Cuts, LayerInfo, PartitionError, Weight};

/// The most entries that the table of [`balanced`] may have: layers times stages.
pub const MAX_ENTRIES: usize = 1 << 24;

/// Returns the cuts of DeepSpeed's `partition_uniform`, with empty stages at the end when there are
/// fewer layers than stages.
///
/// # Errors
///
/// [`PartitionError::NoStages`] and [`PartitionError::TooManyStages`].
///
/// # Source
///
/// DeepSpeed, `runtime/utils.py`, `partition_uniform`.
///
/// # Examples
///
/// ```
/// use brigade_partition::deepspeed;
///
/// assert_eq!(deepspeed::uniform(3, 4)?.boundaries(), [0, 1, 2, 3, 3]);
/// # Ok::<(), brigade_partition::PartitionError>(())
/// ```
#[doc(alias = "partition_uniform")]
pub fn uniform(n_layers: usize, n_stages: usize) -> Result<Cuts, PartitionError> {
    uniform_or_empty(n_layers, n_stages)
}

/// Returns the cuts of DeepSpeed's `partition_balanced`: for each stage in turn, from the left, those
/// with the smallest difference between the heaviest and the lightest stage so far.
///
/// It takes time `O(n^2 s)` for `n` layers and `s` stages, as there.
///
/// # Errors
///
/// [`PartitionError::NoStages`], [`PartitionError::TooManyStages`], [`PartitionError::TooLarge`] above
/// [`MAX_ENTRIES`], and [`PartitionError::Weight`] for weights that are negative or not finite.
///
/// # Source
///
/// DeepSpeed, `runtime/utils.py`, `partition_balanced`.
///
/// # Examples
///
/// ```
/// use brigade_partition::{balanced, deepspeed};
///
/// let weights = [1, 4, 2, 2];
/// assert_eq!(deepspeed::balanced(&weights, 3)?.boundaries(), [0, 2, 3, 4]);
/// assert_eq!(balanced(&weights, 3)?.boundaries(), [0, 1, 2, 4]);
/// # Ok::<(), brigade_partition::PartitionError>(())
/// ```
#[doc(alias = "partition_balanced")]
pub fn balanced<W: Weight>(weights: &[W], n_stages: usize) -> Result<Cuts, PartitionError> {
    check_stages(n_stages)?;
    let n_layers = weights.len();
    W::units(weights)?;
    if n_layers <= n_stages {
        return uniform_or_empty(n_layers, n_stages);
    }
    let n_entries = (n_layers + 1).saturating_mul(n_stages + 1);
    if n_entries > MAX_ENTRIES {
        return Err(PartitionError::TooLarge { n_entries, max: MAX_ENTRIES });
    }
    let sums = W::numpy_sums(weights);
    let boundaries = least_spread(&sums, n_stages);
    Ok(Cuts::new(boundaries)?)
}

/// The best way to cut the layers before one place into some number of stages.
#[derive(Clone, Copy)]
struct Best {
    heaviest: f64,
    lightest: f64,
    spread: f64,
    last_cut: usize,
}

const NONE: Best =
    Best { heaviest: f64::INFINITY, lightest: f64::INFINITY, spread: f64::INFINITY, last_cut: 0 };

fn least_spread(sums: &[f64], n_stages: usize) -> Vec<usize> {
    let n_places = sums.len();
    let mut rows = vec![vec![NONE; n_places]];
    rows[0][0] = Best { heaviest: 0.0, spread: 0.0, ..NONE };
    for n_before in 1..=n_stages {
        let mut row = vec![NONE; n_places];
        for end in n_before..n_places {
            for start in 0..end {
                let before = rows[n_before - 1][start];
                let weight = sums[end] - sums[start];
                let heaviest = larger(before.heaviest, weight);
                let lightest = smaller(before.lightest, weight);
                // Of equal spreads the last one counts.
                if row[end].spread >= heaviest - lightest {
                    row[end] = Best { heaviest, lightest, spread: heaviest - lightest, last_cut: start };
                }
            }
        }
        rows.push(row);
    }
    let mut boundaries = vec![n_places - 1; n_stages + 1];
    for stage in (0..n_stages).rev() {
        boundaries[stage] = rows[stage + 1][boundaries[stage + 1]].last_cut;
    }
    boundaries
}

/// Python's `max`, which keeps the first when neither is larger.
fn larger(first: f64, second: f64) -> f64 {
    if second > first { second } else { first }
}

/// Python's `min`, which keeps the first when neither is smaller.
fn smaller(first: f64, second: f64) -> f64 {
    if second < first { second } else { first }
}

/// Returns the cuts that DeepSpeed makes for the text of a `partition_method`.
///
/// Upstream lower-cases the whole text and takes what stands between the first two colons for the
/// pattern, so `type:\S+` searches for `\s+` there and here.
///
/// # Errors
///
/// [`PartitionError::NotInDeepSpeed`] for any method but `uniform`, `parameters` and `type:`, and the
/// errors of [`balanced`].
///
/// # Source
///
/// DeepSpeed, `runtime/pipe/module.py`, `PipelineModule._partition_layers`.
///
/// # Examples
///
/// ```
/// use brigade_partition::{LayerInfo, deepspeed};
///
/// let layers = ["Embed", "Block", "Block", "Head"].map(|name| LayerInfo::new(name, 1));
/// assert_eq!(deepspeed::partition("type:block", &layers, 2)?.boundaries(), [0, 2, 4]);
/// # Ok::<(), brigade_partition::PartitionError>(())
/// ```
#[doc(alias = "_partition_layers")]
pub fn partition(method: &str, layers: &[LayerInfo], n_stages: usize) -> Result<Cuts, PartitionError> {
    let lower = method.to_lowercase();
    if lower == "uniform" {
        return uniform(layers.len(), n_stages);
    }
    if lower == "parameters" {
        let counts: Vec<u64> = layers.iter().map(|layer| layer.parameters).collect();
        return balanced(&counts, n_stages);
    }
    match lower.strip_prefix("type:") {
        Some(rest) => {
            let pattern = rest.split(':').next().unwrap_or(rest);
            balanced(&found(pattern, layers)?, n_stages)
        }
        None => Err(PartitionError::NotInDeepSpeed { method: method.to_owned() }),
    }
}
