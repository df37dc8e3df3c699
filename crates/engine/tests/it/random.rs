//! Keyed random numbers are the same at every split, and whatever is evaluated in between.

use std::sync::mpsc;

use brigade_engine::nn::{Dropout, Linear};
use brigade_engine::random::PassContext;
use brigade_engine::schedule::{Schedule, Shape};
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    EngineError, Layer, Layers, NamedTensor, PipelineEngine, PipelineModule, Recompute, TrainConfig, World,
};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::{GradientsAccumulator, GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::support::{Embed, Head, WIDTH, cross_entropy, data, formula, gradient_values, tokens};

const SEED: u64 = 77;
const N_NOISY: usize = 4;
const N_STEPS: usize = 2;
const M: usize = 4;

/// A layer that draws twice, at different depths.
#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    first: Dropout,
    inner: Option<Vec<Dropout>>,
}

impl Noisy {
    fn new(index: usize, device: &Device) -> Self {
        let dropout = |p| Dropout::new(p).expect("a probability");
        let linear = Linear::new(&LinearConfig::new(WIDTH, WIDTH), device);
        let layer = Self { linear, first: dropout(0.5), inner: Some(vec![dropout(0.25)]) };
        formula(layer, 1 + index)
    }
}

impl Layer for Noisy {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let y = self.first.forward(self.linear.forward(x.clone()).tanh());
        x + self.inner.iter().flatten().fold(y, |y, dropout| dropout.forward(y))
    }
}

/// The loss function draws as well.
fn noisy_loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    cross_entropy(Dropout::new(0.1).expect("a probability").forward(logits), targets)
}

fn layers() -> Layers<Tensor<2, Int>, Tensor<3>> {
    Layers::new().layer(Embed::new).repeat(N_NOISY, Noisy::new).layer(Head::new)
}

/// The same layers outside of the engine.
#[derive(Module, Debug)]
struct Unsplit {
    embed: Embed,
    noisy: Vec<Noisy>,
    head: Head,
}

impl Unsplit {
    fn loss(&self, pass: PassContext, serial: usize) -> Tensor<1> {
        let (ids, targets) = tokens(serial, 2);
        let mut x = pass.layer(0).during(|| self.embed.forward(ids.autodiff()));
        for (layer, noisy) in (1..).zip(&self.noisy) {
            x = pass.layer(layer).during(|| noisy.forward(x));
        }
        let layer = u64::try_from(N_NOISY).expect("small") + 1;
        let logits = pass.layer(layer).during(|| self.head.forward(x));
        pass.layer(layer + 1).during(|| noisy_loss(logits, targets.autodiff()))
    }
}

/// The losses and gradients of every step.
type Run = Vec<(f64, Vec<TensorData>)>;

fn unsplit() -> Run {
    let device = Device::flex().autodiff();
    let noisy = (0..N_NOISY).map(|i| Noisy::new(i, &device)).collect();
    let mut model = Unsplit { embed: Embed::new(&device), noisy, head: Head::new(&device) };
    let mut optimizer = SgdConfig::new().init();
    let n = f64::from(u32::try_from(M).expect("small"));
    let step = |step: usize| {
        let mut sum = GradientsAccumulator::new();
        let mut total = 0.0;
        for i in 0..M {
            let number = |n: usize| u64::try_from(n).expect("small");
            let pass = PassContext::training(SEED, number(step)).micro_batch(number(i));
            let loss = model.loss(pass, step * M + i);
            total += f64::from(loss.clone().into_scalar::<f32>());
            sum.accumulate(&model, GradientsParams::from_grads((loss / n).backward(), &model));
        }
        let gradients = sum.grads();
        let values = gradient_values(&model, &gradients);
        model = optimizer.step(0.1, model.clone(), gradients);
        (total / n, values)
    };
    (0..N_STEPS).map(step).collect()
}

fn pipeline(p: usize, schedule: Schedule, n_evaluations: u32, recompute: Recompute) -> Run {
    let parts = World::local(p).expect("a few ranks").run(move |rank| {
        let module = PipelineModule::builder(&layers(), noisy_loss)
            .recompute(recompute.clone())
            .partition("uniform".parse()?)
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(u32::try_from(M).expect("small"))
            .base_seed(SEED)
            .build(&rank)?;
        let config = TrainConfig::new(0.1);
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let (sender, gradients) = mpsc::channel();
        engine.observe_gradients(move |named| sender.send(named.to_vec()).expect("the test listens"));
        let mut source = (0..N_STEPS * M).map(|serial| tokens(serial, 2));
        let mut losses = Vec::new();
        loop {
            for n in 0..n_evaluations {
                engine.eval_batch(&mut (50..).map(|serial| tokens(serial, 2)), n + 1)?;
            }
            match engine.train_batch(&mut source)? {
                Some(report) => losses.push(report.loss),
                None => break,
            }
        }
        Ok::<_, EngineError>((losses, gradients.try_iter().collect::<Vec<_>>()))
    });
    let parts = parts.expect("the steps run");
    (0..N_STEPS).map(|step| (parts[0].0[step], whole(parts.iter().map(|part| &part.1[step])))).collect()
}

