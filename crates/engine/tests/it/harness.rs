//! Runs any list of layers through a pipeline, and the same model as a plain Burn loop.

use std::collections::BTreeMap;
use std::sync::mpsc;

use brigade_engine::schedule::{Schedule, Shape};
use brigade_engine::{
    EngineError, Layers, LeafRole, NamedTensor, PipelineEngine, PipelineModule, PipelineModuleBuilder,
    SkipRoute, TrainConfig, Value, World,
};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};

use crate::support::{gradient_values, values};

pub(crate) const LEARNING_RATE: f64 = 0.01;

/// A model twice: as a list of layers, and as a plain Burn module `M` with the same parameters in order.
pub(crate) struct Model<I, O, T, M> {
    pub(crate) name: &'static str,
    pub(crate) layers: Layers<I, O>,
    pub(crate) build: fn(&Device) -> M,
    pub(crate) forward: fn(&M, I) -> O,
    pub(crate) loss: fn(O, T) -> Tensor<1>,
    /// Input and target of a micro-batch, different for every number.
    pub(crate) data: fn(usize) -> (I, T),
}

/// What a run shows at each step, and the weights at its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) losses: Vec<f64>,
    pub(crate) evaluations: Vec<f64>,
    pub(crate) gradients: Vec<Vec<TensorData>>,
    pub(crate) weights: Vec<TensorData>,
}

impl Run {
    /// Compares every number within 1e-5 of the largest of its kind.
    pub(crate) fn assert_close(&self, expected: &Self, case: &str) {
        let all = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len(), "{case}");
            let largest = expected.iter().copied().map(f64::abs).fold(0.0, f64::max);
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= 1e-5 * largest, "{a} and {b}, of {largest}, {case}");
            }
        };
        let flat = |tensors: &[TensorData]| -> Vec<f64> {
            tensors.iter().flat_map(|t| t.iter::<f64>().collect::<Vec<_>>()).collect()
        };
        all(&self.losses, &expected.losses);
        all(&self.evaluations, &expected.evaluations);
        all(&flat(&self.weights), &flat(&expected.weights));
        for (found, expected) in self.gradients.iter().zip(&expected.gradients) {
            all(&flat(found), &flat(expected));
        }
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("small")
}

/// A value on a device with autodiff, as the engine makes it of its input.
fn constant<V: Value>(value: V) -> V {
    let tree = value.into_tree().expect("a value").map(|tensor| tensor.into_leaf(LeafRole::Constant));
    V::from_tree(tree).expect("the same value")
}

impl<I: Value, O: Value, T: Value, M: Module + 'static> Model<I, O, T, M> {
    /// The plain loop over the model.
    pub(crate) fn unsplit(&self, m: usize, n_steps: usize) -> Run {
        unsplit(self.build, self.forward, self.loss, self.data, (m, n_steps))
    }

    /// The same training through a pipeline of `p` ranks, with an evaluation after each step.
    pub(crate) fn pipeline(
        &self,
        schedule: Schedule,
        p: usize,
        m: usize,
        n_steps: usize,
        route: SkipRoute,
    ) -> Run {
        let (layers, loss) = (self.layers.clone(), self.loss);
        let builder =
            move || Ok(PipelineModule::builder(&layers, loss).partition("uniform".parse()?).skips(route));
        run(self.name, builder, self.data, schedule, (p, m, n_steps))
    }

    /// Compares one way to run the model with the plain loop, bit for bit.
    ///
    /// Each of the two ranks that hold a stage of a pipeline in both directions adds the gradients of its
    /// own micro-batches up, so that sums of more than two have another order there.
    pub(crate) fn compare(&self, schedule: Schedule, p: usize, m: usize, route: SkipRoute, reference: &Run) {
        let found = self.pipeline(schedule, p, m, reference.losses.len(), route);
        let case = format!("{}, {schedule}, p={p}, m={m}, {route:?}", self.name);
        if schedule == Schedule::DualPipe && p > 1 && m > 2 {
            return found.assert_close(reference, &case);
        }
        assert_eq!(found.losses, reference.losses, "losses, {case}");
        assert_eq!(found.gradients, reference.gradients, "gradients, {case}");
        assert_eq!(found.weights, reference.weights, "weights, {case}");
        assert_eq!(found.evaluations, reference.evaluations, "evaluations, {case}");
    }

    /// Runs the model under every schedule that trains, by both routes; returns how many comparisons
    /// there were, since schedules refuse some shapes.
    pub(crate) fn compare_under_every_schedule(&self, ps: &[usize], ms: &[usize]) -> usize {
        let mut n_compared = 0;
        for &m in ms {
            let reference = self.unsplit(m, 2);
            assert!(reference.gradients.iter().all(|g| !g.is_empty()), "{} has gradients", self.name);
            for &p in ps {
                for schedule in Schedule::ALL.into_iter().filter(|&s| s != Schedule::ForwardOnly) {
                    let shape = Shape { n_ranks: small(p), n_micro_batches: small(m) };
                    let Ok(plan) = schedule.plan(shape) else { continue };
                    let n_stages = usize::try_from(plan.placement().n_stages()).expect("small");
                    if n_stages > self.layers.len() {
                        continue;
                    }
                    for route in [SkipRoute::Direct, SkipRoute::Carried] {
                        self.compare(schedule, p, m, route, &reference);
                        n_compared += 1;
                    }
                }
            }
        }
        n_compared
    }
}

