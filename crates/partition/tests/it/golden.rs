//! What DeepSpeed and torchgpipe compute, case by case.
//!
//! Deviations, by rule. `deepspeed::*` gives upstream's cuts everywhere, except that negative weights,
//! negative counts and zero stages, which upstream raises on or answers with nonsense, are typed errors.
//! `balanced` reaches `optimal_max` everywhere, is never worse than upstream by maximum, and by spread
//! where the maxima are equal; it refuses fewer layers than stages, where upstream leaves stages empty.
//! `partition` takes the whole text after the first colon for the pattern, letter case and all, and knows
//! `profile`.

use brigade_partition::{
    LayerInfo, Options, PartitionError, PartitionMethod, TypePattern, Weight, WeightError, balanced,
    deepspeed, partition, uniform,
};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::support::{count, counts, list, member, raw_list, text};

/// Weights as they are written, in the type that holds them.
enum Written {
    Whole(Vec<u128>),
    Real(Vec<f64>),
    Negative,
}

impl Written {
    fn read(weights: &[Box<RawValue>]) -> Self {
        if weights.iter().any(|weight| weight.get().starts_with('-')) {
            return Self::Negative;
        }
        match weights.iter().map(|weight| weight.get().parse()).collect() {
            Ok(whole) => Self::Whole(whole),
            Err(_) => Self::Real(weights.iter().map(|weight| weight.get().parse().unwrap()).collect()),
        }
    }
}

#[derive(Deserialize)]
struct Balanced {
    weights: Vec<Box<RawValue>>,
    parts: i64,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    optimal_max: Option<Box<RawValue>>,
    #[serde(default)]
    optimal_range: Option<Box<RawValue>>,
}

#[test]
fn balanced_cuts() {
    for raw in raw_list("partition.json", "balanced") {
        let case: Balanced = serde_json::from_str(raw.get()).unwrap();
        let Ok(n_stages) = usize::try_from(case.parts) else { continue };
        match Written::read(&case.weights) {
            Written::Whole(weights) => {
                check_balanced(&case, &weights, &weights, n_stages, |sum, text| text.parse() == Ok(sum));
            }
            Written::Real(weights) => {
                let (exact, unit) = exact(&weights);
                check_balanced(&case, &weights, &exact, n_stages, |sum, text| {
                    let sum = real(sum) * unit;
                    (sum - text.parse::<f64>().unwrap()).abs() <= 1e-15 * sum
                });
            }
            Written::Negative => {
                let weights: Vec<f64> =
                    case.weights.iter().map(|weight| weight.get().parse().unwrap()).collect();
                for refused in [balanced(&weights, n_stages), deepspeed::balanced(&weights, n_stages)] {
                    assert!(matches!(
                        refused,
                        Err(PartitionError::Weight(WeightError::Negative { .. })
                            | PartitionError::NoStages
                            | PartitionError::TooFewLayers { .. })
                    ));
                }
            }
        }
    }
}

/// Returns floats as whole numbers of a unit, and the unit: what is compared must not be rounded.
fn exact(weights: &[f64]) -> (Vec<u128>, f64) {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let mut scale = 1.0_f64;
    while weights.iter().any(|weight| (weight * scale).fract() != 0.0) && largest * scale < 80_f64.exp2() {
        scale *= 2.0;
    }
    (weights.iter().map(|weight| format!("{:.0}", weight * scale).parse().unwrap()).collect(), 1.0 / scale)
}

fn real(whole: u128) -> f64 {
    whole.to_string().parse().unwrap()
}

