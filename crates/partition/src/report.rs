//! `Report`: how evenly cuts share the work.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::rankwise::{lower_bound, rank_costs};
use crate::weigh::units;
use crate::weight::{Units, to_f64};
use crate::{Cuts, LayerInfo, Options, PartitionError, PartitionMethod, Weight};

/// Tells how evenly cuts share the work, stage by stage and rank by rank.
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
    /// The cost of each rank: the weights of its stages over its speed, and what it sends. Speeds count
    /// as multiples of the fastest.
    ///
    /// # Units
    ///
    /// The unit of the weights.
    pub rank_costs: Vec<f64>,
    /// The dearest rank over the mean rank: 1 when all are equal, and 1 when nothing costs anything.
    pub imbalance: f64,
    /// A cost that the dearest rank of no cuts whatever can be below: the mean, or the dearest layer
    /// alone. Cuts whose dearest rank costs no more are proved to be the best.
    pub at_least: f64,
}

/// Tells what one stage holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// The rank of the stage.
    pub rank: usize,
    /// The layers of the stage.
    pub layers: Range<usize>,
    /// The sum of their weights.
    pub weight: f64,
    /// Their part of the total weight, from 0 to 1.
    pub share: f64,
    /// The memory that they take, when there is a limit to keep to.
    pub bytes: Option<u128>,
}

impl Report {
    /// Weighs the stages of some cuts, each with a rank of its own.
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
        let layers = vec![LayerInfo::default(); n_layers];
        let options = Options { allow_empty: true, ..Options::default() };
        Self::of_units(&units, cuts, &layers, &options)
    }

    /// Weighs the stages and ranks of some cuts as [`partition`](crate::partition()) does for the same
    /// method and options.
    ///
    /// # Errors
    ///
    /// Those of [`partition`](crate::partition()) for the method and the options, and
    /// [`PartitionError::NotCovering`] when the cuts are for another number of layers.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::{LayerInfo, Options, Report, partition};
    ///
    /// let layers = [3, 1, 1, 1].map(|parameters| LayerInfo::new("Linear", parameters));
    /// let options = Options { speeds: vec![2.0, 1.0], ..Options::default() };
    /// let method = "parameters".parse()?;
    /// let cuts = partition(&method, &layers, 2, &options)?;
    /// let report = Report::of(&method, &layers, &cuts, &options)?;
    /// assert_eq!(report.rank_costs, [4.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(
        method: &PartitionMethod,
        layers: &[LayerInfo],
        cuts: &Cuts,
        options: &Options,
    ) -> Result<Self, PartitionError> {
        if cuts.n_layers() != layers.len() {
            return Err(PartitionError::NotCovering { end: cuts.n_layers(), n_layers: layers.len() });
        }
        Self::of_units(&units(method, layers)?, cuts, layers, options)
    }

    fn of_units(
        units: &Units,
        cuts: &Cuts,
        layers: &[LayerInfo],
        options: &Options,
    ) -> Result<Self, PartitionError> {
        // Pins bind partitions, not reports; nor does it matter here whether a stage is empty.
        let options = Options { pins: Vec::new(), allow_empty: true, ..options.clone() };
        let problem = Problem::new(units, layers, cuts.n_stages(), &options)?;
        let unit = f64::from(problem.exponent).exp2();
        let total = problem.work.last().copied().unwrap_or(0);
        let stage = |(stage, layers): (usize, Range<usize>)| {
            let work = problem.work[layers.end] - problem.work[layers.start];
            let bytes = problem.bytes(stage, layers.start, layers.end);
            StageReport {
                rank: problem.stages[stage].rank,
                weight: real(work) * unit,
                share: if total == 0 { 0.0 } else { real(work) / real(total) },
                bytes: problem.stages[stage].limit.map(|_| bytes),
                layers,
            }
        };
        let stages = cuts.stages().enumerate().map(stage).collect();
        // With speeds, whole costs count in fractions of the unit.
        let fraction = unit / real(problem.one);
        let costs = rank_costs(&problem, cuts.boundaries());
        let (sum, largest) = (costs.iter().map(|&cost| real(cost)).sum::<f64>(), costs.iter().max());
        let n_ranks = to_f64(i128::try_from(costs.len()).unwrap_or(i128::MAX));
        let imbalance =
            largest.map_or(1.0, |&largest| if sum == 0.0 { 1.0 } else { real(largest) * n_ranks / sum });
        let rank_costs = costs.into_iter().map(|cost| real(cost) * fraction).collect();
        Ok(Self { stages, rank_costs, imbalance, at_least: real(lower_bound(&problem)) * fraction })
    }
}

fn real(value: u128) -> f64 {
    to_f64(i128::try_from(value).unwrap_or(i128::MAX))
}

/// Writes a table with one line a stage.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_bytes = self.stages.iter().any(|stage| stage.bytes.is_some());
        let bytes_title = if with_bytes { "            bytes" } else { "" };
        writeln!(f, "stage  rank         layers           weight    share{bytes_title}")?;
        for (number, stage) in self.stages.iter().enumerate() {
            let layers = format!("{}..{}", stage.layers.start, stage.layers.end);
            let (rank, weight, share) = (stage.rank, stage.weight, stage.share * 100.0);
            write!(f, "{number:>5} {rank:>5} {layers:>14} {weight:>16} {share:>7.2}%")?;
            if let Some(bytes) = stage.bytes {
                write!(f, " {bytes:>16}")?;
            }
            writeln!(f)?;
        }
        let dearest = self.rank_costs.iter().copied().fold(0.0, f64::max);
        write!(f, "dearest rank {dearest}, at least {}, imbalance {:.4}", self.at_least, self.imbalance)
    }
}
