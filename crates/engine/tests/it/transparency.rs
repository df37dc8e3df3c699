//! A pipeline gives the numbers of the same layers unsplit, bit for bit, at any number of stages.

use std::sync::mpsc;

use brigade_engine::schedule::one_f_one_b;
use brigade_engine::{EngineError, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, TensorData};

use crate::support::{
    SCHEDULES, ScheduleFn, Unsplit, cross_entropy, data, gpt, gradient_values, tokens, values,
};

const N_BLOCKS: usize = 3;
const BATCH: usize = 2;
const LEARNING_RATE: f64 = 0.01;

/// What a run shows at each step, and the weights at its end.
#[derive(Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    gradients: Vec<Vec<TensorData>>,
    weights: Vec<TensorData>,
}

fn optimizer(name: &str) -> ModuleOptimizer {
    match name {
        "adamw" => AdamWConfig::new().with_weight_decay(0.01).init(),
        "momentum" => {
            let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: false };
            SgdConfig::new().with_momentum(Some(momentum)).init()
        }
        _ => SgdConfig::new().init(),
    }
}

/// A plain Burn loop: every micro-batch forward and backward at once, then the step.
fn unsplit(n_micro_batches: usize, n_steps: usize, optimizer_name: &'static str) -> Run {
    let mut runs = World::local(1)
        .expect("one rank")
        .run(move |_| {
            let device = Device::flex().autodiff();
            let mut model = Unsplit::new(N_BLOCKS, &device);
            let mut optimizer = optimizer(optimizer_name);
            let mut run = Run { losses: vec![], gradients: vec![], weights: vec![] };
            let m = u32::try_from(n_micro_batches).expect("small");
            for step in 0..n_steps {
                let mut accumulator = GradientsAccumulator::new();
                let mut losses = Vec::new();
                for i in 0..n_micro_batches {
                    let (ids, targets) = tokens(step * n_micro_batches + i, BATCH);
                    let loss = cross_entropy(model.forward(ids.autodiff()), targets.autodiff());
                    losses.push(f64::from(loss.clone().into_scalar::<f32>()));
                    let gradients = (loss / f64::from(m)).backward();
                    accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
                }
                let gradients = accumulator.grads();
                run.losses.push(losses.iter().sum::<f64>() / f64::from(m));
                run.gradients.push(gradient_values(&model, &gradients));
                model = optimizer.step(LEARNING_RATE, model, gradients);
            }
            run.weights = values(&model);
            Ok::<_, EngineError>(run)
        })
        .expect("the plain loop runs");
    runs.remove(0)
}

/// The same training through a pipeline of `n_stages` ranks.
fn pipeline(
    schedule: ScheduleFn,
    n_stages: usize,
    n_micro_batches: usize,
    n_steps: usize,
    optimizer_name: &'static str,
) -> Run {
    let parts = World::local(n_stages)
        .expect("a few ranks")
        .run(move |rank| {
            let m = u32::try_from(n_micro_batches).expect("small");
            let module = PipelineModule::builder(&gpt(N_BLOCKS), cross_entropy)
                .schedule(schedule)
                .micro_batches(m)
                .build(&rank)?;
            let config = TrainConfig { learning_rate: LEARNING_RATE };
            let mut engine = PipelineEngine::new(module, optimizer(optimizer_name), config)?;
            let (sender, gradients) = mpsc::channel();
            engine.observe_gradients(move |named| sender.send(data(named)).expect("the test listens"));
            let mut source = (0..n_steps * n_micro_batches).map(|serial| tokens(serial, BATCH));
            let mut losses = Vec::new();
            while let Some(report) = engine.train_batch(&mut source)? {
                losses.push(report.loss);
            }
            let gradients: Vec<_> = gradients.try_iter().collect();
            Ok::<_, EngineError>(Run { losses, gradients, weights: data(&engine.module().parameters()) })
        })
        .expect("the pipeline runs");
    // Stages stand in layer order, so that the parts of the ranks follow one another.
    let mut whole =
        Run { losses: parts[0].losses.clone(), gradients: vec![vec![]; n_steps], weights: vec![] };
    for part in parts {
        assert_eq!(part.losses, whole.losses, "every rank reports the same losses");
        for (step, gradients) in part.gradients.into_iter().enumerate() {
            whole.gradients[step].extend(gradients);
        }
        whole.weights.extend(part.weights);
    }
    whole
}

fn compare(whole: &Run, reference: &Run, case: &str) {
    assert_eq!(whole.losses, reference.losses, "losses, {case}");
    assert_eq!(whole.gradients, reference.gradients, "gradients, {case}");
    assert_eq!(whole.weights, reference.weights, "weights, {case}");
}

#[test]
fn every_split_of_a_gpt_equals_the_unsplit_run_under_adamw() {
    for m in 1..=8 {
        let reference = unsplit(m, 3, "adamw");
        assert_eq!(reference.losses.len(), 3);
        assert_ne!(reference.weights, unsplit(m, 0, "adamw").weights, "the weights move");
        for p in 1..=4 {
            for (name, schedule) in SCHEDULES {
                compare(&pipeline(schedule, p, m, 3, "adamw"), &reference, &format!("{name}, p={p}, m={m}"));
            }
        }
    }
}

#[test]
fn every_split_equals_the_unsplit_run_under_sgd() {
    for name in ["sgd", "momentum"] {
        let reference = unsplit(4, 4, name);
        for p in 1..=4 {
            compare(&pipeline(one_f_one_b, p, 4, 4, name), &reference, &format!("{name}, p={p}"));
        }
    }
}
