//! What DeepSpeed and Slapo compute, case by case.
//!
//! Deviations, by rule: where upstream raises, a typed error is returned; lists of axes and sizes that
//! differ in length are always refused; a weight that stands twice on a stage does not repeat its rank;
//! a stage out of range is refused wherever in its set it stands; with one pipeline rank tied modules
//! form groups of one rank, where upstream forms none; when the model axis is slower than the data axis,
//! replicas come by their first rank, where upstream has the slices of one replica first.

use std::collections::BTreeSet;

use brigade_topology::{
    GridError, PipeRank, PipelineGrid, Placement, ProcessTopology, Rank, RankRepr, Stage, TieError,
    TopologyError, analyze_tie_ranks, prime_factors, tied_modules,
};
use serde_json::Value;

use crate::support::{bare, filter, list, lists, members, number, numbers, text, texts, topology};

#[test]
fn topologies() {
    for case in list("topology.json", "cases") {
        let topology = topology(&case);
        assert_eq!(topology.world_size(), number(&case["world_size"]));
        assert_eq!(topology.axis_names().collect::<Vec<_>>(), texts(&case["axis_names"]));
        assert_eq!(topology.dim("no_such_axis"), number(&case["dim_missing"]));
        assert_eq!(topology.axis_comm_lists("no_such_axis").count(), 0);
        for (axis, size) in members(&case["dim"]) {
            assert_eq!(topology.dim(axis), number(size));
        }
        for (rank, expected) in (0..).map(Rank).zip(lists(&case["coords"])) {
            let coord = topology.coord(rank).unwrap();
            let named: Vec<(&str, u64)> = coord.iter().collect();
            assert_eq!(named.iter().map(|(_, value)| *value).collect::<Vec<_>>(), expected);
            assert_eq!(topology.rank(&named), Ok(rank));
        }
        for (axis, groups) in members(&case["axis_comm_lists"]) {
            let ours: Vec<Vec<u64>> =
                topology.axis_comm_lists(axis).map(|group| bare(group.iter())).collect();
            assert_eq!(ours, lists(groups));
        }
        for (axis, planes) in members(&case["axis_list"]) {
            for (coord, ranks) in (0..).zip(lists(planes)) {
                assert_eq!(bare(topology.axis_list(axis, coord).unwrap()), ranks);
            }
        }
        for pair in case["filter_match"].as_array().unwrap() {
            assert_eq!(bare(topology.filter_match(&filter(&pair[0])).unwrap()), numbers(&pair[1]));
        }
        for row in case["rank_repr"].as_array().unwrap() {
            assert_eq!(rank_repr(&topology, Rank(number(&row[0])), &row[1]), text(&row[2]));
        }
        // It is left out where it would be long.
        if let Some(expected) = case["str"].as_str() {
            assert_eq!(format!("{topology:#}"), expected);
        }
    }
}

fn rank_repr(topology: &ProcessTopology, rank: Rank, arguments: &Value) -> String {
    let mut repr = RankRepr::default();
    let omitted;
    match arguments {
        Value::Null => {}
        Value::Array(_) => {
            omitted = texts(arguments);
            repr.omit_axes = &omitted;
        }
        _ => {
            if let Some(omit) = arguments.get("omit_axes") {
                omitted = texts(omit);
                repr.omit_axes = &omitted;
            }
            repr.inner_sep = arguments.get("inner_sep").map_or(repr.inner_sep, text);
            repr.outer_sep = arguments.get("outer_sep").map_or(repr.outer_sep, text);
        }
    }
    topology.rank_repr(rank, &repr).unwrap()
}

#[test]
fn refused_topologies() {
    for case in list("topology.json", "constructor_errors") {
        let refused = ProcessTopology::from_lists(&texts(&case["axes"]), &numbers(&case["dims"]));
        assert!(refused.is_err(), "{case}");
        if texts(&case["axes"]).len() != numbers(&case["dims"]).len() {
            assert!(matches!(refused, Err(TopologyError::LengthMismatch { .. })));
        }
    }
}

#[test]
fn calls() {
    for case in list("topology.json", "calls") {
        let answer = call(&topology(&case["topology"]), text(&case["call"]));
        match case.get("ok") {
            Some(expected) => assert_eq!(answer.as_ref(), Ok(expected), "{case}"),
            None => assert!(answer.is_err(), "{case}"),
        }
    }
}

