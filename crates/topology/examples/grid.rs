//! Draws a grid of ranks and says which axes cross machines.
//!
//! `cargo run -p brigade-topology --example grid -- 4 2 4 8`: 4 pipeline ranks, 2 replicas, 4 slices,
//! 8 ranks a machine.

use std::io::Write;

use brigade_topology::{Nodes, PipeRank, PipelineGrid, Placement, ProcessTopology, Rank};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<u64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let size = |position: usize, default: u64| given.get(position).copied().unwrap_or(default);
    let topology = ProcessTopology::pipe_data_model(size(0, 4), size(1, 2), size(2, 4))?;
    let nodes = Nodes::new(size(3, 8))?;
    let mut out = std::io::stdout().lock();

    writeln!(out, "{topology}: {} ranks", topology.world_size())?;
    let grid = PipelineGrid::new(topology.clone(), Rank(0))?;
    for pipe in topology.axis_comm_lists("pipe") {
        writeln!(out, "pipeline {pipe} on {} machines", nodes.n_nodes_of(&pipe))?;
    }
    let v = Placement::v(grid.n_pipe())?;
    for rank in (0..grid.n_pipe()).map(PipeRank) {
        let stages: Vec<String> = v.stages_of(rank)?.map(|stage| stage.to_string()).collect();
        writeln!(out, "pipeline rank {rank} holds stages {} of {v}", stages.join(", "))?;
    }
    let crossing: Vec<&str> = nodes.crossing_axes(&topology).collect();
    writeln!(out, "axes that cross machines: {}", crossing.join(", "))?;
    let order = nodes.suggest_order(&topology, &[("pipe", 1), ("data", 20), ("model", 300)])?;
    writeln!(out, "with 300 times the traffic on model: {}", order.topology)?;

    // Whatever the sizes, every rank is in exactly one pipeline, and the proposal is no worse.
    let in_pipelines: u64 = topology.axis_comm_lists("pipe").map(|pipe| pipe.len()).sum();
    assert_eq!(in_pipelines, topology.world_size());
    assert!(order.crossing.len() <= 3);
    Ok(())
}
