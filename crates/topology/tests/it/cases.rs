//! What people who train with pipelines ran into, as far as it touches ranks and ties.

use brigade_topology::{Placement, ProcessTopology, Rank, Stage, TieGroup, analyze_tie_ranks, tied_modules};

fn ties(topology: &ProcessTopology, uses: &[(&str, Stage)]) -> Vec<TieGroup> {
    let n_pipe = u32::try_from(topology.dim("pipe")).unwrap();
    tied_modules(topology, &Placement::linear(n_pipe).unwrap(), uses).unwrap()
}

/// Three ties that overlap on three stages hung when ranks met them in different orders.
#[test]
fn b65_ties_come_in_one_order_whatever_the_order_of_declaration() {
    let topology = ProcessTopology::pipe_data(3, 1).unwrap();
    let uses =
        [("b", 0), ("b", 1), ("a", 1), ("a", 2), ("c", 0), ("c", 2)].map(|(key, stage)| (key, Stage(stage)));
    let expected =
        [("a", vec![Rank(1), Rank(2)]), ("b", vec![Rank(0), Rank(1)]), ("c", vec![Rank(0), Rank(2)])];
    for rotation in 0..uses.len() {
        let mut rotated = uses;
        rotated.rotate_left(rotation);
        for order in [rotated.to_vec(), rotated.iter().rev().copied().collect()] {
            let groups: Vec<(String, Vec<Rank>)> = ties(&topology, &order)
                .iter()
                .map(|tie| (tie.name().to_owned(), tie.replicas().next().unwrap()))
                .collect();
            assert_eq!(groups, expected.clone().map(|(name, ranks)| (name.to_owned(), ranks)));
        }
    }
    // The same for unnamed sets, in any order of the sets and within them.
    let sets: [&[_]; 3] = [
        &[("b0", Stage(0)), ("b1", Stage(1))],
        &[("a1", Stage(1)), ("a2", Stage(2))],
        &[("c0", Stage(0)), ("c2", Stage(2))],
    ];
    let flipped: [&[_]; 3] = [
        &[("c2", Stage(2)), ("c0", Stage(0))],
        &[("b1", Stage(1)), ("b0", Stage(0))],
        &[("a1", Stage(1)), ("a2", Stage(2))],
    ];
    let linear = Placement::linear(3).unwrap();
    let order = |sets: &[&[(&str, Stage)]]| -> Vec<Vec<(String, Stage)>> {
        let groups = analyze_tie_ranks(&topology, &linear, sets).unwrap();
        groups
            .iter()
            .map(|group| group.uses().map(|(name, stage)| (name.to_owned(), stage)).collect())
            .collect()
    };
    assert_eq!(order(&sets), order(&flipped));
    assert_eq!(order(&sets)[0][0].0, "a1");
}

/// Exactly the named weights are tied; another weight of the same layers is not drawn in.
#[test]
fn b66_only_named_weights_are_tied() {
    let topology = ProcessTopology::pipe_data(2, 1).unwrap();
    let linear = Placement::linear(2).unwrap();
    let weight: &[_] = &[("embed.weight", Stage(0)), ("head.weight", Stage(1))];
    let bias: &[_] = &[("embed.bias", Stage(0)), ("head.bias", Stage(1))];
    let both = analyze_tie_ranks(&topology, &linear, &[weight, bias]).unwrap();
    assert_eq!(both.iter().map(TieGroup::name).collect::<Vec<_>>(), ["embed.bias", "embed.weight"]);
    let one = analyze_tie_ranks(&topology, &linear, &[weight]).unwrap();
    assert!(one.iter().flat_map(TieGroup::uses).all(|(name, _)| name.ends_with(".weight")));
}

