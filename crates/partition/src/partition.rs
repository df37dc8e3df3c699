//! `partition`: from a method and a layer list to cuts.

use crate::balanced::balanced_units;
use crate::pattern::TypePattern;
use crate::uniform::{check_stages, uniform_or_empty};
use crate::weight::Units;
use crate::weight::sealed::Sealed;
use crate::{Cuts, LayerInfo, Number, PartitionError, PartitionMethod, WeightList};

/// Holds what a partition has to keep to, beyond the weights. The default asks for nothing.
///
/// # Examples
///
/// ```
/// use brigade_partition::Options;
///
/// let options = Options { allow_empty: true, ..Options::default() };
/// assert_ne!(options, Options::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Accepts stages without a layer where there are fewer layers than stages. Stages are never left
    /// empty without need.
    pub allow_empty: bool,
}

/// Cuts a layer list into stages by a method.
///
/// # Errors
///
/// [`PartitionError`]: the variants say which argument does not fit and how.
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
    if n_layers < n_stages && !options.allow_empty {
        return Err(PartitionError::TooFewLayers { n_layers, n_stages });
    }
    match method {
        PartitionMethod::Uniform => uniform_or_empty(n_layers, n_stages),
        PartitionMethod::Cuts(cuts) => explicit(cuts, n_layers, n_stages, options),
        _ => balanced_units(&units(method, layers)?, n_stages),
    }
}

fn explicit(
    cuts: &Cuts,
    n_layers: usize,
    n_stages: usize,
    options: &Options,
) -> Result<Cuts, PartitionError> {
    if cuts.n_layers() != n_layers {
        return Err(PartitionError::NotCovering { end: cuts.n_layers(), n_layers });
    }
    if cuts.n_stages() != n_stages {
        return Err(PartitionError::StageCount { n_cut: cuts.n_stages(), n_stages });
    }
    match cuts.first_empty() {
        Some(stage) if !options.allow_empty => {
            Err(PartitionError::EmptyStage { stage, layer: cuts.stage(stage).start })
        }
        _ => Ok(cuts.clone()),
    }
}

/// Weighs the layers by a method.
pub(crate) fn units(method: &PartitionMethod, layers: &[LayerInfo]) -> Result<Units, PartitionError> {
    let units = match method {
        PartitionMethod::Uniform | PartitionMethod::Cuts(_) => u8::units(&vec![1; layers.len()]),
        PartitionMethod::Parameters => {
            u64::units(&layers.iter().map(|layer| layer.parameters).collect::<Vec<_>>())
        }
        PartitionMethod::Type(pattern) => u8::units(&found(pattern, layers)?),
        PartitionMethod::Weights(list) => listed(list, layers.len())?,
        PartitionMethod::TypeWeights(entries) => match by_type(entries, layers)? {
            WeightList::Whole(list) => u64::units(&list),
            WeightList::Real(list) => f64::units(&list),
        },
        PartitionMethod::Profile => u64::units(&times(layers)?),
    };
    Ok(units?)
}

fn listed(list: &WeightList, n_layers: usize) -> Result<Result<Units, crate::WeightError>, PartitionError> {
    let n_weights = match list {
        WeightList::Whole(list) => list.len(),
        WeightList::Real(list) => list.len(),
    };
    if n_weights != n_layers {
        return Err(PartitionError::WeightCount { n_weights, n_layers });
    }
    Ok(match list {
        WeightList::Whole(list) => u64::units(list),
        WeightList::Real(list) => f64::units(list),
    })
}

fn found(pattern: &str, layers: &[LayerInfo]) -> Result<Vec<u8>, PartitionError> {
    let compiled = TypePattern::new(pattern)?;
    let weights: Vec<u8> = layers.iter().map(|layer| compiled.matches(&layer.type_name).into()).collect();
    if weights.iter().all(|&weight| weight == 0) { Err(no_match(pattern, layers)) } else { Ok(weights) }
}

fn by_type(entries: &[(String, Number)], layers: &[LayerInfo]) -> Result<WeightList, PartitionError> {
    let entries: Vec<_> = entries.iter().map(|(name, number)| (name, name.to_lowercase(), *number)).collect();
    let type_names: Vec<String> = layers.iter().map(|layer| layer.type_name.to_lowercase()).collect();
    for (name, lower, _) in &entries {
        if !type_names.iter().any(|type_name| type_name.contains(lower)) {
            return Err(no_match(name, layers));
        }
    }
    let weight = |type_name: &String| {
        let first = entries.iter().find(|(_, lower, _)| type_name.contains(lower));
        first.map_or(Number::Whole(0), |&(_, _, number)| number)
    };
    Ok(WeightList::from(type_names.iter().map(weight).collect::<Vec<_>>()))
}

fn times(layers: &[LayerInfo]) -> Result<Vec<u64>, PartitionError> {
    let time = |(layer, info): (usize, &LayerInfo)| match &info.profile {
        Some(profile) => Ok(profile.time_ns),
        None => Err(PartitionError::NotMeasured { layer, type_name: info.type_name.clone() }),
    };
    layers.iter().enumerate().map(time).collect()
}

fn no_match(pattern: &str, layers: &[LayerInfo]) -> PartitionError {
    const SHOWN: usize = 8;
    let mut names: Vec<&str> = Vec::new();
    for layer in layers {
        if !layer.type_name.is_empty() && !names.contains(&layer.type_name.as_str()) {
            if names.len() == SHOWN {
                names.push("..");
                break;
            }
            names.push(&layer.type_name);
        }
    }
    PartitionError::NoMatch { pattern: pattern.to_owned(), n_layers: layers.len(), names: names.join(", ") }
}
