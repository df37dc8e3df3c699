//! What people who train with pipelines ran into, as far as it touches partitions.

use brigade_partition::{
    LayerInfo, LayerProfile, Options, PartitionError, PartitionMethod, Report, balanced, deepspeed, partition,
};

use crate::support::{layers, sums};

/// Layers without weight at both ends made stages of 2 to 6 weights each, ten of them of 3.
#[test]
fn b51_weightless_ends_do_not_upset_the_balance() {
    let names = |count: usize, name: &'static str| std::iter::repeat_n(LayerInfo::new(name, 0), count);
    let list: Vec<LayerInfo> =
        names(3, "Embedding").chain(names(42, "TransformerLayer")).chain(names(3, "Head")).collect();
    let weights: Vec<u64> =
        list.iter().map(|layer| u64::from(layer.type_name == "TransformerLayer")).collect();
    let method: PartitionMethod = "type:transformer".parse().unwrap();
    let cuts = partition(&method, &list, 16, &Options::default()).unwrap();
    let stages = sums(cuts.boundaries(), &weights);
    assert_eq!((stages.iter().max(), stages.iter().min()), (Some(&3), Some(&2)));
    assert_eq!(cuts.first_empty(), None);
    assert_eq!(stages.iter().filter(|&&sum| sum == 3).count(), 10);
    assert_eq!(cuts, balanced(&weights, 16).unwrap());
}

/// A stage of layers without parameters is a stage like any other.
#[test]
fn b55_a_stage_may_hold_no_parameter() {
    let method: PartitionMethod = "cuts:0,1,3,4".parse().unwrap();
    let list = layers(&[8, 0, 0, 8]);
    let cuts = partition(&method, &list, 3, &Options::default()).unwrap();
    let report = Report::of(&PartitionMethod::Parameters, &list, &cuts, &Options::default()).unwrap();
    assert_eq!((report.stages[1].weight, report.stages[1].share), (0.0, 0.0));
}

/// All parameters of a stage may be frozen: they weigh nothing, and every stage still gets a layer.
#[test]
fn b56_frozen_layers_weigh_nothing_and_are_placed_all_the_same() {
    for frozen in [vec![0, 0, 0, 0], vec![5, 0, 0, 5], vec![0, 0, 0, 9]] {
        let cuts = partition(&PartitionMethod::Parameters, &layers(&frozen), 3, &Options::default()).unwrap();
        assert_eq!((cuts.first_empty(), cuts.n_layers()), (None, 4));
    }
}

/// Pipelines whose layers do not divide by their stages failed long after they were built.
#[test]
fn b57_any_number_of_stages_is_settled_when_the_list_is_cut() {
    let methods = ["uniform", "parameters", "type:linear", "weights:linear=2"];
    for (n_layers, n_stages) in [(80, 16), (80, 2), (30, 4), (20, 1), (20, 20), (20, 21)] {
        let list = layers(&vec![3; n_layers]);
        for method in methods {
            let cuts = partition(&method.parse().unwrap(), &list, n_stages, &Options::default());
            if n_layers < n_stages {
                assert_eq!(cuts, Err(PartitionError::TooFewLayers { n_layers, n_stages }), "{method}");
                continue;
            }
            let sizes: Vec<usize> = cuts.unwrap().stages().map(|stage| stage.len()).collect();
            assert_eq!(sizes.iter().sum::<usize>(), n_layers);
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{method}: {sizes:?}");
        }
    }
}

/// A profile covers the whole list, and a layer without one is named, not guessed.
#[test]
fn b60_a_profile_covers_every_layer() {
    let layer =
        |time_ns| LayerInfo::new("Block", 1).measured(LayerProfile { time_ns, ..LayerProfile::default() });
    let mut list = vec![layer(10), layer(10), layer(70), layer(10)];
    let cuts = partition(&PartitionMethod::Profile, &list, 3, &Options::default()).unwrap();
    assert_eq!(cuts.boundaries(), [0, 2, 3, 4]);
    list[2].profile = None;
    let refused = partition(&PartitionMethod::Profile, &list, 3, &Options::default());
    assert_eq!(refused, Err(PartitionError::NotMeasured { layer: 2, type_name: "Block".to_owned() }));
}

/// Upstream leaves stages empty without a word, and fails later.
#[test]
fn b61_fewer_layers_than_stages_need_leave() {
    let list = layers(&[1, 1, 1]);
    assert_eq!(deepspeed::uniform(3, 4).unwrap().first_empty(), Some(3));
    let allowed = Options { allow_empty: true, ..Options::default() };
    for method in ["uniform", "parameters", "type:linear", "weights:1,2,3"] {
        let method: PartitionMethod = method.parse().unwrap();
        let refused = partition(&method, &list, 4, &Options::default());
        assert_eq!(refused, Err(PartitionError::TooFewLayers { n_layers: 3, n_stages: 4 }));
        assert_eq!(partition(&method, &list, 4, &allowed).unwrap().boundaries(), [0, 1, 2, 3, 3]);
    }
    // Leave to have empty stages is no reason to have them.
    assert_eq!(partition(&PartitionMethod::Parameters, &list, 3, &allowed).unwrap().first_empty(), None);
    let given: PartitionMethod = "cuts:0,1,1,3".parse().unwrap();
    let refused = partition(&given, &list, 3, &Options::default());
    assert_eq!(refused, Err(PartitionError::EmptyStage { stage: 1, layer: 1 }));
    assert!(partition(&given, &list, 3, &allowed).is_ok());
}