/// A weight used twice on one stage was refused by one system and counted twice by another.
#[test]
fn b67_uses_on_one_stage_are_merged_and_counted_once() {
    let topology = ProcessTopology::pipe_data(4, 2).unwrap();
    let uses = [0, 1, 1, 3].map(|stage| ("w", Stage(stage)));
    let tie = &ties(&topology, &uses)[0];
    assert_eq!(tie.uses().count(), 4);
    assert_eq!(tie.stages(), [Stage(0), Stage(1), Stage(3)]);
    let groups: Vec<Vec<u64>> =
        tie.replicas().map(|ranks| ranks.into_iter().map(u64::from).collect()).collect();
    assert_eq!(groups, [[0, 2, 6], [1, 3, 7]]);
    // Of all ranks of a replica, one counts the weight.
    for replica in 0..2 {
        let holders =
            (0..4).map(|place| Rank(place * 2 + replica)).filter(|rank| tie.ranks_of(*rank).is_some());
        assert_eq!(holders.filter(|rank| !tie.is_copy(*rank)).collect::<Vec<_>>(), [Rank(replica)]);
    }
}

/// With a V: two stages of one rank hold one copy between them.
#[test]
fn b67_stages_that_share_a_rank_are_merged() {
    let topology = ProcessTopology::pipe_data(2, 2).unwrap();
    let uses = [0, 3].map(|stage| ("w", Stage(stage)));
    let tie = &tied_modules(&topology, &Placement::v(2).unwrap(), &uses).unwrap()[0];
    assert!(tie.is_local());
    assert_eq!(tie.replicas().collect::<Vec<_>>(), [[Rank(0)], [Rank(1)]]);
    assert!((0..4).all(|rank| !tie.is_copy(Rank(rank))));
}

/// Two pipelines through the same ranks: every holder of a stage has a copy to keep equal.
#[test]
fn both_holders_of_a_stage_share_its_weights() {
    let topology = ProcessTopology::pipe_data(4, 2).unwrap();
    let both = Placement::bidirectional(4).unwrap();
    let replicas = |stages: &[u32]| {
        let uses: Vec<_> = stages.iter().map(|&stage| ("w", Stage(stage))).collect();
        let tie = tied_modules(&topology, &both, &uses).unwrap().remove(0);
        assert!(!tie.is_local());
        tie.replicas().collect::<Vec<_>>()
    };
    let ranks =
        |places: &[u64], replica| places.iter().map(|place| Rank(place * 2 + replica)).collect::<Vec<_>>();
    assert_eq!(replicas(&[0]), [ranks(&[0, 3], 0), ranks(&[0, 3], 1)]);
    assert_eq!(replicas(&[0, 3]), [ranks(&[0, 3], 0), ranks(&[0, 3], 1)]);
    assert_eq!(replicas(&[0, 2]), [ranks(&[0, 1, 2, 3], 0), ranks(&[0, 1, 2, 3], 1)]);
}

/// A checkpoint written with the copies apart has to load where they are together.
#[test]
fn b70_the_name_of_a_tie_does_not_depend_on_the_number_of_stages() {
    let layers = ["embed.weight", "other.weight", "head.weight", "aux.weight"];
    for n_stages in [1, 2, 4] {
        let topology = ProcessTopology::pipe_data(n_stages, 1).unwrap();
        let stage = |layer: u64| Stage(u32::try_from(layer * n_stages / 4).unwrap());
        let set = [(layers[2], stage(2)), (layers[0], stage(0)), (layers[3], stage(3))];
        let linear = Placement::linear(u32::try_from(n_stages).unwrap()).unwrap();
        let groups = analyze_tie_ranks(&topology, &linear, &[&set]).unwrap();
        assert_eq!(groups[0].name(), "aux.weight");
        let keyed = set.map(|(_, stage)| ("tied", stage));
        assert_eq!(tied_modules(&topology, &linear, &keyed).unwrap()[0].name(), "tied");
    }
}

/// A stage without parameters takes part in every collective of its axes all the same: groups are
/// made of ranks, never of what ranks hold.
#[test]
fn b55_every_rank_is_in_one_group_of_each_kind() {
    use brigade_topology::{GroupKind, PipelineGrid};
    let grid = PipelineGrid::new(ProcessTopology::pipe_data_model(3, 2, 2).unwrap(), Rank(0)).unwrap();
    for kind in [GroupKind::ModelParallel, GroupKind::Data, GroupKind::Pipe, GroupKind::Slice] {
        let mut ranks: Vec<Rank> =
            grid.groups().filter(|(found, _)| *found == kind).flat_map(|(_, ranks)| ranks).collect();
        ranks.sort();
        assert!(ranks.into_iter().eq((0..12).map(Rank)), "{kind:?}");
    }
}
