//! Replicas of a pipeline: each with its own data, all with the same weights.

use std::process::Command;

use brigade_engine::nn::Dropout;
use brigade_engine::schedule::Schedule;
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    Cause, EngineError, GradientClipping, Layer, Layers, OptimizerSharding, PipelineEngine, PipelineModule,
    TrainConfig, World, WorldError,
};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use crate::support::{cross_entropy, gpt, quiet_ranks, tokens};

const BATCH: usize = 2;

/// A grid and how it trains.
#[derive(Clone, Debug)]
struct Grid {
    axes: Vec<(&'static str, u64)>,
    schedule: Schedule,
    /// Micro-batches of each replica.
    m: u32,
    sharding: OptimizerSharding,
    n_blocks: usize,
    n_steps: usize,
}

impl Grid {
    fn new(n_pipe: u64, n_data: u64, m: u32) -> Self {
        Self {
            axes: vec![("pipe", n_pipe), ("data", n_data)],
            schedule: Schedule::OneFOneB,
            m,
            sharding: OptimizerSharding::Replicated,
            n_blocks: 6,
            n_steps: 3,
        }
    }

    fn sharded(self) -> Self {
        Self { sharding: OptimizerSharding::Sharded, ..self }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Run {
    /// Losses of all micro-batches, and the mean, by step.
    losses: Vec<(Vec<f64>, f64)>,
    norms: Vec<Option<f64>>,
    evaluations: Vec<f64>,
    /// By name.
    weights: Vec<(String, TensorData)>,
}

/// Trains a GPT; each replica takes its own part of the global batch. Returns beside the run the bytes
/// of the optimizer's states on each rank.
fn train(grid: Grid) -> (Run, Vec<usize>) {
    let n_ranks = usize::try_from(grid.axes.iter().map(|(_, size)| size).product::<u64>()).expect("small");
    let parts = World::local(n_ranks).expect("a few ranks").run(move |rank| {
        let schedule = grid.schedule;
        let module = PipelineModule::builder(&gpt(grid.n_blocks), cross_entropy)
            .topology(ProcessTopology::new(&grid.axes).expect("a grid"))
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(grid.m)
            .build(&rank)?;
        let optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
        let mut engine = PipelineEngine::new(module, optimizer, TrainConfig::new(0.01))?;
        engine.set_gradient_clipping(Some(GradientClipping::GlobalNorm(0.5)))?;
        engine.set_optimizer_sharding(grid.sharding)?;
        let m = usize::try_from(grid.m).expect("small");
        let (replica, n_replicas) = (engine.module().replica(), engine.module().n_replicas());
        let ours = move |serial: &usize| (serial / m) % n_replicas == replica;
        let mut data = (0..grid.n_steps * m * n_replicas).filter(ours).map(|i| tokens(i, BATCH));
        let (mut losses, mut norms, mut evaluations) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(report) = engine.train_batch(&mut data)? {
            losses.push((report.micro_batch_losses, report.loss));
            norms.push(report.gradient_norm);
            engine.check_copies()?;
            let mut held_back = (50 + m * replica..).map(|serial| tokens(serial, BATCH));
            evaluations.push(engine.eval_batch(&mut held_back, grid.m)?.expect("endless data").loss);
        }
        let bytes = engine.optimizer_state_bytes()?;
        Ok::<_, EngineError>(((losses, norms, evaluations), engine.module().parameters(), bytes))
    });
    let parts = parts.expect("the run ends well");
    let seen = parts[0].0.clone();
    let mut weights: Vec<(String, TensorData)> = Vec::new();
    let mut bytes = Vec::new();
    for part in parts {
        assert_eq!(part.0, seen, "every rank reports the same");
        weights.extend(part.1.into_iter().map(|named| (named.name, named.data)));
        bytes.push(part.2);
    }
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights.dedup();
    let names: std::collections::BTreeSet<&String> = weights.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), weights.len(), "the replicas have one value for each parameter");
    let (losses, norms, evaluations) = seen;
    (Run { losses, norms, evaluations, weights }, bytes)
}

fn run(grid: Grid) -> Run {
    train(grid).0
}

/// Within the last digits of f32: the same numbers, added in another order.
fn assert_close(found: &Run, expected: &Run, what: &str) {
    let close = |a: f64, b: f64, scale: f64| {
        assert!((a - b).abs() <= 2e-5 * scale, "{what}: {a} and {b}, of {scale}");
    };
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert_eq!(found.0.len(), expected.0.len(), "{what}");
        found.0.iter().zip(&expected.0).for_each(|(&a, &b)| close(a, b, b.abs()));
        close(found.1, expected.1, expected.1.abs());
    }
    for (&found, &expected) in found.norms.iter().zip(&expected.norms) {
        let expected = expected.expect("a norm");
        close(found.expect("a norm"), expected, expected);
    }
    assert_eq!(found.weights.len(), expected.weights.len(), "{what}");
    for ((name, found), (other, expected)) in found.weights.iter().zip(&expected.weights) {
        assert_eq!(name, other, "{what}");
        let largest = expected.iter::<f64>().map(f64::abs).fold(0.0, f64::max);
        found.iter::<f64>().zip(expected.iter::<f64>()).for_each(|(a, b)| close(a, b, largest));
    }
}

