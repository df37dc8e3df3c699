//! Text and serde forms: what is written is read again.

use brigade_partition::{
    Cuts, LayerInfo, LayerProfile, MemoryLimit, Number, Options, PartitionMethod, Pin, Report, WeightList,
    balanced,
};
use proptest::prelude::*;

fn methods() -> impl Strategy<Value = PartitionMethod> {
    let number = prop_oneof![
        any::<u64>().prop_map(Number::Whole),
        any::<f64>().prop_filter("nan is not equal to itself", |real| !real.is_nan()).prop_map(Number::Real)
    ];
    // An empty list has no kind, and reads as one of whole numbers.
    let real = any::<f64>().prop_filter("nan is not equal to itself", |real| !real.is_nan());
    prop_oneof![
        Just(PartitionMethod::Uniform),
        Just(PartitionMethod::Parameters),
        Just(PartitionMethod::Profile),
        "[a-z:=,|^.]{0,12}".prop_map(PartitionMethod::Type),
        prop::collection::vec(any::<u64>(), 0..6)
            .prop_map(|list| PartitionMethod::Weights(WeightList::Whole(list))),
        prop::collection::vec(real, 1..6).prop_map(|list| PartitionMethod::Weights(WeightList::Real(list))),
        prop::collection::vec(("[a-zA-Z_<>]{1,8}", number), 1..4).prop_map(PartitionMethod::TypeWeights),
        prop::collection::vec(0_usize..9, 1..6).prop_map(|mut list| {
            list[0] = 0;
            list.sort_unstable();
            list.push(9);
            PartitionMethod::Cuts(Cuts::new(list).unwrap())
        }),
    ]
}

proptest! {
    #[test]
    fn methods_survive_their_text_form(method in methods()) {
        prop_assert_eq!(method.to_string().parse::<PartitionMethod>().unwrap(), method.clone());
        let json = serde_json::to_string(&method).unwrap();
        prop_assert_eq!(serde_json::from_str::<PartitionMethod>(&json).unwrap(), method);
    }

    #[test]
    fn no_text_makes_a_method_panic(text in "(uniform|type|weights|cuts)?:?[ -~]{0,12}") {
        if let Ok(method) = text.parse::<PartitionMethod>() {
            prop_assert_eq!(method.to_string().parse::<PartitionMethod>().unwrap().to_string(), method.to_string());
        }
    }
}

#[test]
fn the_whole_text_after_the_first_colon_is_the_pattern() {
    let method: PartitionMethod = "TYPE:^a:B$".parse().unwrap();
    assert_eq!(method, PartitionMethod::Type("^a:B$".to_owned()));
    assert_eq!(method.to_string(), "type:^a:B$");
    let pattern: PartitionMethod = "type:^(?:attention|mlp)$".parse().unwrap();
    let layers = ["Embed", "Attention", "MLP"].map(|name| LayerInfo::new(name, 1));
    let cuts = brigade_partition::partition(&pattern, &layers, 2, &Options::default()).unwrap();
    assert_eq!(cuts.boundaries(), [0, 2, 3]);
}

#[test]
fn weights_by_type_name_the_first_entry_that_fits() {
    let layers =
        ["TokenEmbedding", "Block", "Block", "BlockNorm", "Gelu"].map(|name| LayerInfo::new(name, 1));
    let method: PartitionMethod = "weights:embed=2,block=1.5".parse().unwrap();
    let cuts = Cuts::new(vec![0, 1, 5]).unwrap();
    let report = Report::of(&method, &layers, &cuts, &Options::default()).unwrap();
    assert_eq!(report.stages.iter().map(|stage| stage.weight).collect::<Vec<_>>(), [2.0, 4.5]);
}

#[test]
fn values_survive_serde() {
    let profile = LayerProfile { time_ns: 1, fixed_bytes: 2, in_flight_bytes: 3, output_bytes: 4 };
    let layer = LayerInfo::new("Linear", 7).measured(profile);
    let json = serde_json::to_string(&layer).unwrap();
    assert_eq!(serde_json::from_str::<LayerInfo>(&json).unwrap(), layer);
    assert!(serde_json::from_str::<LayerInfo>(r#"{"parameter": 7}"#).is_err());
    let options = Options {
        allow_empty: true,
        ranks: vec![0, 1, 1, 0],
        speeds: vec![1.0, 0.5],
        memory: Some(MemoryLimit { bytes: vec![1, 2], in_flight: vec![4, 3, 2, 1] }),
        cost_per_byte: 0.25,
        pins: vec![Pin::Together(vec![0, 1]), Pin::Stage { layer: 3, stage: 2 }],
    };
    let json = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<Options>(&json).unwrap(), options);
    assert_eq!(serde_json::from_str::<Options>("{}").unwrap(), Options::default());
    let weights = [1_u64, 2, 3];
    let report = Report::new(&balanced(&weights, 2).unwrap(), &weights).unwrap();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

#[test]
fn a_report_is_a_table() {
    let weights = [4_u64, 2, 2, 4, 6];
    let report = Report::new(&balanced(&weights, 3).unwrap(), &weights).unwrap();
    let table = "\
stage  rank         layers           weight    share
    0     0           0..2                6   33.33%
    1     1           2..4                6   33.33%
    2     2           4..5                6   33.33%
dearest rank 6, at least 6, imbalance 1.0000";
    assert_eq!(report.to_string(), table);
}
