//! Runs one model as a plain Burn program and as a pipeline, and compares all numbers.

use std::collections::BTreeMap;
use std::sync::mpsc;

use brigade_engine::random::PassContext;
use brigade_engine::schedule::Schedule;
use brigade_engine::{
    BASE_SEED_DEFAULT, EngineError, Layers, NamedTensor, PipelineEngine, PipelineModule, TrainConfig, Value,
    World,
};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, TensorData};

use crate::support::{gradient_values, values};

const LEARNING_RATE: f64 = 0.01;
/// Micro-batches of evaluations have serial numbers from here on.
const HELD_BACK: usize = 50;

/// Layers of every model: as many as 4 ranks with 3 stages each have stages.
pub(super) const N_LAYERS: usize = 12;

/// One model of the corpus: a list of layers, and the same without Brigade.
pub(super) trait Model: Copy + Send + Sync + 'static {
    type Input: Value;
    type Output: Value;
    type Target: Value;
    type Plain: Module;

    fn name(self) -> &'static str;
    fn layers(self) -> Layers<Self::Input, Self::Output>;
    fn plain(self, device: &Device) -> Self::Plain;
    /// Runs during the pass of the micro-batch, as which layers with keyed random numbers must run.
    fn forward(plain: &Self::Plain, input: Self::Input) -> Self::Output;
    fn loss(output: Self::Output, target: Self::Target) -> Tensor<1>;
    /// The micro-batch with this serial number.
    fn micro_batch(serial: usize, device: &Device) -> (Self::Input, Self::Target);

    /// How far apart two numbers may be, as a share of the largest of their kind in their step; 0 means
    /// equal bits. A pipeline in both directions adds the even micro-batches and the odd ones up apart.
    fn tolerance(self, schedule: Schedule) -> f64 {
        if schedule == Schedule::DualPipe { 1e-5 } else { 0.0 }
    }

    fn runs_under(self, _schedule: Schedule) -> bool {
        true
    }

    /// Layers whose forward runs again together in the backward pass; 0 for none.
    fn recompute_every(self) -> usize {
        0
    }

    /// Parameters that the plain model does not have.
    fn is_extra(self, _name: &str) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) n_micro_batches: u32,
    pub(super) n_steps: usize,
}

impl Case {
    fn m(self) -> usize {
        usize::try_from(self.n_micro_batches).expect("small")
    }
}

/// What a run shows at each step, and the weights at its end.
#[derive(Debug)]
pub(super) struct Run {
    losses: Vec<f64>,
    evaluations: Vec<f64>,
    gradients: Vec<Vec<TensorData>>,
    initial: Vec<TensorData>,
    weights: Vec<TensorData>,
}

impl Run {
    /// A comparison of runs in which nothing happens would prove nothing.
    pub(super) fn must_have_learned(&self) {
        assert_ne!(self.initial, self.weights, "the weights move");
        assert!(self.gradients.iter().all(|step| !step.is_empty()), "there are gradients");
        assert!(self.losses.iter().chain(&self.evaluations).all(|loss| loss.is_finite() && *loss != 0.0));
    }
}

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.01).init()
}

fn to_f64(loss: Tensor<1>) -> f64 {
    f64::from(loss.into_scalar::<f32>())
}

/// A plain Burn loop: every micro-batch forward and backward at once, then the step.
pub(super) fn unsplit<M: Model>(model: M, case: Case) -> Run {
    let mut runs = World::local(1)
        .expect("one rank")
        .run(move |_| {
            let device = Device::flex().autodiff();
            let mut plain = model.plain(&device);
            let mut optimizer = optimizer();
            let mut run = Run {
                losses: vec![],
                evaluations: vec![],
                gradients: vec![],
                initial: values(&plain),
                weights: vec![],
            };
            for step in 0..case.n_steps {
                let mut accumulator = GradientsAccumulator::new();
                let mut losses = Vec::new();
                let number = |i: usize| u64::try_from(i).expect("small");
                let pass = PassContext::training(BASE_SEED_DEFAULT, number(step));
                for i in 0..case.m() {
                    let (input, target) = M::micro_batch(step * case.m() + i, &device);
                    let output = pass.micro_batch(number(i)).during(|| M::forward(&plain, input));
                    let loss = M::loss(output, target);
                    losses.push(to_f64(loss.clone()));
                    let gradients = (loss / f64::from(case.n_micro_batches)).backward();
                    accumulator.accumulate(&plain, GradientsParams::from_grads(gradients, &plain));
                }
                let gradients = accumulator.grads();
                run.losses.push(losses.iter().sum::<f64>() / f64::from(case.n_micro_batches));
                run.gradients.push(gradient_values(&plain, &gradients));
                plain = optimizer.step(LEARNING_RATE, plain, gradients);
                let frozen = plain.valid();
                let held_back = (0..=case.m()).map(|i| {
                    let (input, target) = M::micro_batch(HELD_BACK + i, &Device::flex());
                    let pass = PassContext::evaluation(BASE_SEED_DEFAULT, number(step));
                    to_f64(M::loss(pass.during(|| M::forward(&frozen, input)), target))
                });
                run.evaluations.push(held_back.sum::<f64>() / f64::from(case.n_micro_batches + 1));
            }
            run.weights = values(&plain);
            Ok::<_, EngineError>(run)
        })
        .expect("the plain loop runs");
    runs.remove(0)
}

