//! Layers that draw from Burn's own random state run alone, from a seed of their own.

use std::sync::mpsc;
use std::time::Duration;

use brigade_engine::random::PassContext;
use brigade_engine::schedule::Schedule;
use brigade_engine::{
    Cause, EngineError, Layers, PipelineEngine, PipelineModule, TrainConfig, World, WorldError,
};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};

use crate::support::{alone, data, formula, gradient_values, quiet_ranks};

const SEED: u64 = 5;
const N_LAYERS: usize = 4;
const M: usize = 4;

/// A layer with Burn's own dropout, and noise of its own.
#[derive(Module, Debug)]
struct Wild {
    linear: Linear,
    dropout: Dropout,
}

impl Wild {
    fn new(index: usize, device: &Device) -> Self {
        let linear = LinearConfig::new(6, 6).init(device);
        formula(Self { linear, dropout: DropoutConfig::new(0.4).init() }, 1 + index)
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = self.dropout.forward(self.linear.forward(x.clone()).tanh());
        let noise = Tensor::<2>::random(x.dims(), Distribution::Normal(0.0, 0.1), &x.device().inner());
        y + x + Tensor::from_inner(noise)
    }
}

fn layers() -> Layers<Tensor<2>, Tensor<2>> {
    (0..N_LAYERS).fold(Layers::new(), |layers, i| layers.with(move |d| Wild::new(i, d), Wild::forward))
}

fn loss(y: Tensor<2>, t: Tensor<2>) -> Tensor<1> {
    (y - t).powi_scalar(2).mean()
}

fn rows(serial: usize) -> Tensor<2> {
    let n = |n: usize| f32::from(u16::try_from(n).expect("small"));
    let values: Vec<f32> = (0..18).map(|i| (n(i) * 0.9 + n(serial)).sin()).collect();
    Tensor::from_data(TensorData::new(values, [3, 6]), &Device::flex())
}

/// The loss and the gradients of one step outside of the engine.
fn unsplit() -> (f64, Vec<TensorData>) {
    let device = Device::flex().autodiff();
    let model: Vec<Wild> = (0..N_LAYERS).map(|i| Wild::new(i, &device)).collect();
    let mut sum = GradientsAccumulator::new();
    let mut total = 0.0;
    for (i, micro_batch) in (0..M).zip(0..) {
        let mut x = rows(i).autodiff();
        for (layer, wild) in (0..).zip(&model) {
            device.seed(PassContext::training(SEED, 0).micro_batch(micro_batch).layer(layer).device_seed());
            x = wild.forward(x);
        }
        let loss = loss(x, rows(i + 1).autodiff());
        total += f64::from(loss.clone().into_scalar::<f32>());
        sum.accumulate(&model, GradientsParams::from_grads((loss / 4.0).backward(), &model));
    }
    (total / 4.0, gradient_values(&model, &sum.grads()))
}

fn pipeline(p: usize, schedule: Schedule, recompute: usize) -> (f64, Vec<TensorData>) {
    let parts = World::local(p).expect("a few ranks").run(move |rank| {
        let module = PipelineModule::builder(&layers(), loss)
            .partition("uniform".parse()?)
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(u32::try_from(M).expect("small"))
            .base_seed(SEED)
            .exclusive(["Wild"])
            .recompute_every(recompute)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        let (sender, gradients) = mpsc::channel();
        engine.observe_gradients(move |named| sender.send(named.to_vec()).expect("the test listens"));
        let mut held_back = (9..).map(|serial| (rows(serial), rows(serial)));
        engine.eval_batch(&mut held_back, 3)?;
        let mut source = (0..M).map(|i| (rows(i), rows(i + 1)));
        let loss = engine.train_batch(&mut source)?.expect("a batch").loss;
        Ok::<_, EngineError>((loss, gradients.try_iter().flatten().collect::<Vec<_>>()))
    });
    let parts = parts.expect("the step runs");
    let mut named: Vec<_> = parts.iter().flat_map(|part| part.1.clone()).collect();
    named.sort_by(|a, b| a.name.split('.').next().cmp(&b.name.split('.').next()));
    (parts[0].0, data(&named))
}

#[test]
fn exclusive_layers_draw_the_same_numbers_at_every_split_and_when_they_run_again() {
    if !alone("exclusive::exclusive_layers_draw_the_same_numbers_at_every_split_and_when_they_run_again") {
        return;
    }
    let reference = unsplit();
    assert_eq!(reference.1.len(), 2 * N_LAYERS);
    for (p, schedule) in [
        (1, Schedule::GPipe),
        (2, Schedule::GPipe),
        (2, Schedule::OneFOneB),
        (3, Schedule::OneFOneB),
        (4, Schedule::ZbH1),
        (2, Schedule::Interleaved { n_virtual: 2 }),
    ] {
        for recompute in 0..=2 {
            let found = pipeline(p, schedule, recompute);
            assert_eq!(found, reference, "{schedule}, p={p}, every {recompute}");
        }
    }
}

/// The turn comes back when a layer panics, and a rank that waits too long says for what.
#[test]
fn a_turn_that_does_not_come_is_an_error_and_a_panic_ends_a_turn() {
    if !alone("exclusive::a_turn_that_does_not_come_is_an_error_and_a_panic_ends_a_turn") {
        return;
    }
    quiet_ranks();
    let run = |slow: bool| {
        let world = World::local(2).expect("two ranks").deadline(Duration::from_millis(300));
        let result = world.run(move |rank| {
            let linear = |d: &Device| formula(LinearConfig::new(6, 6).init(d), 0);
            let layers = Layers::new().with(linear, Linear::forward).with(linear, Linear::forward);
            let layers = layers.map(move |x: Tensor<2>| {
                assert!(slow, "a panic during a turn");
                std::thread::sleep(Duration::from_millis(1200));
                x
            });
            let module = PipelineModule::builder(&layers, loss)
                .partition("uniform".parse()?)
                .schedule(|shape| Schedule::GPipe.plan(shape))
                .micro_batches(2)
                .exclusive(["Linear", "closure"])
                .build(&rank)?;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
            engine.train_batch(&mut (0..2).map(|i| (rows(i), rows(i))))?;
            Ok::<_, EngineError>(())
        });
        match result.expect_err("it stops") {
            WorldError::Rank { source: EngineError::Step(error), .. } => error.cause().clone(),
            WorldError::Stuck { first, .. } => first.cause().clone(),
            other => panic!("{other}"),
        }
    };
    let panicked = run(false);
    assert!(matches!(panicked, Cause::LayerPanicked { .. }), "{panicked}");
    // The first rank has its second micro-batch ready while the last layer sleeps.
    let waited = run(true);
    assert!(matches!(waited, Cause::Busy { .. } | Cause::Deadline { .. }), "{waited}");
    let reference = unsplit();
    assert_eq!(pipeline(2, Schedule::OneFOneB, 0), reference, "turns go on after both");
}