/// Runs a call written in Python.
fn call(topology: &ProcessTopology, call: &str) -> Result<Value, String> {
    let (name, arguments) = call.trim_end_matches(')').split_once('(').unwrap();
    let arguments: Vec<&str> = arguments.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    let whole = |text: &str| number(&serde_json::from_str(text).unwrap());
    let unquoted = |text: &str| text.trim_matches(['\'', '"']).to_owned();
    let keywords: Vec<(&str, &str)> = arguments.iter().filter_map(|text| text.split_once('=')).collect();
    let coord = || keywords.iter().map(|(name, value)| (*name, whole(value))).collect::<Vec<_>>();
    let text = |error: brigade_topology::LookupError| error.to_string();
    match name {
        "get_rank" => topology.rank(&coord()).map(|rank| rank.0.into()).map_err(text),
        "filter_match" => topology.filter_match(&coord()).map(|ranks| bare(ranks).into()).map_err(text),
        "get_coord" => {
            let values =
                |coord: brigade_topology::Coord<'_>| coord.iter().map(|(_, value)| value).collect::<Vec<_>>();
            topology.coord(Rank(whole(arguments[0]))).map(|coord| values(coord).into()).map_err(text)
        }
        "get_dim" => Ok(topology.dim(&unquoted(arguments[0])).into()),
        "get_axis_list" => {
            let ranks = topology.axis_list(&unquoted(arguments[0]), whole(arguments[1]));
            ranks.map(|ranks| bare(ranks).into()).map_err(text)
        }
        "get_axis_comm_lists" => {
            let groups = topology.axis_comm_lists(&unquoted(arguments[0]));
            Ok(groups.map(|group| bare(group.iter())).collect::<Vec<_>>().into())
        }
        "get_rank_repr" => {
            // Python takes a text for a list of its letters.
            let letters: Option<Vec<String>> = keywords
                .iter()
                .find(|(name, _)| *name == "omit_axes")
                .map(|(_, value)| unquoted(value).chars().map(String::from).collect());
            let letters: Option<Vec<&str>> =
                letters.as_ref().map(|letters| letters.iter().map(String::as_str).collect());
            let mut repr = RankRepr::default();
            if let Some(letters) = &letters {
                repr.omit_axes = letters;
            }
            topology.rank_repr(Rank(whole(arguments[0])), &repr).map(Value::from).map_err(text)
        }
        _ => panic!("no call {call} is known"),
    }
}

#[test]
fn grids() {
    for case in list("topology.json", "grids") {
        let topology = grid_topology(&case["topology"]);
        let world_size = number(&case["world"]);
        if case.get("error").is_some() {
            let refused = PipelineGrid::in_world(topology, world_size, Rank(0));
            assert!(matches!(refused, Err(GridError::MissingAxis { .. } | GridError::WorldMismatch { .. })));
            continue;
        }
        assert_eq!(topology.axis_names().collect::<Vec<_>>(), texts(&case["axes"]));
        for rank in case["ranks"].as_array().unwrap() {
            let grid =
                PipelineGrid::in_world(topology.clone(), world_size, Rank(number(&rank["rank"]))).unwrap();
            check_world(&grid, &case);
            check_rank(&grid, rank);
        }
    }
}

fn grid_topology(case: &Value) -> ProcessTopology {
    let (class, arguments) = members(case)[0];
    let argument = |name: &str| number(&arguments[name]);
    match class {
        "PipeDataParallelTopology" => ProcessTopology::pipe_data(argument("num_pp"), argument("num_dp")),
        "PipeModelDataParallelTopology" => {
            ProcessTopology::pipe_data_model(argument("num_pp"), argument("num_dp"), argument("num_mp"))
        }
        _ => Ok(topology(arguments)),
    }
    .unwrap()
}

