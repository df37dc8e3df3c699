//! Speeds, memory, pins, sending and several stages a rank, against plain enumeration.

use std::cmp::Reverse;

use brigade_partition::{
    LayerInfo, LayerProfile, MemoryLimit, Options, PartitionError, PartitionMethod, Pin, Report, partition,
};
use proptest::prelude::*;

use crate::support::every_cuts;

/// A measured layer from (time, fixed, in flight, output).
fn measured((time_ns, fixed_bytes, in_flight_bytes, output_bytes): (u64, u64, u64, u64)) -> LayerInfo {
    let profile = LayerProfile { time_ns, fixed_bytes, in_flight_bytes, output_bytes };
    LayerInfo::new("Linear", time_ns).measured(profile)
}

fn real(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap())
}

/// Returns the cost of every stage and the memory of every rank, in the plainest way. All numbers are
/// small and speeds are powers of two, so floats are exact.
fn weigh(cuts: &[usize], layers: &[LayerInfo], options: &Options) -> (Vec<f64>, Vec<u64>) {
    let n_stages = cuts.len() - 1;
    let fastest = options.speeds.iter().copied().fold(0.0, f64::max);
    let mut costs = Vec::new();
    let mut bytes = vec![0; n_stages];
    for stage in 0..n_stages {
        let rank = options.rank_of(stage);
        let held: Vec<LayerProfile> =
            layers[cuts[stage]..cuts[stage + 1]].iter().map(|layer| layer.profile.unwrap()).collect();
        let mut cost = real(held.iter().map(|layer| layer.time_ns).sum());
        if let Some(speed) = options.speeds.get(rank) {
            cost *= fastest / speed;
        }
        for (neighbour, cut) in [(stage.checked_sub(1), cuts[stage]), (Some(stage + 1), cuts[stage + 1])] {
            let is_other = neighbour.is_some_and(|other| other < n_stages && options.rank_of(other) != rank);
            if is_other && cut > 0 && cut < layers.len() {
                cost += real(layers[cut - 1].profile.unwrap().output_bytes) * options.cost_per_byte;
            }
        }
        costs.push(cost);
        let in_flight =
            options.memory.as_ref().and_then(|memory| memory.in_flight.get(stage).copied()).unwrap_or(1);
        bytes[rank] +=
            held.iter().map(|layer| layer.fixed_bytes + layer.in_flight_bytes * in_flight).sum::<u64>();
    }
    (costs, bytes)
}

fn allowed(cuts: &[usize], layers: &[LayerInfo], options: &Options) -> bool {
    let (_, bytes) = weigh(cuts, layers, options);
    let fits = options
        .memory
        .as_ref()
        .is_none_or(|memory| bytes.iter().zip(&memory.bytes).all(|(bytes, limit)| bytes <= limit));
    let stage_of = |layer: usize| cuts.partition_point(|&start| start <= layer) - 1;
    fits && options.pins.iter().all(|pin| match pin {
        Pin::Together(layers) => layers.windows(2).all(|pair| stage_of(pair[0]) == stage_of(pair[1])),
        Pin::Stage { layer, stage } => stage_of(*layer) == *stage,
        _ => false,
    })
}

fn n_empty(cuts: &[usize]) -> usize {
    cuts.windows(2).filter(|ends| ends[0] == ends[1]).count()
}

/// Whole numbers in the order of the floats they stand for.
fn ordered(value: f64) -> u64 {
    value.to_bits()
}

/// Returns the best cuts when each stage has a rank of its own.
fn best(layers: &[LayerInfo], n_stages: usize, options: &Options) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    every_cuts(layers.len(), n_stages, options.allow_empty, &mut |cuts| {
        if allowed(cuts, layers, options) {
            let (costs, _) = weigh(cuts, layers, options);
            let most = costs.iter().copied().fold(0.0, f64::max);
            let filled = costs.iter().zip(cuts.windows(2)).filter(|(_, ends)| ends[0] < ends[1]);
            let least = filled.map(|(cost, _)| *cost).fold(f64::INFINITY, f64::min);
            all.push((n_empty(cuts), ordered(most), Reverse(ordered(least)), Reverse(cuts.to_vec())));
        }
    });
    all.into_iter().min().map(|best| best.3.0)
}

