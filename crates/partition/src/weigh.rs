//! How each method weighs layers.

use crate::pattern::TypePattern;
use crate::problem::profile;
use crate::weight::Units;
use crate::weight::sealed::Sealed;
use crate::{LayerInfo, Number, PartitionError, PartitionMethod, WeightList};

/// Weighs the layers by a method; explicit cuts weigh all layers alike.
pub(crate) fn units(method: &PartitionMethod, layers: &[LayerInfo]) -> Result<Units, PartitionError> {
    let units = match method {
        PartitionMethod::Uniform | PartitionMethod::Cuts(_) => u8::units(&vec![1; layers.len()]),
        PartitionMethod::Parameters => u64::units(&parameters(layers)),
        PartitionMethod::Type(pattern) => u8::units(&found(pattern, layers)?),
        PartitionMethod::Profile => u64::units(&times(layers)?),
        PartitionMethod::Weights(list) => {
            let n_weights = match list {
                WeightList::Whole(list) => list.len(),
                WeightList::Real(list) => list.len(),
            };
            if n_weights != layers.len() {
                return Err(PartitionError::WeightCount { n_weights, n_layers: layers.len() });
            }
            listed(list)
        }
        PartitionMethod::TypeWeights(entries) => listed(&by_type(entries, layers)?),
    };
    Ok(units?)
}

fn listed(list: &WeightList) -> Result<Units, crate::WeightError> {
    match list {
        WeightList::Whole(list) => u64::units(list),
        WeightList::Real(list) => f64::units(list),
    }
}

fn parameters(layers: &[LayerInfo]) -> Vec<u64> {
    layers.iter().map(|layer| layer.parameters).collect()
}

/// Returns 1 for the layers that a pattern finds and 0 for the others.
pub(crate) fn found(pattern: &str, layers: &[LayerInfo]) -> Result<Vec<u8>, PartitionError> {
    let compiled = TypePattern::new(pattern)?;
    let found = |layer: &LayerInfo| compiled.matches(&layer.type_name).map(u8::from);
    let weights = layers.iter().map(found).collect::<Result<Vec<u8>, _>>()?;
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
    layers.iter().enumerate().map(|(layer, info)| Ok(profile(layer, info)?.time_ns)).collect()
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
