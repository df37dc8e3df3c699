//! `Report`: how evenly cuts share the work.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::weight::to_f64;
use crate::{Cuts, PartitionError, Weight};

/// Tells how evenly cuts share weights out, stage by stage.
///
/// # Examples
///
/// ```
/// use brigade_partition::{Report, balanced};
///
/// let weights = [4_u64, 2, 2, 4, 6];
/// let report = Report::new(&balanced(&weights, 3)?, &weights)?;
/// assert_eq!(report.stages[2].weight, 6.0);
/// assert_eq!(report.imbalance, 1.0);
/// # Ok::<(), brigade_partition::PartitionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The stages in order.
    pub stages: Vec<StageReport>,
    /// The heaviest stage over the mean stage: 1 when all are equal, and 1 when nothing weighs anything.
    pub imbalance: f64,
}

/// Tells what one stage holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// The layers of the stage.
    pub layers: Range<usize>,
    /// The sum of their weights.
    pub weight: f64,
    /// Their part of the total weight, from 0 to 1.
    pub share: f64,
}

impl Report {
    /// Weighs the stages of some cuts.
    ///
    /// # Errors
    ///
    /// [`PartitionError::WeightCount`] when there is not one weight a layer, and
    /// [`PartitionError::Weight`] for weights that cannot be added up.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::{Report, uniform};
    ///
    /// let report = Report::new(&uniform(4, 2)?, &[1.0, 1.0, 2.0, 4.0])?;
    /// assert_eq!(report.stages[1].share, 0.75);
    /// assert_eq!(report.imbalance, 1.5);
    /// # Ok::<(), brigade_partition::PartitionError>(())
    /// ```
    pub fn new<W: Weight>(cuts: &Cuts, weights: &[W]) -> Result<Self, PartitionError> {
        let (n_weights, n_layers) = (weights.len(), cuts.n_layers());
        if n_weights != n_layers {
            return Err(PartitionError::WeightCount { n_weights, n_layers });
        }
        let units = W::units(weights)?;
        let unit = f64::from(units.exponent).exp2();
        let total = units.prefix.last().copied().unwrap_or(0);
        let whole = |sum: u128| to_f64(i128::try_from(sum).unwrap_or(i128::MAX));
        let stage = |layers: Range<usize>| {
            let sum = whole(units.prefix[layers.end] - units.prefix[layers.start]);
            StageReport {
                layers,
                weight: sum * unit,
                share: if total == 0 { 0.0 } else { sum / whole(total) },
            }
        };
        let stages: Vec<_> = cuts.stages().map(stage).collect();
        let largest = stages.iter().map(|stage| stage.share).fold(0.0, f64::max);
        let n_stages = to_f64(i128::try_from(stages.len()).unwrap_or(i128::MAX));
        let imbalance = if total == 0 { 1.0 } else { largest * n_stages };
        Ok(Self { stages, imbalance })
    }
}

/// Writes a table with one line a stage.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stage      layers        weight   share")?;
        for (stage, report) in self.stages.iter().enumerate() {
            let layers = format!("{}..{}", report.layers.start, report.layers.end);
            writeln!(f, "{stage:>5} {layers:>11} {:>13} {:>6.2}%", report.weight, report.share * 100.0)?;
        }
        write!(f, "imbalance (max / mean): {:.4}", self.imbalance)
    }
}
