//! Mixed precision: f32 weights behind half-precision passes, and the loss scale.

use std::sync::{Arc, Mutex};

use brigade_engine::{
    BuildError, Cause, EngineError, Layer, Layers, PipelineEngine, PipelineModule, StepReport, TrainConfig,
    TrainingState, World, WorldError,
};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::support::{SCHEDULES, ScheduleFn, cross_entropy, formula, gpt, tokens};

fn config(text: &str) -> TrainConfig {
    TrainConfig::from_json_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

struct Run {
    reports: Vec<StepReport>,
    /// Every parameter's element type and bits, in the order of the layers.
    weights: Vec<(String, DType, Vec<u8>)>,
    evaluation: f64,
    plan: String,
}

/// Three steps of a small model, and an evaluation.
fn train(precision: &str, n_ranks: usize, schedule: ScheduleFn) -> Run {
    let text = format!(
        r#"{{"learning_rate": 0.01, "optimizer": {{"adam_w": {{"weight_decay": 0.01}}}}, "precision": "{precision}",
             "gradient_clipping": {{"global_norm": 1.0}}}}"#
    );
    let config = config(&text);
    let mut runs = World::local(n_ranks)
        .expect("a few ranks")
        .run(move |rank| {
            let builder = PipelineModule::builder(&gpt(2), cross_entropy).micro_batches(4).schedule(schedule);
            let mut engine = PipelineEngine::from_config(builder.build(&rank)?, config.clone())?;
            let mut data = (0..12).map(|i| tokens(i, 2));
            let mut reports = Vec::new();
            while let Some(report) = engine.train_batch(&mut data)? {
                reports.push(report);
            }
            let evaluation = engine.eval_batch(&mut (0..2).map(|i| tokens(i, 3)), 2)?.expect("data").loss;
            let outputs = engine.predict_batch(&mut std::iter::once(tokens(0, 1).0), 1)?.expect("data");
            assert_eq!(outputs[0].dtype(), DType::F32);
            let weights = engine.module().parameters().into_iter();
            let weights = weights.map(|p| (p.name, p.data.dtype(), p.data.as_bytes().to_vec())).collect();
            let plan = format!("{:?}", engine.module().plan().program());
            Ok::<_, EngineError>(Run { reports, weights, evaluation, plan })
        })
        .expect("a run");
    let rest = runs.split_off(1);
    let mut run = runs.remove(0);
    for other in rest {
        for (a, b) in run.reports.iter().zip(&other.reports) {
            assert_eq!((a.loss, a.loss_scale, a.gradient_norm), (b.loss, b.loss_scale, b.gradient_norm));
        }
        run.weights.extend(other.weights);
    }
    run
}

#[test]
fn half_precision_gives_the_same_bits_at_any_number_of_stages() {
    for precision in ["bf16", "f16"] {
        let one = train(precision, 1, SCHEDULES[0].1);
        assert!(one.weights.iter().all(|(_, dtype, _)| *dtype == DType::F32), "weights stay in f32");
        for n_ranks in [2, 3] {
            for (name, schedule) in SCHEDULES {
                let run = train(precision, n_ranks, schedule);
                for (a, b) in one.reports.iter().zip(&run.reports) {
                    assert_eq!(a.micro_batch_losses, b.micro_batch_losses, "{precision} {name} {n_ranks}");
                    assert_eq!(a.gradient_norm, b.gradient_norm, "{precision} {name} {n_ranks}");
                }
                assert_eq!(one.evaluation.to_bits(), run.evaluation.to_bits());
                assert_eq!(one.weights, run.weights, "{precision} {name} {n_ranks}");
            }
        }
    }
}

/// One rounding to bf16 loses up to 2^-9 of a number, to f16 2^-12; a loss here is the outcome of some
/// twenty operations on numbers near 1.
#[test]
fn half_precision_stays_near_f32_and_changes_no_message() {
    let full = train("f32", 2, SCHEDULES[1].1);
    assert_eq!(full.reports[0].loss_scale, None);
    for (precision, tolerance, scale) in [("bf16", 0.02, None), ("f16", 0.003, Some(65_536.0))] {
        let half = train(precision, 2, SCHEDULES[1].1);
        assert_eq!(half.plan, full.plan);
        for (a, b) in full.reports.iter().zip(&half.reports) {
            assert_eq!((b.loss_scale, b.skipped), (scale, false));
            for (a, b) in a.micro_batch_losses.iter().zip(&b.micro_batch_losses) {
                assert!((a - b).abs() < tolerance * a.abs(), "{precision}: {a} and {b}");
                assert_ne!(a, b, "half precision is at work");
            }
            let (a, b) = (a.gradient_norm.expect("clipped"), b.gradient_norm.expect("clipped"));
            assert!((a - b).abs() < 2.0 * tolerance * a, "{precision}: norms {a} and {b}");
        }
    }
}

type Seen = Arc<Mutex<Vec<(usize, DType, DType)>>>;