/// Checks a case whose weights are `exact` in one unit.
fn check_balanced<W: Weight>(
    case: &Balanced,
    weights: &[W],
    exact: &[u128],
    n_stages: usize,
    equal: impl Fn(u128, &str) -> bool,
) {
    let upstream = deepspeed::balanced(weights, n_stages);
    let Some(expected) = case.result.as_array() else {
        assert!(upstream.is_err());
        return;
    };
    let expected: Vec<usize> = expected.iter().map(|boundary| count(boundary).unwrap()).collect();
    let upstream = match upstream {
        Ok(cuts) => cuts,
        // Only what is no pipeline may be refused.
        Err(error) => return assert_eq!((error, n_stages), (PartitionError::NoStages, 0)),
    };
    assert_eq!(upstream.boundaries(), expected);
    let ours = match balanced(weights, n_stages) {
        Ok(cuts) => cuts,
        Err(error) => {
            assert_eq!(error, PartitionError::TooFewLayers { n_layers: weights.len(), n_stages });
            return;
        }
    };
    let extremes = |cuts: &[usize]| {
        let sums = || cuts.windows(2).map(|ends| exact[ends[0]..ends[1]].iter().sum::<u128>());
        let (most, least) = (sums().max().unwrap(), sums().min().unwrap());
        (most, least)
    };
    let ((most, least), (upstream_most, upstream_least)) = (extremes(ours.boundaries()), extremes(&expected));
    assert!(most <= upstream_most);
    assert!(most < upstream_most || least >= upstream_least);
    if let Some(optimal) = &case.optimal_max {
        assert!(equal(most, optimal.get()), "{:?}", ours);
    }
    // The least spread of all cuts may need a larger maximum; with equal maxima it is ours too.
    if let Some(optimal) = &case.optimal_range
        && most == upstream_most
        && equal(upstream_most - upstream_least, optimal.get())
    {
        assert!(equal(most - least, optimal.get()), "{:?}", ours);
    }
}

#[test]
fn uniform_cuts() {
    for row in list("partition.json", "uniform") {
        let (n_layers, n_stages) = (count(&row[0]).unwrap(), count(&row[1]).unwrap());
        let expected = counts(&row[2]);
        assert_eq!(deepspeed::uniform(n_layers, n_stages).unwrap().boundaries(), expected);
        match uniform(n_layers, n_stages) {
            Ok(cuts) => assert_eq!(cuts.boundaries(), expected),
            Err(error) => assert_eq!(error, PartitionError::TooFewLayers { n_layers, n_stages }),
        }
    }
}

#[test]
fn uniform_cuts_of_odd_counts() {
    for case in list("partition.json", "uniform_edge") {
        let (Some(n_layers), Some(n_stages)) = (count(&case["items"]), count(&case["parts"])) else {
            // Negative counts cannot be written down here.
            continue;
        };
        let ours = deepspeed::uniform(n_layers, n_stages);
        if n_stages == 0 {
            assert_eq!(ours, Err(PartitionError::NoStages));
            continue;
        }
        let ours = ours.unwrap();
        match &case["ok"] {
            Value::Array(_) => assert_eq!(ours.boundaries(), counts(&case["ok"])),
            shortened => {
                assert_eq!(ours.boundaries().len(), count(&shortened["len"]).unwrap());
                assert!(ours.boundaries().starts_with(&counts(&shortened["head"])));
                assert!(ours.boundaries().ends_with(&counts(&shortened["tail"])));
            }
        }
    }
}

/// Returns a set of layers with the names that upstream searches.
fn layer_set(name: &Value) -> Vec<LayerInfo> {
    let sets = member("partition.json", "layer_sets");
    let layer = |pair: &Value| match text(&pair[0]) {
        "partial" => LayerInfo::new("", 0),
        "lambda" => LayerInfo::new("<lambda>", 0),
        _ => LayerInfo::new(text(&pair[1]), 0),
    };
    sets[text(name)].as_array().unwrap().iter().map(layer).collect()
}

#[test]
fn layer_types() {
    for case in list("partition.json", "find_layer_type") {
        let found =
            TypePattern::new(text(&case["pattern"])).map(|pattern| pattern.find(&layer_set(&case["layers"])));
        match case.get("ok") {
            Some(expected) => assert_eq!(found.unwrap().unwrap(), counts(expected), "{case}"),
            None => assert!(found.is_err() || found.unwrap().unwrap().is_empty(), "{case}"),
        }
    }
}

#[test]
fn layer_lists() {
    for case in list("partition.json", "partition_layers") {
        let layers = layer_set(&case["layers"]);
        let method = text(&case["method"]);
        let n_stages = count(&case["stages"]).unwrap();
        let upstream = deepspeed::partition(method, &layers, n_stages);
        match case.get("ok") {
            Some(expected) => {
                assert_eq!(upstream.unwrap().boundaries(), counts(&expected["parts"]), "{case}")
            }
            None => assert!(upstream.is_err(), "{case}"),
        }
        check_ours(&case, method, &layers, n_stages);
    }
}