/// With one micro-batch a replica the sums have the same order, so the bits are equal.
#[test]
fn replicas_of_one_micro_batch_equal_one_replica_of_many_bit_for_bit() {
    for n_data in 2..=4 {
        let mut expected = run(Grid::new(1, 1, u32::try_from(n_data).expect("small")));
        for n_pipe in 1..=2 {
            let found = run(Grid::new(n_pipe, n_data, 1));
            // Evaluations have other numbers of micro-batches, on the same data.
            expected.evaluations.clone_from(&found.evaluations);
            assert_eq!(found, expected, "{n_pipe} x {n_data}");
        }
    }
}

#[test]
fn replicas_of_several_micro_batches_equal_one_replica_of_all() {
    let expected = run(Grid::new(1, 1, 8));
    for (n_pipe, n_data, m) in [(1, 2, 4), (2, 2, 4), (1, 4, 2), (2, 4, 2), (3, 2, 4)] {
        assert_close(&run(Grid::new(n_pipe, n_data, m)), &expected, &format!("{n_pipe} x {n_data}"));
    }
}

#[test]
fn eight_ranks_in_any_grid_train_equally() {
    let expected = run(Grid::new(8, 1, 8));
    for (n_pipe, n_data, m) in [(4, 2, 4), (2, 4, 2), (1, 8, 1)] {
        assert_close(&run(Grid::new(n_pipe, n_data, m)), &expected, &format!("{n_pipe} x {n_data}"));
    }
}

/// A replica's numbers do not depend on the stages, the schedule or where the grid puts its ranks.
#[test]
fn the_split_and_the_order_of_the_axes_change_no_bit() {
    let expected = run(Grid::new(1, 2, 4));
    for n_pipe in 2..=4 {
        assert_eq!(run(Grid::new(n_pipe, 2, 4)), expected, "{n_pipe} stages");
    }
    let turned = Grid { axes: vec![("data", 2), ("pipe", 2)], ..Grid::new(2, 2, 4) };
    assert_eq!(run(turned), expected, "data before pipe");
    let with_model = Grid { axes: vec![("data", 2), ("model", 1), ("pipe", 2)], ..Grid::new(2, 2, 4) };
    assert_eq!(run(with_model), expected, "an axis of size 1");
    for schedule in [Schedule::GPipe, Schedule::ZbH1, Schedule::Interleaved { n_virtual: 2 }, Schedule::ZbV] {
        let grid = Grid { schedule, ..Grid::new(2, 2, 4) };
        assert_eq!(run(grid), expected, "{schedule}");
    }
}

/// Two ranks of each replica hold each stage: four copies of each parameter.
#[test]
fn replicas_of_a_pipeline_in_both_directions_train_equally() {
    let expected = run(Grid::new(1, 1, 8));
    for n_pipe in 2..=4 {
        let grid = Grid { schedule: Schedule::DualPipe, ..Grid::new(n_pipe, 2, 4) };
        let found = run(grid.clone());
        assert_close(&found, &expected, &format!("{n_pipe} stages"));
        assert_eq!(run(grid.sharded()), found, "{n_pipe} stages");
    }
}

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

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
    #[module(skip)]
    passes: bool,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        if self.passes { x } else { x.clone() + self.linear.forward(x) }
    }
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

fn dense(passes: bool, device: &Device) -> Dense {
    Dense { linear: LinearConfig::new(3, 3).init(device), passes }
}

fn rows(serial: usize) -> (Tensor<2>, Tensor<2>) {
    let x = f64::from(u16::try_from(serial).expect("small")).sin();
    (Tensor::full([2, 3], x, &Device::flex()), Tensor::full([2, 3], 0.5, &Device::flex()))
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

/// Runs alone in a process of its own: other tests of this one would be measured too.
#[test]
fn a_thousand_steps_keep_memory_flat() {
    const CHILD: &str = "BRIGADE_TEST_MEMORY_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let this = std::env::current_exe().expect("this test");
        let name = "replicas::a_thousand_steps_keep_memory_flat";
        let child = Command::new(this).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
        let child = child.expect("the process starts");
        let output = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success() && output.contains("1 passed"), "{output}");
        return;
    }
    let grown = World::local(4).expect("four ranks").run(|rank| {
        let layers = Layers::new()
            .tied("ends", ["linear.weight"], |d| dense(false, d))
            .repeat(2, |_, d| dense(false, d))
            .tied("ends", ["linear.weight"], |d| dense(false, d));
        let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
        let module = PipelineModule::builder(&layers, mean_square)
            .topology(ProcessTopology::pipe_data(2, 2).expect("a grid"))
            .micro_batches(2)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(1e-3))?;
        engine.set_optimizer_sharding(OptimizerSharding::Sharded)?;
        let mut data = (0..).map(|serial| rows(serial % 100));
        let mut resident = Vec::new();
        for step in 0..1_600 {
            engine.train_batch(&mut data)?.expect("endless data");
            if step == 399 || step == 1_599 {
                resident.push(resident_bytes());
            }
        }
        engine.check_copies()?;
        Ok::<_, EngineError>(resident[1].saturating_sub(resident[0]))
    });
    // A tensor of this model kept in each step would be 36 bytes and its bookkeeping, 1200 times; whole
    // pages come and go by the allocator's will.
    let grown = grown.expect("the run ends well")[0];
    assert!(grown < 512 * 1024, "{grown} bytes in 1200 steps");
}

/// Memory of this process; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * 4096
}