/// Tells the element types of its input and its weight.
#[derive(Module, Debug)]
struct Watched {
    linear: Linear,
    #[module(skip)]
    index: usize,
    #[module(skip)]
    seen: Witness,
}

#[derive(Clone, Debug)]
struct Witness(Seen);

impl Layer for Watched {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let types = (self.index, x.dtype(), self.linear.weight.val().dtype());
        self.seen.0.lock().expect("no panic").push(types);
        self.linear.forward(x)
    }
}

#[test]
fn passes_and_messages_are_half_precision_and_the_loss_is_f32() {
    for (name, dtype) in [("bf16", DType::BF16), ("f16", DType::F16), ("f32", DType::F32)] {
        let seen = Seen::default();
        let theirs = Arc::clone(&seen);
        let config = config(&format!(r#"{{"optimizer": {{"sgd": {{}}}}, "precision": "{name}"}}"#));
        World::local(3)
            .expect("three ranks")
            .run(move |rank| {
                let seen = Witness(Arc::clone(&theirs));
                let layers = Layers::new().repeat(3, move |index, device| {
                    let linear = LinearConfig::new(4, 4).init(device);
                    Watched { linear, index, seen: seen.clone() }
                });
                let loss = |y: Tensor<2>, t: Tensor<2>| {
                    assert_eq!([y.dtype(), t.dtype()], [DType::F32; 2]);
                    (y - t).powi_scalar(2).mean()
                };
                let module = PipelineModule::builder(&layers, loss).micro_batches(2).build(&rank)?;
                let mut engine = PipelineEngine::from_config(module, config.clone())?;
                let x = Tensor::<2>::ones([3, 4], &Device::flex());
                engine.train_batch(&mut std::iter::repeat_with(|| (x.clone(), x.clone())))?;
                engine.eval_batch(&mut std::iter::once((x.clone(), x.clone())), 1)?;
                Ok::<_, EngineError>(())
            })
            .expect("a run");
        let seen = seen.lock().expect("no panic");
        assert_eq!(seen.len(), 9, "two micro-batches and an evaluation, three layers");
        assert!(seen.iter().all(|&(_, input, weight)| input == dtype && weight == dtype), "{seen:?}");
    }
}

/// Adds a weight, whose gradient alone overflows when the input's first element is above 100.
#[derive(Module, Debug)]
struct Fragile {
    weight: Param<Tensor<2>>,
}

impl Layer for Fragile {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let first = x.clone().detach().slice([0..1, 0..1]);
        let factor = first.greater_scalar(100.0).float().mul_scalar(1e4).add_scalar(1.0);
        // The weight is 0, so its products are as well, while its gradient takes every factor.
        let grown = (0..12).fold(self.weight.val(), |weight, _| weight * factor.clone().cast(x.dtype()));
        x + grown
    }
}

struct Skipping {
    reports: Vec<StepReport>,
    states: Vec<TrainingState>,
    changed: Vec<bool>,
}

/// Steps whose first input element is each of `inputs`, with the fragile layer at `at` of three.
fn skipping(
    text: &str,
    n_ranks: usize,
    at: usize,
    inputs: &'static [f32],
) -> Result<Vec<Skipping>, WorldError<EngineError>> {
    let config = config(text);
    World::local(n_ranks).expect("a few ranks").run(move |rank| {
        // Fragile or not by the weight alone, which takes part in nothing elsewhere.
        let layers = Layers::new()
            .repeat(at, formula_dense)
            .layer(|d| Fragile { weight: Param::from_tensor(Tensor::zeros([3, 4], d)) })
            .repeat(2 - at, |i, d| formula_dense(i + 5, d));
        let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).abs().mean();
        let module = PipelineModule::builder(&layers, loss).partition("uniform".parse()?).build(&rank)?;
        let mut engine = PipelineEngine::from_config(module, config.clone())?;
        let weights = |engine: &PipelineEngine<_, _, _>| {
            let all = engine.module().parameters().into_iter();
            all.map(|p| p.data.as_bytes().to_vec()).collect::<Vec<_>>()
        };
        let (mut reports, mut states, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for &first in inputs {
            let before = weights(&engine);
            let values: Vec<f32> = std::iter::once(first).chain([0.5; 11]).collect();
            let x = Tensor::<2>::from_data(TensorData::new(values, [3, 4]), &Device::flex());
            let target = Tensor::<2>::zeros([3, 4], &Device::flex());
            reports.push(engine.train_batch(&mut std::iter::once((x, target)))?.expect("data"));
            states.push(engine.training_state());
            changed.push(weights(&engine) != before);
        }
        Ok::<_, EngineError>(Skipping { reports, states, changed })
    })
}

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        // The first element goes on as it is, so that later layers see it.
        x.clone() + self.linear.forward(x).mul_scalar(1e-3)
    }
}

fn formula_dense(i: usize, device: &Device) -> Dense {
    formula(Dense { linear: LinearConfig::new(4, 4).init(device) }, i)
}

