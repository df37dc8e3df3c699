//! Properties of random topologies, placements and nodes, against plain enumeration.

use std::collections::BTreeSet;

use brigade_topology::{Direction, Nodes, PipeRank, PipelineGrid, Placement, ProcessTopology, Rank, Stage};
use proptest::prelude::*;

const NAMES: [&str; 5] = ["pipe", "data", "model", "expert", "context"];

/// Topologies of up to five axes in any order and up to 1,024 ranks.
fn topologies() -> impl Strategy<Value = ProcessTopology> {
    (Just(NAMES.to_vec()).prop_shuffle(), prop::collection::vec(1_u64..=4, 0..=5)).prop_map(
        |(names, sizes)| {
            let axes: Vec<(&str, u64)> = names.into_iter().zip(sizes).collect();
            ProcessTopology::new(&axes).unwrap()
        },
    )
}

fn ranks(topology: &ProcessTopology) -> impl Iterator<Item = Rank> + use<> {
    (0..topology.world_size()).map(Rank)
}

proptest! {
    #[test]
    fn ranks_and_coordinates_convert_into_each_other(topology in topologies()) {
        let mut seen = BTreeSet::new();
        for rank in ranks(&topology) {
            let coord: Vec<(&str, u64)> = topology.coord(rank).unwrap().iter().collect();
            prop_assert!(coord.iter().all(|(name, value)| *value < topology.dim(name)));
            prop_assert_eq!(topology.rank(&coord).unwrap(), rank);
            let reversed: Vec<_> = coord.iter().rev().copied().collect();
            prop_assert_eq!(topology.rank(&reversed).unwrap(), rank);
            prop_assert!(seen.insert(coord.iter().map(|(_, value)| *value).collect::<Vec<_>>()));
        }
        // Row-major: coordinates ascend with ranks.
        let coords: Vec<Vec<u64>> =
            ranks(&topology).map(|rank| topology.coord(rank).unwrap().iter().map(|(_, value)| value).collect()).collect();
        prop_assert!(coords.is_sorted());
    }

    #[test]
    fn sizes_of_any_magnitude_convert(sizes in prop::collection::vec(1_u64..=1 << 16, 1..=4), seed: u64) {
        let axes: Vec<_> = NAMES.into_iter().zip(sizes).collect();
        let Ok(topology) = ProcessTopology::new(&axes) else { return Ok(()) };
        let rank = Rank(seed % topology.world_size());
        let coord: Vec<_> = topology.coord(rank).unwrap().iter().collect();
        prop_assert_eq!(topology.rank(&coord).unwrap(), rank);
        for (name, _) in axes {
            let group = topology.axis_comm_list_of(name, rank).unwrap();
            prop_assert_eq!(group.get(topology.coord(rank).unwrap().get(name).unwrap()), Some(rank));
        }
    }

    #[test]
    fn groups_of_an_axis_partition_the_world(topology in topologies()) {
        for axis in topology.axis_names() {
            let mut all = Vec::new();
            for (position, group) in (0..).zip(topology.axis_comm_lists(axis)) {
                prop_assert_eq!(topology.axis_comm_list(axis, position), Some(group));
                prop_assert_eq!(group.len(), topology.dim(axis));
                for rank in group.iter() {
                    prop_assert_eq!(topology.axis_comm_list_of(axis, rank).unwrap(), group);
                    prop_assert_eq!(group.get(group.position(rank).unwrap()), Some(rank));
                }
                all.extend(group.iter());
            }
            all.sort();
            prop_assert!(all.into_iter().eq(ranks(&topology)));
        }
    }

    #[test]
    fn filters_equal_a_scan(topology in topologies(), wanted in prop::collection::vec(0_u64..=4, 5), skip in 0_usize..40) {
        let filter: Vec<(&str, u64)> =
            topology.axis_names().zip(wanted).filter(|(_, value)| *value < 4).collect();
        let matches = |rank: &Rank| {
            let coord = topology.coord(*rank).unwrap();
            filter.iter().all(|(name, value)| coord.get(name) == Some(*value))
        };
        let scanned: Vec<Rank> = ranks(&topology).filter(matches).collect();
        let found = topology.filter_match(&filter).unwrap();
        prop_assert_eq!(found.size_hint(), (scanned.len(), Some(scanned.len())));
        prop_assert_eq!(found.clone().nth(skip), scanned.get(skip).copied());
        prop_assert!(found.clone().rev().eq(scanned.iter().rev().copied()));
        prop_assert_eq!(found.collect::<Vec<_>>(), scanned);
    }

    #[test]
    fn grids_agree_with_each_other(topology in topologies()) {
        let Ok(grids) = ranks(&topology)
            .map(|rank| PipelineGrid::new(topology.clone(), rank))
            .collect::<Result<Vec<_>, _>>() else {
            prop_assert!(topology.dim("pipe") == 0 || topology.dim("data") == 0);
            return Ok(());
        };
        let peers: Vec<_> = grids[0].peer_pairs().collect();
        for (grid, peer) in grids.iter().zip(peers) {
            prop_assert_eq!(peer, (grid.rank(), grid.next()));
            prop_assert_eq!(grids[grid.next().index()].previous(), grid.rank());
            prop_assert!(grid.pipe_group().contains(grid.rank()) && grid.slice_group().contains(grid.rank()));
            let position = usize::try_from(grid.model_parallel_rank()).unwrap();
            prop_assert_eq!(grid.model_parallel_group().nth(position), Some(grid.rank()));
            prop_assert_eq!(grid.stage_to_rank(grid.pipe_rank(), &[]).unwrap(), grid.rank());
            prop_assert_eq!(grid.is_first(), grid.stage_to_rank(PipeRank(0), &[]).unwrap() == grid.rank());
        }
        // Every kind of group covers the world once.
        let n_kinds = 4;
        prop_assert_eq!(
            grids[0].groups().map(|(_, group)| group.n_ranks()).sum::<u64>(),
            n_kinds * topology.world_size()
        );
    }

    #[test]
    fn placements_are_bijections(n_ranks in 1_u32..=12, stages_per_rank in 1_u32..=5, is_v: bool) {
        let placement =
            if is_v { Placement::v(n_ranks) } else { Placement::looped(n_ranks, stages_per_rank) }.unwrap();
        let mut seen = BTreeSet::new();
        for rank in (0..n_ranks).map(PipeRank) {
            let stages: Vec<Stage> = placement.stages_of(rank).unwrap().collect();
            prop_assert!(stages.is_sorted());
            prop_assert!(placement.stages_of(rank).unwrap().rev().eq(stages.iter().rev().copied()));
            for (local, stage) in (0..).zip(stages) {
                prop_assert_eq!(placement.rank_of(stage).unwrap(), rank);
                prop_assert_eq!(placement.local_of(stage).unwrap(), local);
                prop_assert_eq!(placement.stage_at(rank, local).unwrap(), stage);
                prop_assert!(seen.insert(stage));
            }
        }
        prop_assert_eq!(seen.len(), Stage(placement.n_stages()).index());
        prop_assert!(placement.ranks().eq(seen.iter().map(|stage| placement.rank_of(*stage).unwrap())));
        prop_assert_eq!(placement.to_string().parse::<Placement>().unwrap(), placement);
        let json = serde_json::to_string(&placement).unwrap();
        prop_assert_eq!(serde_json::from_str::<Placement>(&json).unwrap(), placement);
    }

    #[test]
    fn placements_are_equal_when_their_maps_are(one in placements(), other in placements()) {
        prop_assert_eq!(one == other, all_holders(&one) == all_holders(&other));
    }

    /// Down and up are each other's mirror, and ranks and stages agree on who holds what.
    #[test]
    fn both_directions_visit_every_rank_once(n_ranks in 1_u32..=12) {
        let both = Placement::bidirectional(n_ranks).unwrap();
        prop_assert_eq!((both.n_ranks(), both.n_stages()), (n_ranks, n_ranks));
        for direction in [Direction::Down, Direction::Up] {
            let mut visited: Vec<PipeRank> =
                (0..n_ranks).map(|stage| both.rank_towards(Stage(stage), direction).unwrap()).collect();
            if direction == Direction::Up {
                visited.reverse();
            }
            prop_assert!(visited.into_iter().eq((0..n_ranks).map(PipeRank)));
        }
        for rank in (0..n_ranks).map(PipeRank) {
            let stages: Vec<Stage> = both.stages_of(rank).unwrap().collect();
            prop_assert!(stages.is_sorted());
            let held = |stage: &Stage| both.holders_of(*stage).unwrap().any(|holder| holder == rank);
            prop_assert_eq!(&stages, &(0..n_ranks).map(Stage).filter(held).collect::<Vec<_>>());
            for (local, stage) in (0..).zip(stages) {
                prop_assert_eq!(both.stage_at(rank, local).unwrap(), stage);
            }
        }
        for stage in (0..n_ranks).map(Stage) {
            let rank = both.rank_of(stage).unwrap();
            prop_assert_eq!(both.stage_at(rank, both.local_of(stage).unwrap()).unwrap(), stage);
        }
        prop_assert_eq!(both.to_string().parse::<Placement>().unwrap(), both);
        let json = serde_json::to_string(&both).unwrap();
        prop_assert_eq!(serde_json::from_str::<Placement>(&json).unwrap(), both);
    }

    /// A direction means something only where there are two.
    #[test]
    fn one_way_placements_have_one_holder_a_stage(placement in placements()) {
        for stage in (0..placement.n_stages()).map(Stage) {
            let rank = placement.rank_of(stage).unwrap();
            prop_assert_eq!(placement.rank_towards(stage, Direction::Down).unwrap(), rank);
            if !placement.is_bidirectional() {
                prop_assert_eq!(placement.rank_towards(stage, Direction::Up).unwrap(), rank);
                prop_assert!(placement.holders_of(stage).unwrap().eq([rank]));
            }
        }
    }

    #[test]
    fn axes_cross_nodes_as_their_groups_do(topology in topologies(), per_node in 1_u64..=40) {
        let nodes = Nodes::new(per_node).unwrap();
        for axis in topology.axis_names() {
            let mut crosses = false;
            for group in topology.axis_comm_lists(axis) {
                let distinct: BTreeSet<u64> = group.iter().map(|rank| nodes.node_of(rank)).collect();
                prop_assert_eq!(nodes.n_nodes_of(&group), u64::try_from(distinct.len()).unwrap());
                crosses |= distinct.len() > 1;
            }
            prop_assert_eq!(nodes.crosses(&topology, axis), crosses, "{} of {}", axis, topology);
        }
    }

    #[test]
    fn the_suggested_order_is_the_best_of_all(
        sizes in prop::collection::vec(1_u64..=6, 1..=4),
        bytes in prop::collection::vec(0_u64..=9, 4),
        per_node in 1_u64..=24,
    ) {
        let axes: Vec<(&str, u64)> = NAMES.into_iter().zip(sizes).collect();
        let traffic: Vec<(&str, u64)> = axes.iter().map(|(name, _)| *name).zip(bytes).collect();
        let nodes = Nodes::new(per_node).unwrap();
        let suggested = nodes.suggest_order(&ProcessTopology::new(&axes).unwrap(), &traffic).unwrap();
        let cost = |topology: &ProcessTopology| -> u128 {
            let crossing: Vec<&str> = nodes.crossing_axes(topology).collect();
            traffic.iter().filter(|(name, _)| crossing.contains(name)).map(|(_, bytes)| u128::from(*bytes)).sum()
        };
        prop_assert_eq!(cost(&suggested.topology), suggested.crossing_bytes);
        let best = permutations(&axes).iter().map(|axes| cost(&ProcessTopology::new(axes).unwrap())).min();
        prop_assert_eq!(Some(suggested.crossing_bytes), best);
    }

    #[test]
    fn topologies_survive_serde(topology in topologies()) {
        let json = serde_json::to_string(&topology).unwrap();
        prop_assert_eq!(serde_json::from_str::<ProcessTopology>(&json).unwrap(), topology);
    }
}

fn placements() -> impl Strategy<Value = Placement> {
    prop_oneof![
        (1_u32..=4, 1_u32..=3).prop_map(|(n_ranks, per_rank)| Placement::looped(n_ranks, per_rank).unwrap()),
        (1_u32..=4).prop_map(|n_ranks| Placement::v(n_ranks).unwrap()),
        (1_u32..=4).prop_map(|n_ranks| Placement::bidirectional(n_ranks).unwrap()),
    ]
}

fn all_holders(placement: &Placement) -> Vec<Vec<PipeRank>> {
    (0..placement.n_stages()).map(|stage| placement.holders_of(Stage(stage)).unwrap().collect()).collect()
}

fn permutations<'a>(axes: &[(&'a str, u64)]) -> Vec<Vec<(&'a str, u64)>> {
    if axes.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in 0..axes.len() {
        let mut rest = axes.to_vec();
        let axis = rest.remove(first);
        for mut tail in permutations(&rest) {
            tail.insert(0, axis);
            all.push(tail);
        }
    }
    all
}
