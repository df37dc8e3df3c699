//! `partition`: from a method and a layer list to cuts.

use crate::balanced::balanced_units;
use crate::problem::{Problem, places};
use crate::uniform::check_stages;
use crate::weigh::units;
use crate::weight::Units;
use crate::{Cuts, LayerInfo, Options, PartitionError, PartitionMethod, rankwise, stagewise};

/// Cuts a layer list into stages by a method, and keeps to the options.
///
/// When all stages are alike this is [`balanced`](crate::balanced()), on the groups of layers that pins
/// hold together. When they differ, by speed, memory, pins or what they send, the answer is the best one
/// by the same order on the *costs* of stages (see [`Options`]), found by an exact search over all
/// stages and places to cut; it is meant for lists of up to some thousands of layers. When ranks hold
/// several stages, the search balances ranks: it is exact wherever it ends within a fixed number of
/// steps, and otherwise returns the best cuts that it came across, which
/// [`Report::at_least`](crate::Report::at_least) helps to judge. Every answer is deterministic.
///
/// # Errors
///
/// [`PartitionError`]: the variants say which argument does not fit and how. In particular
/// [`PartitionError::TooFewLayers`] when a stage would be left empty,
/// [`PartitionError::LayerTooLarge`], [`PartitionError::StageTooSmall`] and
/// [`PartitionError::RanksTooSmall`] when the memory limit cannot be kept.
///
/// # Examples
///
/// ```
/// use brigade_partition::{LayerInfo, Options, partition};
///
/// let layers = [("Embedding", 900), ("Block", 300), ("Block", 300), ("Block", 300), ("Head", 900)]
///     .map(|(name, parameters)| LayerInfo::new(name, parameters));
/// let cuts = partition(&"parameters".parse()?, &layers, 3, &Options::default())?;
/// assert_eq!(cuts.boundaries(), [0, 1, 4, 5]);
///
/// // Two stages a rank, in a V: rank 0 holds the first stage and the last.
/// let v = Options { ranks: vec![0, 1, 1, 0], ..Options::default() };
/// let cuts = partition(&"parameters".parse()?, &layers, 4, &v)?;
/// assert_eq!(cuts.boundaries(), [0, 1, 3, 4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn partition(
    method: &PartitionMethod,
    layers: &[LayerInfo],
    n_stages: usize,
    options: &Options,
) -> Result<Cuts, PartitionError> {
    check_stages(n_stages)?;
    let n_layers = layers.len();
    if let PartitionMethod::Cuts(cuts) = method {
        return explicit(cuts, layers, n_stages, options);
    }
    if n_layers < n_stages && !options.allow_empty {
        return Err(PartitionError::TooFewLayers { n_layers, n_stages });
    }
    let units = units(method, layers)?;
    if options.treats_stages_alike() {
        return alike(&units, n_stages, options);
    }
    let problem = Problem::new(&units, layers, n_stages, options)?;
    let mut ranks: Vec<usize> = problem.stages.iter().map(|rule| rule.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.len() == n_stages { stagewise::solve(&problem) } else { rankwise::solve(&problem) }
}

/// Balances groups of layers that pins hold together.
fn alike(units: &Units, n_stages: usize, options: &Options) -> Result<Cuts, PartitionError> {
    let places = places(units.n_layers(), &options.pins)?;
    let n_groups = places.len() - 1;
    if n_groups < n_stages && !options.allow_empty {
        return Err(PartitionError::TooFewLayers { n_layers: n_groups, n_stages });
    }
    let prefix = places.iter().map(|&layer| units.prefix[layer]).collect();
    let cuts = balanced_units(&Units { prefix, exponent: units.exponent }, n_stages)?;
    Ok(Cuts::new(cuts.boundaries().iter().map(|&group| places[group]).collect())?)
}

/// Checks cuts that are given.
fn explicit(
    cuts: &Cuts,
    layers: &[LayerInfo],
    n_stages: usize,
    options: &Options,
) -> Result<Cuts, PartitionError> {
    let n_layers = layers.len();
    if cuts.n_layers() != n_layers {
        return Err(PartitionError::NotCovering { end: cuts.n_layers(), n_layers });
    }
    if cuts.n_stages() != n_stages {
        return Err(PartitionError::StageCount { n_cut: cuts.n_stages(), n_stages });
    }
    if let Some(stage) = cuts.first_empty()
        && !options.allow_empty
    {
        return Err(PartitionError::EmptyStage { stage, layer: cuts.stage(stage).start });
    }
    let equal = units(&PartitionMethod::Uniform, layers)?;
    let problem = Problem::new(&equal, layers, n_stages, options)?;
    let mut rank_bytes = vec![0_u128; problem.n_ranks];
    let mut places = Vec::with_capacity(n_stages + 1);
    for &layer in cuts.boundaries() {
        places
            .push(problem.layers.binary_search(&layer).map_err(|_| PartitionError::CutInsidePin { layer })?);
    }
    for (stage, ends) in places.windows(2).enumerate() {
        if !problem.within(stage, ends[0]) || !problem.within(stage + 1, ends[1]) {
            return Err(PartitionError::PinConflict { stage });
        }
        let rule = &problem.stages[stage];
        let bytes = &mut rank_bytes[rule.rank];
        *bytes = bytes.saturating_add(problem.bytes(stage, ends[0], ends[1]));
        if let Some(limit) = rule.limit.filter(|&limit| *bytes > limit) {
            return Err(PartitionError::OverLimit { stage, rank: rule.rank, bytes: *bytes, limit });
        }
    }
    Ok(cuts.clone())
}
