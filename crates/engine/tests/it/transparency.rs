//! A pipeline gives the numbers of the same layers unsplit, bit for bit, at any number of stages.

use std::collections::BTreeMap;
use std::sync::mpsc;

use brigade_engine::schedule::{Schedule, Shape};
use brigade_engine::{EngineError, NamedTensor, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::module::Module;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, TensorData};

use crate::support::{Unsplit, cross_entropy, gpt, gradient_values, tokens, values};

const BATCH: usize = 2;
const LEARNING_RATE: f64 = 0.01;

/// What a run shows at each step, and the weights at its end.
#[derive(Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    evaluations: Vec<f64>,
    gradients: Vec<Vec<TensorData>>,
    weights: Vec<TensorData>,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
struct Case {
    n_blocks: usize,
    n_micro_batches: usize,
    n_steps: usize,
    optimizer: &'static str,
}

impl Case {
    fn m(self) -> u32 {
        u32::try_from(self.n_micro_batches).expect("small")
    }

    fn make_optimizer(self) -> ModuleOptimizer {
        match self.optimizer {
            "adamw" => AdamWConfig::new().with_weight_decay(0.01).init(),
            "momentum" => {
                let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: false };
                SgdConfig::new().with_momentum(Some(momentum)).init()
            }
            "sgd" => SgdConfig::new().init(),
            other => panic!("no optimizer {other}"),
        }
    }
}

/// A plain Burn loop: every micro-batch forward and backward at once, then the step.
fn unsplit(case: Case) -> Run {
    let mut runs = World::local(1)
        .expect("one rank")
        .run(move |_| {
            let device = Device::flex().autodiff();
            let mut model = Unsplit::new(case.n_blocks, &device);
            let mut optimizer = case.make_optimizer();
            let mut run = Run { losses: vec![], evaluations: vec![], gradients: vec![], weights: vec![] };
            let m = case.n_micro_batches;
            for step in 0..case.n_steps {
                let mut accumulator = GradientsAccumulator::new();
                let mut losses = Vec::new();
                for i in 0..m {
                    let (ids, targets) = tokens(step * m + i, BATCH);
                    let loss = cross_entropy(model.forward(ids.autodiff()), targets.autodiff());
                    losses.push(f64::from(loss.clone().into_scalar::<f32>()));
                    let gradients = (loss / f64::from(case.m())).backward();
                    accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
                }
                let gradients = accumulator.grads();
                run.losses.push(losses.iter().sum::<f64>() / f64::from(case.m()));
                run.gradients.push(gradient_values(&model, &gradients));
                model = optimizer.step(LEARNING_RATE, model, gradients);
                let frozen = model.valid();
                let held_back = (0..=m).map(|i| {
                    let (ids, targets) = tokens(50 + i, BATCH);
                    f64::from(cross_entropy(frozen.forward(ids), targets).into_scalar::<f32>())
                });
                run.evaluations.push(held_back.sum::<f64>() / f64::from(case.m() + 1));
            }
            run.weights = values(&model);
            Ok::<_, EngineError>(run)
        })
        .expect("the plain loop runs");
    runs.remove(0)
}

/// Tensors of one rank under the names of their layers, in the order of each layer's fields. A layer that
/// two ranks hold must be equal on both.
fn by_layer(whole: &mut BTreeMap<String, Vec<TensorData>>, named: Vec<NamedTensor>) {
    let mut here: BTreeMap<String, Vec<TensorData>> = BTreeMap::new();
    for NamedTensor { name, data } in named {
        let layer = name.split('.').next().expect("a layer").to_owned();
        here.entry(layer).or_default().push(data);
    }
    for (layer, tensors) in here {
        if let Some(other) = whole.get(&layer) {
            assert_eq!(*other, tensors, "both copies of {layer}");
        }
        whole.insert(layer, tensors);
    }
}

/// The same training through a pipeline of `n_ranks` ranks, with an evaluation after each step.
fn pipeline(schedule: Schedule, n_ranks: usize, case: Case) -> Run {
    let parts = World::local(n_ranks)
        .expect("a few ranks")
        .run(move |rank| {
            let module = PipelineModule::builder(&gpt(case.n_blocks), cross_entropy)
                .schedule(move |shape| schedule.plan(shape))
                .micro_batches(case.m())
                .build(&rank)?;
            let config = TrainConfig::new(LEARNING_RATE);
            let mut engine = PipelineEngine::new(module, case.make_optimizer(), config)?;
            let (sender, gradients) = mpsc::channel();
            engine.observe_gradients(move |named| sender.send(named.to_vec()).expect("the test listens"));
            let mut source = (0..case.n_steps * case.n_micro_batches).map(|serial| tokens(serial, BATCH));
            let (mut losses, mut evaluations) = (Vec::new(), Vec::new());
            while let Some(report) = engine.train_batch(&mut source)? {
                losses.push(report.loss);
                let mut held_back = (50..).map(|serial| tokens(serial, BATCH));
                let report = engine.eval_batch(&mut held_back, case.m() + 1)?.expect("endless data");
                evaluations.push(report.loss);
            }
            let gradients: Vec<_> = gradients.try_iter().collect();
            Ok::<_, EngineError>((losses, evaluations, gradients, engine.module().parameters()))
        })
        .expect("the pipeline runs");
    let (losses, evaluations) = (parts[0].0.clone(), parts[0].1.clone());
    let mut gradients = vec![BTreeMap::new(); case.n_steps];
    let mut weights = BTreeMap::new();
    for part in parts {
        assert_eq!((&part.0, &part.1), (&losses, &evaluations), "every rank reports the same losses");
        for (step, named) in part.2.into_iter().enumerate() {
            by_layer(&mut gradients[step], named);
        }
        by_layer(&mut weights, part.3);
    }
    let flat = |layers: BTreeMap<String, Vec<TensorData>>| layers.into_values().flatten().collect();
    Run { losses, evaluations, gradients: gradients.into_iter().map(flat).collect(), weights: flat(weights) }
}