/// A plain Burn loop: every micro-batch forward and backward at once, then the step.
pub(crate) fn unsplit<I: Value, O: Value, T: Value, M: Module + 'static>(
    build: fn(&Device) -> M,
    forward: fn(&M, I) -> O,
    loss: fn(O, T) -> Tensor<1>,
    data: fn(usize) -> (I, T),
    (m, n_steps): (usize, usize),
) -> Run {
    let mut runs = World::local(1)
        .expect("one rank")
        .run(move |_| {
            let mut model = build(&Device::flex().autodiff());
            let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
            let mut run = Run { losses: vec![], evaluations: vec![], gradients: vec![], weights: vec![] };
            for step in 0..n_steps {
                let mut accumulator = GradientsAccumulator::new();
                let mut losses = Vec::new();
                for i in 0..m {
                    let (input, target) = data(step * m + i);
                    let loss = loss(forward(&model, constant(input)), constant(target));
                    losses.push(f64::from(loss.clone().into_scalar::<f32>()));
                    let gradients = (loss / f64::from(small(m))).backward();
                    accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
                }
                let gradients = accumulator.grads();
                run.losses.push(losses.iter().sum::<f64>() / f64::from(small(m)));
                run.gradients.push(gradient_values(&model, &gradients));
                model = optimizer.step(LEARNING_RATE, model, gradients);
                let frozen = model.valid();
                let held_back = (0..=m).map(|i| {
                    let (input, target) = data(50 + i);
                    f64::from(loss(forward(&frozen, input), target).into_scalar::<f32>())
                });
                run.evaluations.push(held_back.sum::<f64>() / f64::from(small(m + 1)));
            }
            run.weights = values(&model);
            Ok::<_, EngineError>(run)
        })
        .expect("the plain loop runs");
    runs.remove(0)
}

/// Trains for `n_steps` steps of `m` micro-batches on `p` ranks, with an evaluation after each step.
pub(crate) fn run<I: Value, O: Value, T: Value>(
    name: &str,
    builder: impl Fn() -> Result<PipelineModuleBuilder<I, O, T>, EngineError> + Send + Sync + 'static,
    data: fn(usize) -> (I, T),
    schedule: Schedule,
    (p, m, n_steps): (usize, usize, usize),
) -> Run {
    let parts = World::local(p)
        .expect("a few ranks")
        .run(move |rank| {
            let module = builder()?
                .schedule(move |shape| schedule.plan(shape))
                .micro_batches(small(m))
                .build(&rank)?;
            let optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
            let mut engine = PipelineEngine::new(module, optimizer, TrainConfig::new(LEARNING_RATE))?;
            let (sender, gradients) = mpsc::channel();
            engine.observe_gradients(move |named| sender.send(named.to_vec()).expect("the test listens"));
            let mut source = (0..n_steps * m).map(data);
            let (mut losses, mut evaluations) = (Vec::new(), Vec::new());
            while let Some(report) = engine.train_batch(&mut source)? {
                losses.push(report.loss);
                let mut held_back = (50..).map(data);
                let report = engine.eval_batch(&mut held_back, small(m + 1))?.expect("endless data");
                evaluations.push(report.loss);
            }
            let gradients: Vec<_> = gradients.try_iter().collect();
            Ok::<_, EngineError>((losses, evaluations, gradients, engine.module().parameters()))
        })
        .unwrap_or_else(|error| panic!("{name} under {schedule}, p={p}, m={m}: {error}"));
    let (losses, evaluations) = (parts[0].0.clone(), parts[0].1.clone());
    let mut gradients = vec![BTreeMap::new(); n_steps];
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