/// The tensors of all ranks in the order of the layers, and of each layer's fields; copies come once.
#[derive(Clone, Default)]
struct Whole(BTreeMap<String, Vec<NamedTensor>>);

impl Whole {
    fn add(&mut self, named: Vec<NamedTensor>) {
        for tensor in named {
            let layer = tensor.name.split('.').next().expect("a layer").to_owned();
            let fields = self.0.entry(layer).or_default();
            match fields.iter().find(|known| known.name == tensor.name) {
                Some(known) => assert_eq!(known.data, tensor.data, "copies of {} are equal", tensor.name),
                None => fields.push(tensor),
            }
        }
    }

    fn data(self) -> Vec<TensorData> {
        self.0.into_values().flatten().map(|tensor| tensor.data).collect()
    }
}

/// The same training through a pipeline, with an evaluation after each step.
fn pipeline<M: Model>(model: M, schedule: Schedule, n_ranks: u32, case: Case) -> Run {
    let parts = World::local(usize::try_from(n_ranks).expect("small"))
        .expect("a few ranks")
        .run(move |rank| {
            let module = PipelineModule::builder(&model.layers(), M::loss)
                .partition("uniform".parse()?)
                .schedule(move |shape| schedule.plan(shape))
                .micro_batches(case.n_micro_batches)
                .recompute_every(model.recompute_every())
                .build(&rank)?;
            let initial = module.parameters();
            let mut engine = PipelineEngine::new(module, optimizer(), TrainConfig::new(LEARNING_RATE))?;
            let (sender, gradients) = mpsc::channel();
            engine.observe_gradients(move |named| sender.send(named.to_vec()).expect("the test listens"));
            let mut source = (0..case.n_steps * case.m()).map(|i| M::micro_batch(i, &Device::flex()));
            let (mut losses, mut evaluations) = (Vec::new(), Vec::new());
            while let Some(report) = engine.train_batch(&mut source)? {
                losses.push(report.loss);
                let mut held_back = (HELD_BACK..).map(|i| M::micro_batch(i, &Device::flex()));
                let report = engine.eval_batch(&mut held_back, case.n_micro_batches + 1)?;
                evaluations.push(report.expect("endless data").loss);
            }
            let gradients: Vec<_> = gradients.try_iter().collect();
            Ok::<_, EngineError>((losses, evaluations, gradients, initial, engine.module().parameters()))
        })
        .expect("the pipeline runs");
    let (losses, evaluations) = (parts[0].0.clone(), parts[0].1.clone());
    let mut gradients = vec![Whole::default(); case.n_steps];
    let (mut initial, mut weights) = (Whole::default(), Whole::default());
    for part in parts {
        assert_eq!((&part.0, &part.1), (&losses, &evaluations), "every rank reports the same losses");
        for (step, named) in part.2.into_iter().enumerate() {
            gradients[step].add(named);
        }
        let plain =
            |named: Vec<NamedTensor>| named.into_iter().filter(|n| !model.is_extra(&n.name)).collect();
        initial.add(plain(part.3));
        weights.add(plain(part.4));
    }
    let gradients = gradients.into_iter().map(Whole::data).collect();
    Run { losses, evaluations, gradients, initial: initial.data(), weights: weights.data() }
}

/// Runs the pipeline and compares every number with the reference.
pub(super) fn compare<M: Model>(model: M, schedule: Schedule, n_ranks: u32, case: Case, reference: &Run) {
    let found = pipeline(model, schedule, n_ranks, case);
    let tolerance = model.tolerance(schedule);
    let at = format!("{}, {schedule}, p={n_ranks}, {case:?}", model.name());
    close_numbers(&found.losses, &reference.losses, tolerance, &format!("losses, {at}"));
    close(&found.initial, &reference.initial, 0.0, &format!("initial weights, {at}"));
    assert_eq!(found.gradients.len(), reference.gradients.len(), "steps, {at}");
    for (found, reference) in found.gradients.iter().zip(&reference.gradients) {
        close(found, reference, tolerance, &format!("gradients, {at}"));
    }
    close(&found.weights, &reference.weights, tolerance, &format!("weights, {at}"));
    close_numbers(&found.evaluations, &reference.evaluations, tolerance, &format!("evaluations, {at}"));
}

fn close(found: &[TensorData], reference: &[TensorData], tolerance: f64, what: &str) {
    if tolerance == 0.0 {
        assert_eq!(found, reference, "{what}");
        return;
    }
    let shapes = |all: &[TensorData]| all.iter().map(|data| data.shape().clone()).collect::<Vec<_>>();
    assert_eq!(shapes(found), shapes(reference), "{what}");
    // All at once: some gradients are nothing but what rounding leaves of zero.
    let numbers = |all: &[TensorData]| -> Vec<f64> {
        all.iter().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()).collect()
    };
    close_numbers(&numbers(found), &numbers(reference), tolerance, what);
}

fn close_numbers(found: &[f64], reference: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), reference.len(), "{what}");
    let bound = tolerance * reference.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    for (found, reference) in found.iter().zip(reference) {
        let same_bits = found.to_bits() == reference.to_bits();
        assert!(same_bits || (found - reference).abs() <= bound, "{found} for {reference}, {what}");
    }
}