/// Numbers of two directions: each rank that holds a stage adds the gradients of its micro-batches up, the
/// even or the odd ones, so that sums of more than two have another order.
fn compare_closely(found: &Run, reference: &Run, case: &str) {
    let close = |found: f64, expected: f64, largest: f64| {
        assert!((found - expected).abs() <= 1e-5 * largest, "{found} and {expected} of {largest}, {case}");
    };
    let losses = found.losses.iter().zip(&reference.losses);
    for (&found, &expected) in losses.chain(found.evaluations.iter().zip(&reference.evaluations)) {
        close(found, expected, expected.abs());
    }
    assert_eq!(found.losses.len(), reference.losses.len(), "{case}");
    let gradients = found.gradients.iter().zip(&reference.gradients);
    for (found, expected) in gradients.chain([(&found.weights, &reference.weights)]) {
        // Of all tensors, since some gradients are nothing but what rounding leaves of zero.
        let largest = expected.iter().flat_map(|t| t.iter::<f64>().collect::<Vec<_>>());
        let largest = largest.map(f64::abs).fold(0.0, f64::max);
        for (found, expected) in found.iter().zip(expected) {
            found.iter::<f64>().zip(expected.iter::<f64>()).for_each(|(f, e)| close(f, e, largest));
        }
    }
    let shapes = |run: &Run| run.gradients.iter().chain([&run.weights]).map(Vec::len).collect::<Vec<_>>();
    assert_eq!(shapes(found), shapes(reference), "{case}");
}

fn compare(schedule: Schedule, n_ranks: usize, case: Case, reference: &Run) {
    let found = pipeline(schedule, n_ranks, case);
    let goes_both_ways = schedule == Schedule::DualPipe && n_ranks > 1 && case.n_micro_batches > 2;
    let case = format!("{schedule}, p={n_ranks}, {case:?}");
    if goes_both_ways {
        return compare_closely(&found, reference, &case);
    }
    assert_eq!(found.losses, reference.losses, "losses, {case}");
    assert_eq!(found.gradients, reference.gradients, "gradients, {case}");
    assert_eq!(found.weights, reference.weights, "weights, {case}");
    assert_eq!(found.evaluations, reference.evaluations, "evaluations, {case}");
}

#[test]
fn every_split_of_a_gpt_equals_the_unsplit_run_under_adamw() {
    for m in 1..=8 {
        let case = Case { n_blocks: 3, n_micro_batches: m, n_steps: 3, optimizer: "adamw" };
        let reference = unsplit(case);
        assert_eq!(reference.losses.len(), 3);
        assert_ne!(reference.weights, unsplit(Case { n_steps: 0, ..case }).weights, "the weights move");
        for p in 1..=4 {
            for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
                compare(schedule, p, case, &reference);
            }
        }
    }
}

#[test]
fn every_split_equals_the_unsplit_run_under_sgd() {
    for optimizer in ["sgd", "momentum"] {
        let case = Case { n_blocks: 3, n_micro_batches: 4, n_steps: 4, optimizer };
        let reference = unsplit(case);
        for p in 1..=4 {
            compare(Schedule::OneFOneB, p, case, &reference);
        }
    }
}

/// Every schedule that trains runs for real, with several stages a rank where it has them.
#[test]
#[expect(clippy::print_stdout, reason = "says which schedules refuse which shapes")]
fn every_schedule_equals_the_unsplit_run() {
    let mut n_compared = 0;
    for m in [1, 2, 3, 4, 6, 8] {
        let case = Case { n_blocks: 10, n_micro_batches: m, n_steps: 2, optimizer: "adamw" };
        let reference = unsplit(case);
        for p in 1..=4 {
            for schedule in Schedule::ALL.into_iter().filter(|&schedule| schedule != Schedule::ForwardOnly) {
                let shape = Shape { n_ranks: u32::try_from(p).expect("small"), n_micro_batches: case.m() };
                if let Err(reason) = schedule.plan(shape) {
                    println!("{schedule} refuses p={p}, m={m}: {reason}");
                    continue;
                }
                compare(schedule, p, case, &reference);
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 100, "{n_compared} comparisons");
}