fn check_world(grid: &PipelineGrid, case: &Value) {
    let groups = |axis: &str| -> Vec<Vec<u64>> {
        grid.topology().axis_comm_lists(axis).map(|group| bare(group.iter())).collect()
    };
    assert_eq!(groups("data"), lists(&case["dp_groups"]));
    assert_eq!(groups("pipe"), lists(&case["pipe_groups"]));
    if !case["model_groups"].is_null() {
        assert_eq!(groups("model"), lists(&case["model_groups"]));
    }
    let pairs: Vec<Vec<u64>> = grid.peer_pairs().map(|(from, to)| vec![from.0, to.0]).collect();
    assert_eq!(pairs, lists(&case["p2p_groups"]));
    let ordered: Vec<Vec<u64>> = grid.groups().map(|(_, ranks)| bare(ranks)).collect();
    assert_eq!(ordered, lists(&case["new_group_calls"]));
    let sizes = &case["sizes"];
    for (ours, names) in [
        (grid.n_replicas(), ["data", "data_world"]),
        (grid.n_pipe().into(), ["pipe", "pipe_world"]),
        (grid.n_slices(), ["model", "slice_world"]),
    ] {
        assert_eq!([ours, ours], names.map(|name| number(&sizes[name])));
    }
}

fn check_rank(grid: &PipelineGrid, expected: &Value) {
    let flag = |name: &str| expected[name].as_bool().unwrap();
    assert_eq!(u64::from(grid.pipe_rank()), number(&expected["stage_id"]));
    assert_eq!(grid.replica(), number(&expected["data_parallel_id"]));
    assert_eq!((grid.is_first(), grid.is_last()), (flag("is_first"), flag("is_last")));
    assert_eq!(bare(grid.data_group().iter()), numbers(&expected["dp_group"]));
    assert_eq!(bare(grid.pipe_group().iter()), numbers(&expected["pp_group"]));
    assert_eq!(bare(grid.slice_group().iter()), numbers(&expected["slice_group"]));
    assert_eq!(grid.slice(), number(&expected["slice_rank"]));
    assert_eq!(bare(grid.model_parallel_group()), numbers(&expected["ds_model_group"]));
    assert_eq!(grid.model_parallel_rank(), number(&expected["ds_model_rank"]));
    assert_eq!(grid.model_parallel_group().n_ranks(), number(&expected["ds_model_world_size"]));
    let mapped = |overrides: &[(&str, u64)]| -> Vec<u64> {
        (0..grid.n_pipe()).map(|place| grid.stage_to_rank(PipeRank(place), overrides).unwrap().0).collect()
    };
    assert_eq!(mapped(&[]), numbers(&expected["stage_to_global"]));
    assert_eq!(mapped(&[("data", 0)]), numbers(&expected["stage_to_global_data0"]));
}

#[test]
fn default_grids() {
    for row in list("topology.json", "default_grid") {
        let grid = ProcessTopology::default_grid(number(&row[0])).unwrap();
        assert_eq!((grid.dim("pipe"), grid.dim("data")), (number(&row[1]), number(&row[2])));
        assert_eq!(prime_factors(number(&row[0])), numbers(&row[3]));
    }
}

#[test]
fn factors() {
    for case in list("topology.json", "prime_factors") {
        match case.get("ok") {
            Some(expected) => assert_eq!(prime_factors(number(&case["n"])), numbers(expected)),
            // Upstream refuses 0 and negative numbers: no factors here, and no grid.
            None => assert!(case["n"].as_i64().unwrap() <= 0),
        }
    }
    assert!(ProcessTopology::default_grid(0).is_err());
}

#[test]
fn checkpoint_names() {
    for case in list("topology.json", "checkpoint_names") {
        let topology = topology(&case);
        let rank = Rank(number(&case["rank"]));
        assert_eq!(format!("ckpt/7/{}", topology.module_name(rank).unwrap()), text(&case["ckpt_prefix"]));
        let start = number(&case["local_start"]);
        for (local, name) in [(number(&case["local_idx"]), "ckpt_layer_path"), (97, "ckpt_layer_path_97")] {
            let layer = usize::try_from(start + local).unwrap();
            let file = format!("ckpt/{}.pt", topology.layer_name(rank, layer).unwrap());
            assert_eq!(file, text(&case[name]));
        }
    }
}