/// Returns the fewest empty stages and the least cost of the dearest rank.
fn best_ranks(layers: &[LayerInfo], n_stages: usize, options: &Options) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    every_cuts(layers.len(), n_stages, options.allow_empty, &mut |cuts| {
        if allowed(cuts, layers, options) {
            let found = (n_empty(cuts), dearest_rank(cuts, layers, options));
            if best.is_none_or(|best| found < best) {
                best = Some(found);
            }
        }
    });
    best
}

fn dearest_rank(cuts: &[usize], layers: &[LayerInfo], options: &Options) -> f64 {
    let (costs, _) = weigh(cuts, layers, options);
    let mut ranks = vec![0.0; costs.len()];
    for (stage, cost) in costs.into_iter().enumerate() {
        ranks[options.rank_of(stage)] += cost;
    }
    ranks.into_iter().fold(0.0, f64::max)
}

fn measured_layers(n_layers: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<LayerInfo>> {
    prop::collection::vec((0_u64..=9, 0_u64..=5, 0_u64..=3, 0_u64..=6).prop_map(measured), n_layers)
}

fn pins() -> impl Strategy<Value = Vec<Pin>> {
    let together = prop::collection::vec(0_usize..8, 0..=3).prop_map(Pin::Together);
    let stage = (0_usize..8, 0_usize..4).prop_map(|(layer, stage)| Pin::Stage { layer, stage });
    prop::collection::vec(prop_oneof![together, stage], 0..=2)
}

/// Options for `n_ranks` ranks and `n_stages` stages; each part is there or not.
fn options(n_ranks: usize, n_stages: usize) -> impl Strategy<Value = Options> {
    let speeds = prop::collection::vec(prop::sample::select(vec![1.0, 2.0, 4.0]), n_ranks);
    let bytes = prop::collection::vec(5_u64..=40, n_ranks);
    let in_flight = prop::collection::vec(0_u64..=4, n_stages);
    let memory = (bytes, prop::option::of(in_flight))
        .prop_map(|(bytes, in_flight)| MemoryLimit { bytes, in_flight: in_flight.unwrap_or_default() });
    (
        any::<bool>(),
        prop::option::of(speeds),
        prop::option::of(memory),
        prop::sample::select(vec![0.0, 0.0, 0.25, 1.0, 3.0]),
        pins(),
    )
        .prop_map(|(allow_empty, speeds, memory, cost_per_byte, pins)| Options {
            allow_empty,
            ranks: Vec::new(),
            speeds: speeds.unwrap_or_default(),
            memory,
            cost_per_byte,
            pins,
        })
}

fn names_a_layer_or_stage(error: &PartitionError) -> bool {
    matches!(
        error,
        PartitionError::TooFewLayers { .. }
            | PartitionError::PinConflict { .. }
            | PartitionError::LayerTooLarge { .. }
            | PartitionError::StageTooSmall { .. }
            | PartitionError::RanksTooSmall { .. }
    )
}

/// Leaves out the pins of layers and stages that are not there.
fn with_pins_that_exist(options: Options, n_layers: usize, n_stages: usize) -> Options {
    let mut pins = options.pins.clone();
    pins.retain_mut(|pin| match pin {
        Pin::Together(layers) => {
            layers.retain(|&layer| layer < n_layers);
            true
        }
        Pin::Stage { layer, stage } => *layer < n_layers && *stage < n_stages,
        _ => false,
    });
    Options { pins, ..options }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn stages_that_differ_are_cut_best(
        layers in measured_layers(1..=8),
        (n_stages, options) in (1_usize..=4).prop_flat_map(|n_stages| (Just(n_stages), options(n_stages, n_stages))),
    ) {
        let options = with_pins_that_exist(options, layers.len(), n_stages);
        let ours = partition(&PartitionMethod::Profile, &layers, n_stages, &options);
        match best(&layers, n_stages, &options) {
            Some(expected) => {
                let cuts = ours.unwrap();
                prop_assert_eq!(cuts.boundaries(), expected.as_slice());
                // What is returned passes when it is given as explicit cuts.
                let again = partition(&PartitionMethod::Cuts(cuts.clone()), &layers, n_stages, &options);
                prop_assert_eq!(again.unwrap(), cuts.clone());
                let report = Report::of(&PartitionMethod::Profile, &layers, &cuts, &options).unwrap();
                let (costs, _) = weigh(cuts.boundaries(), &layers, &options);
                prop_assert_eq!(&report.rank_costs, &costs);
                prop_assert!(report.at_least <= costs.into_iter().fold(0.0, f64::max));
            }
            None => prop_assert!(ours.as_ref().is_err_and(names_a_layer_or_stage), "{:?}", ours),
        }
    }

    #[test]
    fn ranks_with_several_stages_are_balanced_best(
        layers in measured_layers(1..=9),
        ranks in prop::sample::select(vec![
            vec![0, 1, 0, 1], vec![0, 1, 1, 0], vec![0, 1, 2, 2, 1, 0], vec![0, 1, 2, 0, 1, 2], vec![0, 0, 1],
            vec![0, 1, 0, 1, 0, 1], vec![0, 0],
        ]),
        parts in (0_usize..8).prop_flat_map(|_| options(3, 6)),
    ) {
        let n_stages = ranks.len();
        let n_ranks = ranks.iter().max().unwrap() + 1;
        let mut options = Options { ranks, ..parts };
        options.speeds.truncate(n_ranks);
        if let Some(memory) = &mut options.memory {
            memory.bytes.truncate(n_ranks);
            memory.in_flight.truncate(n_stages);
        }
        let options = with_pins_that_exist(options, layers.len(), n_stages);
        let ours = partition(&PartitionMethod::Profile, &layers, n_stages, &options);
        match best_ranks(&layers, n_stages, &options) {
            Some((fewest, least)) => {
                let cuts = ours.unwrap();
                prop_assert!(allowed(cuts.boundaries(), &layers, &options));
                prop_assert_eq!(n_empty(cuts.boundaries()), fewest);
                prop_assert_eq!(dearest_rank(cuts.boundaries(), &layers, &options), least);
            }
            None => prop_assert!(ours.as_ref().is_err_and(names_a_layer_or_stage), "{:?}", ours),
        }
    }

    #[test]
    fn the_two_searches_agree_where_both_apply(weights in prop::collection::vec(0_u64..=99, 1..=60), n_stages in 1_usize..=12) {
        prop_assume!(n_stages <= weights.len());
        let layers = crate::support::layers(&weights);
        let plain = partition(&PartitionMethod::Parameters, &layers, n_stages, &Options::default()).unwrap();
        // Equal speeds change nothing, but take the general search.
        let options = Options { speeds: vec![3.0; n_stages], ..Options::default() };
        prop_assert_eq!(partition(&PartitionMethod::Parameters, &layers, n_stages, &options).unwrap(), plain);
    }
}

#[test]
fn sixty_four_stages_on_eight_ranks_come_near_the_mean() {
    let weights: Vec<u64> = (0..400).map(|layer| 1_000 + layer * 7_919 % 613).collect();
    let layers = crate::support::layers(&weights);
    for is_v in [false, true] {
        let ranks: Vec<usize> = if is_v {
            (0..32).chain((0..32).rev()).collect()
        } else {
            (0..64).map(|stage| stage % 8).collect()
        };
        let options = Options { ranks, ..Options::default() };
        let cuts = partition(&PartitionMethod::Parameters, &layers, 64, &options).unwrap();
        let report = Report::of(&PartitionMethod::Parameters, &layers, &cuts, &options).unwrap();
        let dearest = report.rank_costs.iter().copied().fold(0.0, f64::max);
        // A rank of the V holds 12.5 layers on average: half a layer more is the best to be hoped for.
        let half_a_layer = real(*weights.iter().max().unwrap()) / 2.0;
        assert!(dearest <= report.at_least + half_a_layer, "{dearest} against {}", report.at_least);
    }
}

#[test]
fn memory_errors_name_what_does_not_fit() {
    let layers = [(1, 4, 0, 0), (1, 50, 0, 0), (1, 4, 0, 0)].map(measured);
    let limit = |bytes: Vec<u64>, in_flight: Vec<u64>| Options {
        memory: Some(MemoryLimit { bytes, in_flight }),
        ..Options::default()
    };
    let refused = partition(&PartitionMethod::Profile, &layers, 2, &limit(vec![40, 40], vec![]));
    assert_eq!(refused, Err(PartitionError::LayerTooLarge { first: 1, last: 1, bytes: 50 }));
    // Each layer fits somewhere, but stage 0 has too little for what stage 1 cannot take.
    let layers = [(1, 10, 0, 0), (1, 10, 0, 0), (1, 10, 0, 0), (1, 10, 0, 0)].map(measured);
    let refused = partition(&PartitionMethod::Profile, &layers, 2, &limit(vec![10, 20], vec![]));
    assert_eq!(refused, Err(PartitionError::StageTooSmall { stage: 1, layer: 1 }));
    // The in-flight count is what makes stage 0 the tight one.
    let layers = [(1, 0, 10, 0); 4].map(measured);
    let options = limit(vec![40, 40], vec![4, 1]);
    let cuts = partition(&PartitionMethod::Profile, &layers, 2, &options).unwrap();
    assert_eq!(cuts.boundaries(), [0, 1, 4]);
    let report = Report::of(&PartitionMethod::Profile, &layers, &cuts, &options).unwrap();
    assert_eq!(report.stages.iter().map(|stage| stage.bytes).collect::<Vec<_>>(), [Some(40), Some(30)]);
    let given = PartitionMethod::Cuts(brigade_partition::Cuts::new(vec![0, 2, 4]).unwrap());
    let refused = partition(&given, &layers, 2, &options);
    assert_eq!(refused, Err(PartitionError::OverLimit { stage: 0, rank: 0, bytes: 80, limit: 40 }));
}

#[test]
fn a_dear_boundary_is_avoided() {
    // Cutting in the middle balances work, but sends 100 bytes.
    let layers = [(5, 0, 0, 1), (5, 0, 0, 100), (5, 0, 0, 1), (5, 0, 0, 1)].map(measured);
    let cut = |cost_per_byte| {
        let options = Options { cost_per_byte, ..Options::default() };
        partition(&PartitionMethod::Profile, &layers, 2, &options).unwrap().boundaries().to_vec()
    };
    assert_eq!(cut(0.0), [0, 2, 4]);
    assert_eq!(cut(0.01), [0, 2, 4]);
    assert_eq!(cut(0.5), [0, 3, 4]);
}

#[test]
fn a_v_sends_nothing_at_its_turn() {
    let layers = [(1, 0, 0, 9), (1, 0, 0, 9), (1, 0, 0, 9)].map(measured);
    let options = Options { ranks: vec![0, 1, 1], cost_per_byte: 1.0, ..Options::default() };
    let cuts = partition(&PartitionMethod::Profile, &layers, 3, &options).unwrap();
    let report = Report::of(&PartitionMethod::Profile, &layers, &cuts, &options).unwrap();
    assert_eq!(report.rank_costs, [10.0, 11.0]);
}

#[test]
fn speeds_may_be_any_finite_ratio() {
    let layers = crate::support::layers(&[1; 12]);
    let cut = |speeds: Vec<f64>| {
        let options = Options { speeds, ..Options::default() };
        partition(&PartitionMethod::Uniform, &layers, 2, &options)
    };
    assert_eq!(cut(vec![3.0, 1.0]).unwrap().boundaries(), [0, 9, 12]);
    assert_eq!(cut(vec![0.1, 0.2]).unwrap().boundaries(), [0, 4, 12]);
    assert!(matches!(cut(vec![1e300, 1e-300]), Err(PartitionError::SpeedRange { .. })));
    assert!(matches!(cut(vec![1.0, f64::NAN]), Err(PartitionError::Speed { rank: 1, .. })));
    assert!(matches!(cut(vec![0.0, 1.0]), Err(PartitionError::Speed { rank: 0, .. })));
}

/// A long list on unequal devices once looked at every pair of places for every stage and took hours.
#[test]
fn long_lists_on_unequal_devices_end_soon() {
    let layers: Vec<LayerInfo> = (0..20_000).map(|layer| measured((1 + layer % 97, 0, 0, 0))).collect();
    let speeds: Vec<f64> = (0..4).map(|rank| [1.0, 2.0][rank % 2]).collect();
    let options = Options { speeds, ..Options::default() };
    let cuts = partition(&PartitionMethod::Profile, &layers, 4, &options).unwrap();
    let report = Report::of(&PartitionMethod::Profile, &layers, &cuts, &options).unwrap();
    assert!(report.imbalance < 1.001, "{report}");
}
