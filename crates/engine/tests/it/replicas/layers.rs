//! Layers that draw, gather statistics or train nothing, in replicas.

use brigade_engine::nn::Dropout;
use brigade_engine::schedule::Schedule;
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    EngineError, GradientClipping, Layer, Layers, OptimizerSharding, PipelineEngine, PipelineModule,
    TrainConfig, World,
};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use super::{dense, rows};

#[derive(Module, Debug)]
struct Dropped {
    linear: Linear,
    dropout: Dropout,
}

impl Layer for Dropped {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(self.dropout.forward(x))
    }
}

/// The random numbers of a micro-batch are those of its number over all replicas.
#[test]
fn dropout_is_the_same_in_replicas_as_in_one_replica_of_all() {
    let weights = |n_pipe: u64, n_data: u64, m: u32| {
        let n_ranks = usize::try_from(n_pipe * n_data).expect("small");
        let parts = World::local(n_ranks).expect("a few ranks").run(move |rank| {
            let layers = Layers::new().repeat(2, |_, d| Dropped {
                linear: LinearConfig::new(3, 3).init(d),
                dropout: Dropout::new(0.5).expect("a probability"),
            });
            let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
            let module = PipelineModule::builder(&layers, mean_square)
                .topology(ProcessTopology::pipe_data(n_pipe, n_data).expect("a grid"))
                .micro_batches(m)
                .build(&rank)?;
            let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
            let (replica, n_replicas) = (engine.module().replica(), engine.module().n_replicas());
            let m = usize::try_from(m).expect("small");
            let ours = move |serial: &usize| (serial / m) % n_replicas == replica;
            let mut data = (0..12).filter(ours).map(rows);
            let mut losses = Vec::new();
            while let Some(report) = engine.train_batch(&mut data)? {
                losses.push(report.loss);
            }
            let values: Vec<_> = engine.module().parameters().into_iter().map(|named| named.data).collect();
            Ok::<_, EngineError>((losses, values))
        });
        parts.expect("the run ends well").swap_remove(0)
    };
    assert_eq!(weights(1, 4, 1), weights(1, 1, 4));
    assert_eq!(weights(2, 2, 2).0.len(), 3);
}

#[derive(Module, Debug)]
struct Twice;

impl Layer for Twice {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x * 2.0
    }
}

/// Stages of frozen layers, of layers without parameters and of layers that use none of them: each takes
/// part in every collective, with nothing to give.
#[test]
fn stages_that_train_nothing_take_part_in_every_collective() {
    for sharding in [OptimizerSharding::Replicated, OptimizerSharding::Sharded] {
        let parts = World::local(10).expect("ten ranks").run(move |rank| {
            let layers = Layers::new()
                .layer(|d| dense(false, d))
                .layer(|d| dense(false, d).no_grad())
                .layer(|_| Twice)
                .layer(|d| dense(true, d))
                .layer(|d| dense(false, d));
            let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
            let module = PipelineModule::builder(&layers, mean_square)
                .topology(ProcessTopology::pipe_data(5, 2).expect("a grid"))
                .partition("uniform".parse()?)
                .micro_batches(2)
                .build(&rank)?;
            let before = module.parameters();
            let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
            engine.set_gradient_clipping(Some(GradientClipping::GlobalNorm(1.0)))?;
            engine.set_optimizer_sharding(sharding)?;
            let first = 6 * engine.module().replica();
            let mut data = (first..first + 6).map(rows);
            let mut n_steps = 0;
            while engine.train_batch(&mut data)?.is_some() {
                engine.check_copies()?;
                n_steps += 1;
            }
            assert_eq!(n_steps, 3);
            let after = engine.module().parameters();
            let moved = before.iter().zip(&after).any(|(before, after)| before.data != after.data);
            Ok::<_, EngineError>(moved)
        });
        let moved = parts.expect("the run ends well");
        let expected = [true, false, false, false, true];
        let by_stage: Vec<bool> = moved.chunks(2).map(|replicas| replicas[0]).collect();
        assert_eq!(by_stage, expected);
        assert_eq!(moved.chunks(2).map(|replicas| replicas[1]).collect::<Vec<_>>(), expected);
    }
}

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Layer for Normed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.norm.forward::<2>(self.linear.forward(x))
    }
}

/// Replicas, and both holders of a stage, gather statistics of other micro-batches; after each step all
/// have those of the first, so that an evaluation does not depend on where a micro-batch runs.
#[test]
fn running_statistics_are_those_of_the_first_copy() {
    let run = |schedule: Schedule, n_pipe: u64, n_data: u64, m: u32| {
        let n_ranks = usize::try_from(n_pipe * n_data).expect("small");
        let parts = World::local(n_ranks).expect("a few ranks").run(move |rank| {
            let layers = Layers::new().repeat(4, |_, d| Normed {
                linear: LinearConfig::new(3, 3).init(d),
                norm: BatchNormConfig::new(3).init(d),
            });
            let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
            let module = PipelineModule::builder(&layers, mean_square)
                .topology(ProcessTopology::pipe_data(n_pipe, n_data).expect("a grid"))
                .partition("uniform".parse()?)
                .schedule(move |shape| schedule.plan(shape))
                .micro_batches(m)
                .build(&rank)?;
            // No learning: the statistics alone change.
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.0))?;
            let first = 20 * engine.module().replica();
            let mut data = (first..).map(spread);
            for _ in 0..3 {
                engine.train_batch(&mut data)?;
                engine.check_copies()?;
            }
            let mut held_back = std::iter::repeat_with(|| spread(99));
            let report = engine.eval_batch(&mut held_back, 2)?.expect("endless data");
            Ok::<_, EngineError>(report.micro_batch_losses)
        });
        parts.expect("the run ends well").swap_remove(0)
    };
    let alone = run(Schedule::OneFOneB, 1, 1, 2);
    assert_eq!(alone[0], alone[1], "one micro-batch, twice");
    for n_pipe in 1..=2 {
        let replicas = run(Schedule::OneFOneB, n_pipe, 2, 2);
        assert_eq!(replicas, [alone[0]; 4], "the first replica has seen what the one has seen");
    }
    let both_ways = run(Schedule::DualPipe, 2, 1, 4);
    assert_eq!(both_ways[0], both_ways[1], "one micro-batch, in each direction");
    assert_ne!(both_ways[0], alone[0], "of the even micro-batches");
}

/// Rows that differ from each other, as batch normalisation needs them.
fn spread(serial: usize) -> (Tensor<2>, Tensor<2>) {
    let serial = f64::from(u16::try_from(serial).expect("small"));
    let values: Vec<f32> = (0..12_u8)
        .map(|i| format!("{:.5}", (f64::from(i) * (1.3 + serial)).sin()).parse().expect("a number"))
        .collect();
    let x = Tensor::from_data(TensorData::new(values, [4, 3]), &Device::flex());
    (x, Tensor::full([4, 3], 0.5, &Device::flex()))
}
