//! Wrong input: every answer is a typed error that names the facts.

use brigade_partition::{
    Cuts, CutsError, LayerInfo, MAX_STAGES, MemoryLimit, MethodError, Options, PartitionError,
    PartitionMethod, PatternError, Pin, Report, TypePattern, WeightError, WeightList, balanced, deepspeed,
    partition, uniform,
};

use crate::support::layers;

fn refused(method: &str, options: &Options) -> PartitionError {
    partition(&method.parse().unwrap(), &layers(&[1, 2, 3, 4]), 2, options).unwrap_err()
}

#[test]
fn numbers_of_stages() {
    assert_eq!(balanced(&[1, 2], 0), Err(PartitionError::NoStages));
    assert_eq!(balanced(&[1_u64; 0], 1), Err(PartitionError::TooFewLayers { n_layers: 0, n_stages: 1 }));
    for n_stages in [MAX_STAGES + 1, usize::MAX] {
        let too_many = PartitionError::TooManyStages { n_stages, max: MAX_STAGES };
        assert_eq!(uniform(usize::MAX, n_stages).as_ref(), Err(&too_many));
        assert_eq!(deepspeed::uniform(0, n_stages).as_ref(), Err(&too_many));
        assert_eq!(balanced(&[1.0], n_stages).as_ref(), Err(&too_many));
    }
    assert_eq!(uniform(usize::MAX, 3).unwrap().n_layers(), usize::MAX);
}

#[test]
fn weights() {
    let weight = |error: PartitionError| match error {
        PartitionError::Weight(error) => error,
        other => panic!("{other:?}"),
    };
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = weight(balanced(&[1.0, bad], 1).unwrap_err());
        assert!(matches!(error, WeightError::NotFinite { layer: 1, .. }));
        assert!(deepspeed::balanced(&[1.0, bad], 1).is_err());
    }
    assert!(matches!(weight(balanced(&[1, -1], 1).unwrap_err()), WeightError::Negative { layer: 1, .. }));
    let over = balanced(&[u128::MAX, 1], 1).unwrap_err();
    assert!(matches!(weight(over), WeightError::Overflow { layer: 0, .. }));
    let message = balanced(&[2.0, -0.5], 1).unwrap_err().to_string();
    assert_eq!(message, "the weight of layer 1 is -0.5; weights must not be negative");
    let options = Options::default();
    assert_eq!(refused("weights:1,2", &options), PartitionError::WeightCount { n_weights: 2, n_layers: 4 });
    // The text form refuses such a number; a program may still make the list itself.
    let method = PartitionMethod::Weights(WeightList::Real(vec![1.0, 2.0, f64::NAN, 4.0]));
    assert!(matches!(
        partition(&method, &layers(&[1, 2, 3, 4]), 2, &options).unwrap_err(),
        PartitionError::Weight(WeightError::NotFinite { layer: 2, .. })
    ));
    assert!(matches!(
        refused("weights:1,2,-3,4", &options),
        PartitionError::Weight(WeightError::Negative { layer: 2, .. })
    ));
}

#[test]
fn patterns() {
    let options = Options::default();
    let error = refused("type:transformer", &options);
    assert_eq!(
        error.to_string(),
        "no type name among the 4 layers holds \"transformer\"; the names are Linear"
    );
    assert!(
        matches!(refused("weights:linear=1,head=2", &options), PartitionError::NoMatch { pattern, .. } if pattern == "head")
    );
    let unread = PartitionMethod::Type("(".to_owned());
    let error = partition(&unread, &layers(&[1]), 1, &options).unwrap_err();
    assert!(matches!(error, PartitionError::Pattern(_)));
    // A search that backtracks without end is given up.
    let nested = TypePattern::new(r"((a*)\2)*c").unwrap();
    assert!(nested.matches(&"a".repeat(200)).is_err());
}

#[test]
fn cut_lists() {
    assert_eq!(Cuts::new(vec![]), Err(CutsError::NoStages { n_boundaries: 0 }));
    assert_eq!(Cuts::new(vec![0]), Err(CutsError::NoStages { n_boundaries: 1 }));
    assert_eq!(Cuts::new(vec![1, 2]), Err(CutsError::NotAtZero { first: 1 }));
    let options = Options::default();
    assert_eq!(refused("cuts:0,2,5", &options), PartitionError::NotCovering { end: 5, n_layers: 4 });
    assert_eq!(refused("cuts:0,1,2,4", &options), PartitionError::StageCount { n_cut: 3, n_stages: 2 });
    assert_eq!(refused("cuts:0,0,4", &options), PartitionError::EmptyStage { stage: 0, layer: 0 });
    assert!(serde_json::from_str::<Cuts>("[0,3,2]").is_err());
    let cuts = Cuts::new(vec![0, 2]).unwrap();
    assert!(Report::new(&cuts, &[1]).is_err());
    assert!(Report::of(&PartitionMethod::Uniform, &layers(&[1]), &cuts, &options).is_err());
}