/// Checks our own method of the same text: where upstream reads the text as it stands, ours succeeds and
/// fails with it.
fn check_ours(case: &Value, method: &str, layers: &[LayerInfo], n_stages: usize) {
    let parsed = method.parse::<PartitionMethod>();
    let pattern = method.split_once(':').map_or("", |(_, pattern)| pattern);
    let reads_alike = !pattern.contains(':') && !pattern.contains('\\') && method != "profile";
    let Ok(parsed) = parsed else {
        assert!(!reads_alike || case.get("error").is_some(), "{case}");
        return;
    };
    let ours = partition(&parsed, layers, n_stages, &Options::default());
    if !reads_alike {
        return;
    }
    match (&ours, case.get("ok")) {
        (Ok(_), Some(_)) | (Err(_), None) => {}
        (Err(PartitionError::TooFewLayers { .. }), Some(_)) => assert!(layers.len() < n_stages),
        (_, _) => panic!("{case}: {ours:?}"),
    }
    if matches!(parsed, PartitionMethod::Uniform)
        && let Ok(ours) = ours
    {
        assert_eq!(ours.boundaries(), counts(&case["ok"]["parts"]));
    }
}

#[test]
fn parameter_counts() {
    for case in list("partition.json", "parameters") {
        let trainable = |layer: &Value| layer.get("trainable").map_or(0, |count| count.as_u64().unwrap());
        let parameters: Vec<u64> = case["layers"].as_array().unwrap().iter().map(trainable).collect();
        let counted: Vec<u64> =
            counts(&case["counts"]).into_iter().map(|count| u64::try_from(count).unwrap()).collect();
        assert_eq!(parameters, counted);
        let layers = crate::support::layers(&parameters);
        let n_stages = count(&case["stages"]).unwrap();
        let upstream = deepspeed::partition("parameters", &layers, n_stages).unwrap();
        assert_eq!(upstream.boundaries(), counts(&case["parts"]), "{case}");
        if n_stages <= layers.len() {
            let ours =
                partition(&PartitionMethod::Parameters, &layers, n_stages, &Options::default()).unwrap();
            let heaviest = |cuts| crate::support::heaviest(cuts, &parameters);
            assert!(heaviest(&ours) <= heaviest(&upstream));
        }
    }
}

#[test]
fn stage_owners() {
    for case in list("partition.json", "stage_owner") {
        let cuts = brigade_partition::Cuts::new(counts(&case["parts"])).unwrap();
        let first = case["from"].as_i64().unwrap();
        for (layer, expected) in (first..).zip(case["owner"].as_array().unwrap()) {
            let owner = usize::try_from(layer).ok().and_then(|layer| cuts.stage_of(layer));
            assert_eq!(owner, expected.get("ok").and_then(count), "{case} {layer}");
        }
    }
}

#[derive(Deserialize)]
struct Blocks {
    costs: Vec<Box<RawValue>>,
    partitions: i64,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    max: Option<f64>,
    #[serde(default)]
    optimal_max: Option<f64>,
}

#[test]
fn gpipe_blocks() {
    for raw in raw_list("gpipe_balance.json", "cases") {
        let case: Blocks = serde_json::from_str(raw.get()).unwrap();
        let costs: Vec<f64> = case.costs.iter().map(|cost| cost.get().parse().unwrap()).collect();
        let n_stages = usize::try_from(case.partitions).unwrap_or(0);
        let ours = balanced(&costs, n_stages);
        let Ok(cuts) = ours else {
            assert!(case.error.is_some(), "{}", raw.get());
            continue;
        };
        assert!(case.error.is_none(), "{}", raw.get());
        let sums = cuts.stages().map(|stage| costs[stage].iter().sum::<f64>());
        let most = sums.fold(0.0, f64::max);
        let near = |value: f64| (most - value).abs() <= 1e-12 * value;
        assert!(case.optimal_max.is_some_and(near), "{}", raw.get());
        assert!(case.max.is_some_and(|max| most <= max || near(max)));
    }
}