#[test]
fn an_overflow_on_any_stage_makes_every_rank_skip_the_step() {
    let text = |scale: &str, precision: &str| {
        format!(
            r#"{{"learning_rate": 0.1, "optimizer": {{"sgd": {{}}}}, "precision": "{precision}", "loss_scale": {scale},
                 "schedule": {{"exponential": {{"gamma": 0.5}}}}}}"#
        )
    };
    let dynamic = r#"{"dynamic": {"initial": 16, "window": 2, "hysteresis": 2}}"#;
    for precision in ["f32", "bf16", "f16"] {
        for at in 0..3 {
            for n_ranks in [1, 3] {
                let runs = skipping(
                    &text(dynamic, precision),
                    n_ranks,
                    at,
                    &[1.0, 200.0, 1.0, 200.0, 1.0, 1.0, 1.0],
                );
                for run in runs.expect("skips, and goes on") {
                    let skipped: Vec<bool> = run.reports.iter().map(|r| r.skipped).collect();
                    assert_eq!(
                        skipped,
                        [false, true, false, true, false, false, false],
                        "{precision} {at} {n_ranks}"
                    );
                    let scales: Vec<f64> = run.reports.iter().filter_map(|r| r.loss_scale).collect();
                    assert_eq!(scales, [16.0, 16.0, 16.0, 16.0, 8.0, 8.0, 8.0]);
                    assert_eq!(run.states[6].loss_scale.expect("a scale").scale, 16.0);
                    let rates: Vec<f64> = run.reports.iter().map(|r| r.learning_rate).collect();
                    assert_eq!(rates, [0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.00625]);
                    assert_eq!((run.states[6].n_steps, run.states[6].n_updates), (7, 5));
                    let expected: Vec<bool> = skipped.iter().map(|skipped| !skipped).collect();
                    assert_eq!(run.changed, expected, "{precision} {at} {n_ranks}");
                }
            }
        }
    }
    let fixed = skipping(&text(r#"{"static": 4}"#, "f32"), 3, 1, &[200.0, 1.0]).expect("skips, and goes on");
    assert!(fixed.iter().all(|run| run.changed == [false, true] && run.reports[1].loss_scale == Some(4.0)));
}

#[test]
fn an_overflow_at_the_least_scale_ends_every_rank() {
    let text = r#"{"optimizer": {"sgd": {}}, "loss_scale": {"dynamic": {"initial": 2, "hysteresis": 1}}}"#;
    match skipping(text, 3, 2, &[200.0, 200.0, 1.0]).map(|_| ()) {
        Err(WorldError::Rank { source: EngineError::Step(error), .. }) => {
            assert!(matches!(error.cause(), Cause::LossScale { scale: 1.0 }), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// A power of two moves the exponents only, so nothing is lost on the way.
#[test]
fn a_scale_of_a_power_of_two_changes_no_bit_of_an_f32_run() {
    let weights = |scale: &str| {
        let text = format!(r#"{{"learning_rate": 0.1, "optimizer": {{"adam_w": {{}}}}{scale}}}"#);
        let config = config(&text);
        let all = World::local(2).expect("two ranks").run(move |rank| {
            let module = PipelineModule::builder(&gpt(2), cross_entropy).micro_batches(2).build(&rank)?;
            let mut engine = PipelineEngine::from_config(module, config.clone())?;
            let mut data = (0..4).map(|i| tokens(i, 2));
            while engine.train_batch(&mut data)?.is_some() {}
            let parameters = engine.module().parameters().into_iter();
            Ok::<_, EngineError>(parameters.map(|p| p.data.as_bytes().to_vec()).collect::<Vec<_>>())
        });
        all.expect("a run")
    };
    assert_eq!(weights(r#", "loss_scale": {"static": 1024}"#), weights(""));
}

#[test]
fn a_training_state_goes_on_in_another_engine() {
    let text = r#"{"learning_rate": 1, "optimizer": {"sgd": {}}, "precision": "f16",
                   "schedule": {"linear": {"end": 0, "n_steps": 10}}}"#;
    let resume = |text: &'static str| {
        World::local(2).expect("two ranks").run(move |rank| {
            let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
            let mut engine = PipelineEngine::from_config(module, config(text))?;
            let saved = r#"{"n_steps": 6, "n_updates": 4,
                "loss_scale": {"scale": 256.0, "n_steps": 6, "n_until_overflow": 3, "hysteresis": 1}}"#;
            let state: TrainingState = serde_json::from_str(saved).expect("a state");
            engine.set_training_state(state)?;
            assert_eq!(engine.training_state(), state);
            Ok::<_, EngineError>(engine.train_batch(&mut std::iter::once(tokens(0, 2)))?.expect("data"))
        })
    };
    for report in resume(text).expect("goes on") {
        assert_eq!((report.step, report.loss_scale), (7, Some(256.0)));
        assert!((report.learning_rate - 0.6).abs() < 1e-12);
    }
    match resume(r#"{"optimizer": {"sgd": {}}}"#) {
        Err(WorldError::Rank { source: EngineError::Build(BuildError::LossScaleState { .. }), .. }) => {}
        other => panic!("{other:?}"),
    }
}