#[test]
fn option_values() {
    let with = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        refused("parameters", &options)
    };
    assert!(matches!(
        with(|options| options.speeds = vec![1.0]),
        PartitionError::OptionCount { given: 1, wanted: 2, .. }
    ));
    assert!(matches!(
        with(|options| options.ranks = vec![0]),
        PartitionError::OptionCount { given: 1, wanted: 2, .. }
    ));
    assert_eq!(
        with(|options| options.ranks = vec![0, usize::MAX]),
        PartitionError::NoSuchRank { rank: usize::MAX, n_ranks: 2 }
    );
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let options = Options { cost_per_byte: bad, ..Options::default() };
        assert!(matches!(refused("parameters", &options), PartitionError::CostPerByte { .. }));
    }
    assert!(matches!(
        with(|options| options.cost_per_byte = 1.0),
        PartitionError::NotMeasured { layer: 0, .. }
    ));
    let limit = MemoryLimit { bytes: vec![1, 1], in_flight: vec![] };
    let options = Options { memory: Some(limit), ..Options::default() };
    assert!(matches!(refused("parameters", &options), PartitionError::NotMeasured { layer: 0, .. }));
    let pin = |pin: Pin| refused("parameters", &Options { pins: vec![pin], ..Options::default() });
    assert_eq!(pin(Pin::Together(vec![1, 4])), PartitionError::NoSuchLayer { layer: 4, n_layers: 4 });
    assert_eq!(pin(Pin::Stage { layer: 9, stage: 0 }), PartitionError::NoSuchLayer { layer: 9, n_layers: 4 });
    assert_eq!(pin(Pin::Stage { layer: 0, stage: 2 }), PartitionError::NoSuchStage { stage: 2, n_stages: 2 });
    assert!(matches!(pin(Pin::Stage { layer: 0, stage: 1 }), PartitionError::PinConflict { .. }));
    assert_eq!(pin(Pin::Together(vec![0, 3])), PartitionError::TooFewLayers { n_layers: 1, n_stages: 2 });
    let options = Options { pins: vec![Pin::Together(vec![1, 2])], ..Options::default() };
    assert_eq!(refused("cuts:0,2,4", &options), PartitionError::CutInsidePin { layer: 2 });
}

#[test]
fn lists_that_are_too_long_for_a_table() {
    let list = layers(&vec![1; 20_000]);
    let options =
        Options { speeds: (0..2_000).map(|rank| f64::from(rank % 2 + 1)).collect(), ..Options::default() };
    let refused = partition(&PartitionMethod::Uniform, &list, 2_000, &options);
    assert!(matches!(refused, Err(PartitionError::TooLarge { .. })));
    assert!(matches!(deepspeed::balanced(&vec![1; 20_000], 2_000), Err(PartitionError::TooLarge { .. })));
}

#[test]
fn methods() {
    let parse = |text: &str| text.parse::<PartitionMethod>().unwrap_err();
    for text in ["", "bogus", "type", "uniform:", "uniform:3", "profile:x", "weights", "cuts", "Type"] {
        assert!(matches!(parse(text), MethodError::Unknown { .. }), "{text}");
    }
    assert!(matches!(parse("type:("), MethodError::Pattern(_)));
    assert!(matches!(parse("weights:1,x"), MethodError::Number { .. }));
    assert!(matches!(parse("weights:1,,2"), MethodError::Number { .. }));
    for text in ["weights:nan", "weights:1,inf", "weights:-inf", "weights:1e400", "weights:a=nan"] {
        assert!(matches!(parse(text), MethodError::Number { .. }), "{text}");
    }
    let long = format!("type:{}", "a*".repeat(200_000));
    assert!(matches!(parse(&long), MethodError::Pattern(PatternError::TooLong { n_bytes: 400_000, .. })));
    assert!(matches!(parse("weights:a=1,2"), MethodError::Entry { .. }));
    assert!(matches!(parse("weights:=1"), MethodError::Entry { .. }));
    assert!(matches!(parse("weights:a=b=1"), MethodError::Entry { .. }));
    assert!(matches!(parse("weights:a=x"), MethodError::Number { .. }));
    assert!(matches!(parse("cuts:"), MethodError::Boundary { .. }));
    assert!(matches!(parse("cuts:0,-1"), MethodError::Boundary { .. }));
    assert!(matches!(parse("cuts:0,3,1"), MethodError::Cuts(_)));
    let unknown = deepspeed::partition("profile", &[LayerInfo::new("A", 1)], 1).unwrap_err();
    assert!(matches!(unknown, PartitionError::NotInDeepSpeed { .. }));
}
