//! The same numbers in every grid of pipelines and replicas.

use brigade_engine::schedule::Schedule;
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    EngineError, GradientClipping, OptimizerSharding, PipelineEngine, PipelineModule, TrainConfig, World,
};
use burn::optim::AdamWConfig;
use burn::tensor::TensorData;

use super::BATCH;
use crate::support::{cross_entropy, gpt, tokens};

/// A grid and how it trains.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    axes: Vec<(&'static str, u64)>,
    schedule: Schedule,
    /// Micro-batches of each replica.
    m: u32,
    sharding: OptimizerSharding,
    n_blocks: usize,
    n_steps: usize,
}

impl Grid {
    pub(super) fn new(n_pipe: u64, n_data: u64, m: u32) -> Self {
        Self {
            axes: vec![("pipe", n_pipe), ("data", n_data)],
            schedule: Schedule::OneFOneB,
            m,
            sharding: OptimizerSharding::Replicated,
            n_blocks: 6,
            n_steps: 3,
        }
    }

    pub(super) fn sharded(self) -> Self {
        Self { sharding: OptimizerSharding::Sharded, ..self }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    /// Losses of all micro-batches, and the mean, by step.
    losses: Vec<(Vec<f64>, f64)>,
    norms: Vec<Option<f64>>,
    evaluations: Vec<f64>,
    /// By name.
    weights: Vec<(String, TensorData)>,
}

/// Trains a GPT; each replica takes its own part of the global batch.
pub(super) fn run(grid: Grid) -> Run {
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
        Ok::<_, EngineError>(((losses, norms, evaluations), engine.module().parameters()))
    });
    let parts = parts.expect("the run ends well");
    let seen = parts[0].0.clone();
    let mut weights: Vec<(String, TensorData)> = Vec::new();
    for part in parts {
        assert_eq!(part.0, seen, "every rank reports the same");
        weights.extend(part.1.into_iter().map(|named| (named.name, named.data)));
    }
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights.dedup();
    let names: std::collections::BTreeSet<&String> = weights.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), weights.len(), "the replicas have one value for each parameter");
    let (losses, norms, evaluations) = seen;
    Run { losses, norms, evaluations, weights }
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
