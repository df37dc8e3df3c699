//! Wrong input: every answer is a typed error that names the facts.

use brigade_topology::{
    Direction, LookupError, NodeError, Nodes, PipeRank, PipelineGrid, Placement, PlacementError,
    ProcessTopology, Rank, Stage, TieError, TopologyError, analyze_tie_ranks, tied_modules,
};

#[test]
fn bad_axes() {
    for name in ["", "_x", "1x", "a-b", "a b", "x\n"] {
        let refused = ProcessTopology::new(&[(name, 2)]);
        assert_eq!(refused, Err(TopologyError::InvalidName { name: name.to_owned() }));
    }
    assert!(matches!(ProcessTopology::new(&[("lambda", 2)]), Err(TopologyError::ReservedName { .. })));
    assert!(matches!(ProcessTopology::new(&[("x", 0)]), Err(TopologyError::EmptyAxis { .. })));
    let too_large = ProcessTopology::new(&[("a", 2), ("b", 1 << 32), ("c", 1 << 31)]);
    assert_eq!(too_large, Err(TopologyError::TooLarge { name: "a".to_owned() }));
}

#[test]
fn the_largest_world_works() {
    let topology = ProcessTopology::new(&[("a", 3), ("b", u64::MAX / 3)]).unwrap();
    let last = Rank(topology.world_size() - 1);
    assert_eq!(topology.coord(last).unwrap().get("a"), Some(2));
    assert_eq!(topology.rank(&topology.coord(last).unwrap().iter().collect::<Vec<_>>()), Ok(last));
    assert_eq!(topology.filter_match(&[]).unwrap().last_rank(), Some(last));
    assert_eq!(topology.axis_comm_lists("a").next_back().unwrap().iter().next_back(), Some(last));
    assert!(topology.coord(Rank(u64::MAX)).is_err());
}

trait LastRank {
    fn last_rank(self) -> Option<Rank>;
}

impl LastRank for brigade_topology::FilterMatch {
    /// Like `last`, which would walk a world of 2^64.
    fn last_rank(mut self) -> Option<Rank> {
        self.next_back()
    }
}

#[test]
fn a_world_without_axes_has_one_rank() {
    let topology = ProcessTopology::new(&[]).unwrap();
    assert_eq!(topology.world_size(), 1);
    assert_eq!(topology.rank(&[]), Ok(Rank(0)));
    assert_eq!(topology.coord(Rank(0)).unwrap().iter().count(), 0);
    assert!(topology.filter_match(&[]).unwrap().eq([Rank(0)]));
    assert!(matches!(topology.rank(&[("x", 0)]), Err(LookupError::UnknownAxis { .. })));
}

#[test]
fn bad_coordinates() {
    let topology = ProcessTopology::pipe_data(2, 3).unwrap();
    let error = |coord: &[(&str, u64)]| topology.rank(coord).unwrap_err().to_string();
    assert_eq!(
        error(&[("pipe", 2), ("data", 0)]),
        "coordinate 2 on axis \"pipe\" is out of range; the axis has size 2"
    );
    assert_eq!(error(&[("pipe", 0), ("pipe", 0)]), "axis \"pipe\" is given twice");
    assert_eq!(
        error(&[("pipe", 9), ("model", 0)]),
        "no axis \"model\" in this topology, which has pipe, data"
    );
    assert!(error(&[("data", 0)]).starts_with("the coordinate on axis \"pipe\" is missing"));
    assert!(topology.filter_match(&[("data", 0), ("data", 0)]).is_err());
    assert!(topology.axis_comm_list_of("pipe", Rank(6)).is_err());
    assert!(topology.module_name(Rank(6)).is_err() && topology.layer_name(Rank(6), 0).is_err());
}

