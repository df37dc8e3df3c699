//! Optimizer states on all replicas, or a part of them on each.

use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    EngineError, Layers, OptimizerSharding, PipelineEngine, PipelineModule, TrainConfig, World,
};
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};

use super::grids::{Grid, run};
use super::{BATCH, Dense};
use crate::support::{cross_entropy, gpt, tokens};

#[test]
fn sharded_optimizer_states_change_no_bit() {
    for (n_pipe, n_data, m) in [(1, 2, 2), (2, 2, 2), (1, 4, 1), (2, 4, 1)] {
        let grid = Grid::new(n_pipe, n_data, m);
        assert_eq!(run(grid.clone().sharded()), run(grid), "{n_pipe} x {n_data}");
    }
    assert_eq!(
        run(Grid::new(2, 1, 2).sharded()),
        run(Grid::new(2, 1, 2)),
        "one replica has nothing to share"
    );
}

/// Bytes of the optimizer's states on each rank, for layers large enough that names do not count.
fn state_bytes(n_pipe: u64, n_data: u64, sharding: OptimizerSharding) -> Vec<usize> {
    let n_ranks = usize::try_from(n_pipe * n_data).expect("small");
    let parts = World::local(n_ranks).expect("a few ranks").run(move |rank| {
        let layers = Layers::new()
            .repeat(16, |_, d| Dense { linear: LinearConfig::new(64, 64).init(d), passes: false });
        let module = PipelineModule::builder(&layers, |y: Tensor<2>, _: ()| y.mean())
            .topology(ProcessTopology::pipe_data(n_pipe, n_data).expect("a grid"))
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        engine.set_optimizer_sharding(sharding)?;
        let mut data = std::iter::repeat_with(|| (Tensor::ones([1, 64], &Device::flex()), ()));
        engine.train_batch(&mut data)?.expect("endless data");
        Ok::<_, EngineError>(engine.optimizer_state_bytes()?)
    });
    parts.expect("the run ends well")
}

#[test]
fn each_replica_keeps_its_part_of_the_sharded_states() {
    for (n_pipe, n_data) in [(1, 2), (2, 2), (1, 4), (2, 4)] {
        let whole = state_bytes(n_pipe, n_data, OptimizerSharding::Replicated);
        let parts = state_bytes(n_pipe, n_data, OptimizerSharding::Sharded);
        let replicas = usize::try_from(n_data).expect("small");
        for (rank, (part, whole)) in parts.iter().zip(&whole).enumerate() {
            // Two moments of 16 weights and biases over the stages; within a twentieth.
            assert!(*whole > 2 * 4 * 16 * 64 * 65 / usize::try_from(n_pipe).expect("small"));
            let share = part * replicas * 20;
            assert!(share > whole * 19 && share < whole * 21, "rank {rank}: {part} of {whole} bytes");
        }
    }
}

#[test]
fn sharding_is_decided_before_the_first_step() {
    let result = World::local(1).expect("one rank").run(|rank| {
        let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        engine.train_batch(&mut (0..1).map(|i| tokens(i, BATCH)))?;
        engine.set_optimizer_sharding(OptimizerSharding::Sharded)
    });
    let error = result.expect_err("too late").to_string();
    assert!(error.contains("cannot be sharded after step 1"), "{error}");
}

#[test]
fn ranks_that_shard_differently_are_told_before_anything_runs() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let module = PipelineModule::builder(&gpt(1), cross_entropy)
            .topology(ProcessTopology::pipe_data(1, 2).expect("a grid"))
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        if rank.rank().index() == 1 {
            engine.set_optimizer_sharding(OptimizerSharding::Sharded)?;
        }
        engine.train_batch(&mut (0..1).map(|i| tokens(i, BATCH)))?;
        Ok::<_, EngineError>(())
    });
    let error = result.expect_err("they differ").to_string();
    assert!(error.contains("every rank must make the same calls"), "{error}");
    assert!(error.contains("optimizer Sharded"), "{error}");
}