#[test]
fn slapo_ties() {
    for case in list("ties.json", "cases") {
        let topology = topology(&case);
        let sets: Vec<Vec<(&str, Option<u32>)>> =
            case["groups"].as_array().unwrap().iter().map(tie_set).collect();
        // A negative stage cannot be written down here.
        let writable = |set: &Vec<(&'_ str, Option<u32>)>| set.iter().all(|(_, stage)| stage.is_some());
        if !sets.iter().all(writable) {
            assert!(case.get("error").is_some() || lists_are_empty(&case["ok"]), "{case}");
            continue;
        }
        let sets: Vec<Vec<(&str, Stage)>> = sets
            .into_iter()
            .map(|set| set.into_iter().filter_map(|(name, stage)| Some((name, Stage(stage?)))).collect())
            .collect();
        let slices: Vec<&[(&str, Stage)]> = sets.iter().map(Vec::as_slice).collect();
        let n_pipe = u32::try_from(topology.dim("pipe")).unwrap();
        let groups = analyze_tie_ranks(&topology, &Placement::linear(n_pipe.max(1)).unwrap(), &slices);
        let out_of_range = sets.iter().flatten().any(|(_, stage)| stage.0 >= n_pipe);
        match (case.get("ok"), groups) {
            (Some(_), Err(TieError::StageOutOfRange { .. })) => assert!(out_of_range, "{case}"),
            (None, Err(_)) => {}
            (Some(expected), Ok(groups)) => {
                assert_eq!(groups.len(), sets.len());
                for group in groups {
                    let ranks = lists(&expected["tie_ranks"][group.index()]);
                    let ranks: Vec<Vec<u64>> = ranks.into_iter().map(unique).collect();
                    assert_eq!(group.replicas().map(bare).collect::<Vec<_>>(), ranks, "{case}");
                    let stages = unique(numbers(&expected["tie_stages"][group.index()]));
                    assert_eq!(
                        group.stages().iter().map(|stage| u64::from(*stage)).collect::<Vec<_>>(),
                        stages
                    );
                }
            }
            (_, groups) => panic!("{case}: {groups:?}"),
        }
    }
}

fn tie_set(set: &Value) -> Vec<(&str, Option<u32>)> {
    let weight = |pair: &'_ Value| (pair[0].as_str().unwrap().to_owned(), pair[1].as_i64().unwrap());
    let pairs = set.as_array().unwrap().iter();
    pairs.map(|pair| (text(&pair[0]), u32::try_from(weight(pair).1).ok())).collect()
}

fn lists_are_empty(ok: &Value) -> bool {
    ok["tie_ranks"]
        .as_array()
        .is_some_and(|groups| groups.iter().any(|group| lists(group).iter().all(Vec::is_empty)))
}

fn unique(sorted: Vec<u64>) -> Vec<u64> {
    sorted.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn deepspeed_ties() {
    for case in list("ties.json", "deepspeed_tied") {
        let topology = topology(&case);
        let parts = numbers(&case["parts"]);
        let uses: Vec<(&str, Stage)> = (0..)
            .zip(texts(&case["layers"]))
            .filter_map(|(layer, name)| {
                let stage = parts.partition_point(|start| *start <= layer) - 1;
                Some((name.strip_suffix(":T")?, Stage(u32::try_from(stage).unwrap())))
            })
            .collect();
        let n_pipe = u32::try_from(topology.dim("pipe")).unwrap();
        let groups = tied_modules(&topology, &Placement::linear(n_pipe).unwrap(), &uses).unwrap();
        if n_pipe == 1 {
            assert!(numbers(&case["new_group_calls"]).is_empty());
            assert!(groups.iter().all(brigade_topology::TieGroup::is_local));
            continue;
        }
        let mut calls: Vec<Vec<u64>> = groups.iter().flat_map(|group| group.replicas().map(bare)).collect();
        let mut expected = lists(&case["new_group_calls"]);
        let axis = |name: &str| topology.axis_names().position(|axis| axis == name);
        if axis("model").is_some_and(|model| Some(model) < axis("data")) {
            calls.sort();
            expected.sort();
        }
        assert_eq!(calls, expected, "{case}");
        for rank in case["ranks"].as_array().unwrap() {
            let id = Rank(number(&rank["rank"]));
            let held: Vec<_> = groups.iter().filter(|group| group.ranks_of(id).is_some()).collect();
            let tied = members(&rank["tied"]);
            assert_eq!(held.iter().map(|group| group.name()).collect::<Vec<_>>(), names(&tied), "{case}");
            for (group, (_, tie)) in held.iter().zip(tied) {
                assert_eq!(bare(group.ranks_of(id).unwrap()), numbers(&tie["ranks"]));
                assert_eq!(group.is_copy(id), tie["replicated"].as_bool().unwrap());
            }
        }
    }
}

fn names<'a>(members: &[(&'a str, &Value)]) -> Vec<&'a str> {
    members.iter().map(|(name, _)| *name).collect()
}