/// All gradients in the order of the layers, those of one layer in the order of its fields.
fn whole<'a>(parts: impl Iterator<Item = &'a Vec<NamedTensor>>) -> Vec<TensorData> {
    let mut all: Vec<NamedTensor> = parts.flatten().cloned().collect();
    all.sort_by(|a, b| a.name.split('.').next().cmp(&b.name.split('.').next()));
    data(&all)
}

/// Every schedule that trains and fits six layers on `p` ranks.
fn schedules(p: usize) -> impl Iterator<Item = Schedule> {
    let shape = Shape { n_ranks: u32::try_from(p).expect("small"), n_micro_batches: 4 };
    let fits = move |schedule: &Schedule| {
        let plan = schedule.plan(shape);
        *schedule != Schedule::ForwardOnly
            && plan.is_ok_and(|plan| !plan.placement().is_bidirectional() && plan.placement().n_stages() <= 6)
    };
    Schedule::ALL.into_iter().filter(fits)
}

#[test]
fn dropout_is_the_same_at_every_split_and_between_evaluations() {
    let reference = unsplit();
    assert_ne!(reference[0].0, reference[1].0);
    let mut n_compared = 0;
    for p in 1..=3 {
        for schedule in schedules(p) {
            let n_evaluations = u32::try_from(n_compared % 3).expect("small");
            let found = pipeline(p, schedule, n_evaluations, Recompute::default());
            assert_eq!(found, reference, "{schedule}, p={p}");
            n_compared += 1;
        }
    }
    assert!(n_compared > 30, "{n_compared} comparisons");
}

#[test]
fn gradients_are_the_same_bits_whatever_runs_again() {
    let reference = unsplit();
    let mut n_compared = 0;
    for p in 1..=3 {
        for schedule in schedules(p) {
            for interval in 1..=3 {
                let found = pipeline(p, schedule, 1, Recompute::every(interval));
                assert_eq!(found, reference, "{schedule}, p={p}, every {interval}");
                n_compared += 1;
            }
            for part in [
                Recompute::every(2).layers(["Noisy"]),
                Recompute::every(1).layers(["Embed", "layer_003", "layer_005"]),
                Recompute::every(2).when(|segment| segment.micro_batch.0 % 2 == 1),
                Recompute::every(1).when(|segment| segment.layers[0].index != 2 && segment.stage.0 != 1),
            ] {
                let case = format!("{schedule}, p={p}, {part:?}");
                assert_eq!(pipeline(p, schedule, 0, part), reference, "{case}");
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 200, "{n_compared} comparisons");
}

#[test]
fn a_run_that_goes_on_draws_what_the_whole_run_would_have_drawn() {
    let second = World::local(1).expect("one rank").run(|rank| {
        let module = PipelineModule::builder(&layers(), noisy_loss).base_seed(SEED).build(&rank)?;
        let config = TrainConfig::new(0.0);
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let mut source = std::iter::repeat_with(|| tokens(0, 2));
        let mut next = |engine: &mut PipelineEngine<_, _, _>| {
            Ok::<_, EngineError>(engine.train_batch(&mut source)?.expect("endless").loss)
        };
        let losses = [next(&mut engine)?, next(&mut engine)?];
        assert_ne!(losses[0], losses[1]);
        assert_eq!(engine.n_steps(), 2);
        engine.set_n_steps(1);
        assert_eq!(next(&mut engine)?, losses[1]);
        Ok::<_, EngineError>(())
    });
    second.expect("the steps run");
}

/// Replicas have masks of their own: those that one pipeline has for all of their micro-batches.
#[test]
fn two_replicas_of_two_micro_batches_draw_what_one_of_four_draws() {
    let losses = |p: u64, replicas: u64, m: u32| {
        let world = World::local(usize::try_from(p * replicas).expect("small")).expect("a few ranks");
        let parts = world.run(move |rank| {
            let module = PipelineModule::builder(&layers(), noisy_loss)
                .topology(ProcessTopology::pipe_data(p, replicas).expect("a grid"))
                .base_seed(SEED)
                .micro_batches(m)
                .recompute_every(2)
                .build(&rank)?;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
            // The same data for all, so that only the masks differ.
            let mut source = std::iter::repeat_with(|| tokens(0, 2));
            let losses = engine.train_batch(&mut source)?.expect("endless").micro_batch_losses;
            Ok::<_, EngineError>(losses)
        });
        let mut losses: Vec<_> = parts.expect("the step runs").into_iter().flatten().collect();
        losses.sort_by(f64::total_cmp);
        losses.dedup();
        losses
    };
    let one = losses(1, 1, 4);
    assert_eq!(one.len(), 4, "four different masks");
    assert_eq!(losses(1, 2, 2), one);
    assert_eq!(losses(2, 2, 2), one);
    assert_eq!(losses(1, 4, 1), one);
}