#[test]
fn bad_grids_and_ties() {
    let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2).unwrap(), Rank(1)).unwrap();
    assert!(grid.stage_to_rank(PipeRank(2), &[]).is_err());
    assert!(grid.stage_to_rank(PipeRank(0), &[("pipe", 1)]).is_err());
    assert!(grid.stage_to_rank(PipeRank(0), &[("model", 0)]).is_err());
    assert!(PipelineGrid::new(ProcessTopology::pipe_data(2, 2).unwrap(), Rank(4)).is_err());
    assert!(PipelineGrid::new(ProcessTopology::pipe_data(1 << 32, 1).unwrap(), Rank(4)).is_err());

    let topology = ProcessTopology::pipe_data(2, 1).unwrap();
    let (linear, longer) = (Placement::linear(2).unwrap(), Placement::linear(3).unwrap());
    assert_eq!(
        analyze_tie_ranks(&topology, &linear, &[&[("a", Stage(0))], &[]]),
        Err(TieError::Empty { index: 1 })
    );
    let mismatch = tied_modules(&topology, &longer, &[("a", Stage(0))]);
    assert_eq!(mismatch, Err(TieError::PlacementMismatch { n_ranks: 3, n_pipe: 2 }));
    let outside = tied_modules(&topology, &linear, &[("a", Stage(0)), ("a", Stage(2))]);
    assert!(outside.unwrap_err().to_string().contains("weight \"a\" is on stage 2"));
    let no_pipe = ProcessTopology::new(&[("data", 2)]).unwrap();
    assert_eq!(tied_modules(&no_pipe, &linear, &[("a", Stage(0))]), Err(TieError::NoPipeAxis));
    assert_eq!(tied_modules(&topology, &linear, &[]), Ok(Vec::new()));
}

#[test]
fn bad_placements() {
    assert!(matches!(Placement::looped(0, 2), Err(PlacementError::Empty { .. })));
    assert!(matches!(Placement::looped(2, 0), Err(PlacementError::Empty { .. })));
    assert!(matches!(Placement::looped(1 << 16, 1 << 16), Err(PlacementError::TooManyStages { .. })));
    assert!(matches!(Placement::v(1 << 31), Err(PlacementError::TooManyStages { .. })));
    assert!(matches!(Placement::bidirectional(0), Err(PlacementError::Empty { .. })));
    let both = Placement::bidirectional(3).unwrap();
    assert!(matches!(both.rank_of(Stage(3)), Err(PlacementError::StageOutOfRange { .. })));
    assert!(both.holders_of(Stage(3)).is_err());
    assert!(both.rank_towards(Stage(3), Direction::Up).is_err());
    let missing = both.stage_at(PipeRank(1), 1);
    assert_eq!(missing, Err(PlacementError::LocalOutOfRange { local: 1, stages_per_rank: 1 }));
    let v = Placement::v(3).unwrap();
    assert!(matches!(v.rank_of(Stage(6)), Err(PlacementError::StageOutOfRange { .. })));
    assert!(matches!(v.stage_at(PipeRank(3), 0), Err(PlacementError::RankOutOfRange { .. })));
    assert!(matches!(v.stage_at(PipeRank(0), 2), Err(PlacementError::LocalOutOfRange { .. })));
    for text in ["", "linear", "linear:", "linear:x", "v:-1", "v:+1", "looped:2", "looped:2x", "w:2", "V:2"] {
        assert!(matches!(text.parse::<Placement>(), Err(PlacementError::Syntax { .. })), "{text}");
    }
    assert!(serde_json::from_str::<Placement>("\"v:0\"").is_err());
}

#[test]
fn bad_nodes() {
    assert_eq!(Nodes::new(0), Err(NodeError::NoRanks));
    let topology = ProcessTopology::pipe_data(2, 2).unwrap();
    let nodes = Nodes::new(2).unwrap();
    assert!(nodes.suggest_order(&topology, &[("model", 1)]).is_err());
    assert!(nodes.suggest_order(&topology, &[("pipe", 1), ("pipe", 2)]).is_err());
}
