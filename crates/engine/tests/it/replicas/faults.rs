//! What goes wrong on one replica is known on all.

use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    Cause, EngineError, Layers, OptimizerSharding, PipelineEngine, PipelineModule, TrainConfig, World,
    WorldError,
};
use burn::module::Param;
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;

use super::{BATCH, dense};
use crate::support::{cross_entropy, gpt, quiet_ranks, tokens};

#[test]
fn replicas_that_start_apart_are_told() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let own = f64::from(u16::try_from(rank.rank().index()).expect("small"));
        let layers = Layers::new().layer(move |d| {
            let mut dense = dense(false, d);
            dense.linear.weight = Param::from_tensor(Tensor::full([3, 3], own, d));
            dense
        });
        let module = PipelineModule::builder(&layers, |y: Tensor<2>, _: Tensor<2>| y.mean())
            .topology(ProcessTopology::pipe_data(1, 2).expect("a grid"))
            .build(&rank)?;
        let engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        Ok::<_, EngineError>(engine.check_copies()?)
    });
    match result {
        Err(WorldError::Rank { source: EngineError::Step(error), .. }) => {
            let text = "`layer_000.linear.weight` has other values on rank 1 than on rank 0";
            assert!(error.cause().to_string().starts_with(text), "{error}");
            assert!(matches!(error.cause(), Cause::CopiesDiffer { .. }));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_that_ends_on_one_replica_is_one_error_on_all_ranks() {
    let result = World::local(4).expect("four ranks").run(|rank| {
        let module = PipelineModule::builder(&gpt(1), cross_entropy)
            .topology(ProcessTopology::pipe_data(2, 2).expect("a grid"))
            .micro_batches(2)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        let n = if engine.module().replica() == 0 { 4 } else { 3 };
        let mut data = (0..n).map(|i| tokens(i, BATCH));
        assert!(engine.train_batch(&mut data)?.is_some(), "the first batch is whole");
        let error = engine.train_batch(&mut data).expect_err("the second is not");
        Ok::<_, EngineError>((error.site().rank.index(), error.cause().to_string()))
    });
    let told = result.expect("every rank is told");
    let text = "rank 2 has 2 micro-batches for this batch, this rank 1: give every rank as many";
    assert!(told.iter().all(|other| *other == (1, text.to_owned())), "{told:?}");
}

/// The others wait at the end of the batch for the rank that fails there.
#[test]
fn a_failure_at_the_end_of_a_batch_reaches_every_replica() {
    quiet_ranks();
    for sharding in [OptimizerSharding::Replicated, OptimizerSharding::Sharded] {
        let result = World::local(4).expect("four ranks").run(move |rank| {
            let module = PipelineModule::builder(&gpt(1), cross_entropy)
                .topology(ProcessTopology::pipe_data(2, 2).expect("a grid"))
                .build(&rank)?;
            let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
            engine.set_optimizer_sharding(sharding)?;
            if rank.rank().index() == 3 {
                engine.observe_gradients(|_| panic!("no more paper"));
            }
            let mut data = (0..).map(|i| tokens(i, BATCH));
            let error = engine.train_batch(&mut data).expect_err("one rank fails");
            Ok::<_, EngineError>((error.site().rank.index(), error.cause().to_string()))
        });
        let told = result.expect("every rank is told");
        let text = "the gradient observer panicked: no more paper";
        assert!(told.iter().all(|other| *other == (3, text.to_owned())), "{told:?}");
    }
}
