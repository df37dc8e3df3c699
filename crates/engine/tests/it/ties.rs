//! Layers that share parameters: one weight, wherever its uses live.

use brigade_engine::schedule::Schedule;
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    BuildError, EngineError, GradientClipping, Layer, Layers, PipelineEngine, PipelineModule, TieProblem,
    TrainConfig, World,
};
use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;

use crate::support::{formula, gradient_values};

const WIDTH: usize = 3;
const LEARNING_RATE: f64 = 0.05;
/// Sums of the same few f32 numbers in another order: the gradient of a shared leaf adds use by use
/// within a micro-batch, that of copies micro-batch by micro-batch within a use.
const TOLERANCE: f64 = 1e-5;

#[derive(Module, Debug)]
struct Mix {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Mix {
    fn new(index: usize, device: &Device) -> Self {
        let mix = Self {
            weight: Param::from_tensor(Tensor::zeros([WIDTH, WIDTH], device)),
            bias: Param::from_tensor(Tensor::zeros([WIDTH], device)),
        };
        formula(mix, index)
    }

    fn apply(weight: Tensor<2>, bias: Tensor<1>, x: Tensor<2>) -> Tensor<2> {
        tanh(x.matmul(weight) + bias.unsqueeze::<2>())
    }
}

impl Layer for Mix {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        Self::apply(self.weight.val(), self.bias.val(), x)
    }
}

/// Uses a nested weight the other way round, as an output layer does that shares an embedding's.
#[derive(Module, Debug)]
struct Turned {
    inner: Mix,
}

impl Layer for Turned {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        Mix::apply(self.inner.weight.val().transpose(), self.inner.bias.val(), x)
    }
}

/// Has the parameters and does not use them.
#[derive(Module, Debug)]
struct Idle {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Layer for Idle {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mix,
    Turned,
    Idle,
}

/// One layer: what it is, and the key and paths that it shares.
type Spec = (Kind, Option<(&'static str, &'static [&'static str])>);

fn layers(specs: &[Spec]) -> Layers<Tensor<2>, Tensor<2>> {
    specs.iter().enumerate().fold(Layers::new(), |layers, (i, &(kind, tie))| match (kind, tie) {
        (Kind::Mix, None) => layers.layer(move |d| Mix::new(i, d)),
        (Kind::Turned, None) => layers.layer(move |d| Turned { inner: Mix::new(i, d) }),
        (Kind::Mix, Some((key, paths))) => layers.tied(key, paths.iter().copied(), move |d| Mix::new(i, d)),
        (Kind::Turned, Some((key, paths))) => {
            layers.tied(key, paths.iter().copied(), move |d| Turned { inner: Mix::new(i, d) })
        }
        (Kind::Idle, tie) => {
            let (key, paths) = tie.expect("an idle layer shares");
            let build = move |d: &Device| {
                let Mix { weight, bias } = Mix::new(i, d);
                Idle { weight, bias }
            };
            layers.tied(key, paths.iter().copied(), build)
        }
    })
}

fn mean_square(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y - target).powi_scalar(2).mean()
}

fn micro_batch(serial: usize) -> (Tensor<2>, Tensor<2>) {
    let values = |shift: f64| {
        let serial = f64::from(u16::try_from(serial).expect("small"));
        let number = move |i: u16| (f64::from(i) * 0.9 + serial * 0.7 + shift).sin();
        let values: Vec<f32> =
            (0..6).map(|i| format!("{:.5}", number(i)).parse().expect("a number")).collect();
        Tensor::<2>::from_data(TensorData::new(values, [2, WIDTH]), &Device::flex())
    };
    (values(0.0), values(2.0))
}

#[derive(Clone, Copy, Debug)]
struct Case {
    specs: &'static [Spec],
    m: u32,
    n_steps: usize,
    optimizer: &'static str,
}

impl Case {
    fn make_optimizer(self) -> ModuleOptimizer {
        match self.optimizer {
            "adamw" => AdamWConfig::new().with_weight_decay(0.01).init(),
            _ => {
                let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: false };
                SgdConfig::new().with_momentum(Some(momentum)).init()
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// Name and values, by name.
    weights: Vec<(String, TensorData)>,
}

/// Trains on a grid of pipelines and replicas; checks that all ranks report the same.
fn train(case: Case, schedule: Schedule, n_pipe: usize, n_data: usize) -> Run {
    let parts = World::local(n_pipe * n_data).expect("a few ranks").run(move |rank| {
        let size = |n: usize| u64::try_from(n).expect("small");
        let topology = ProcessTopology::pipe_data(size(n_pipe), size(n_data)).expect("a grid");
        let module = PipelineModule::builder(&layers(case.specs), mean_square)
            .topology(topology)
            .partition("uniform".parse()?)
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(case.m)
            .build(&rank)?;
        let config = TrainConfig::new(LEARNING_RATE);
        let mut engine = PipelineEngine::new(module, case.make_optimizer(), config)?;
        engine.set_gradient_clipping(Some(GradientClipping::GlobalNorm(f64::MAX)))?;
        engine.check_copies()?;
        let m = usize::try_from(case.m).expect("small");
        let (replica, n_replicas) = (engine.module().replica(), engine.module().n_replicas());
        let ours = move |serial: &usize| (serial / m) % n_replicas == replica;
        let mut data = (0..case.n_steps * m * n_replicas).filter(ours).map(micro_batch);
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        while let Some(report) = engine.train_batch(&mut data)? {
            losses.push(report.loss);
            norms.push(report.gradient_norm.expect("clipping reports it"));
            engine.check_copies()?;
        }
        Ok::<_, EngineError>((losses, norms, engine.module().parameters()))
    });
    let parts = parts.expect("the run ends well");
    let (losses, norms) = (parts[0].0.clone(), parts[0].1.clone());
    let mut weights: Vec<(String, TensorData)> = Vec::new();
    for part in parts {
        assert_eq!((&part.0, &part.1), (&losses, &norms), "every rank reports the same");
        weights.extend(part.2.into_iter().map(|named| (named.name, named.data)));
    }
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights.dedup();
    assert_eq!(weights.len(), 2 * case.specs.len(), "the replicas have one value for each parameter");
    Run { losses, norms, weights }
}

/// All parameters, of which a layer uses its own or an earlier layer's.
#[derive(Module, Debug)]
struct Pool {
    layers: Vec<Mix>,
}

/// Which layer's weight and which layer's bias each layer uses.
fn owners(specs: &[Spec]) -> Vec<(usize, usize)> {
    let shares = |spec: &Spec, key: &str, parameter: &str| {
        let named = |paths: &[&str]| paths.is_empty() || paths.iter().any(|path| path.ends_with(parameter));
        matches!(spec.1, Some((other, paths)) if other == key && named(paths))
    };
    let owner = |i: usize, parameter: &str| match specs[i].1 {
        Some((key, _)) if shares(&specs[i], key, parameter) => {
            specs.iter().position(|spec| shares(spec, key, parameter)).expect("itself at least")
        }
        _ => i,
    };
    (0..specs.len()).map(|i| (owner(i, "weight"), owner(i, "bias"))).collect()
}

/// A plain Burn loop in which every use of a parameter is the same leaf.
fn shared_leaf(case: Case) -> Run {
    let mut runs = World::local(1)
        .expect("one rank")
        .run(move |_| {
            let device = Device::flex().autodiff();
            let n_layers = case.specs.len();
            let mut pool = Pool { layers: (0..n_layers).map(|i| Mix::new(i, &device)).collect() };
            let owners = owners(case.specs);
            let mut optimizer = case.make_optimizer();
            let m = usize::try_from(case.m).expect("small");
            let mut run = Run { losses: vec![], norms: vec![], weights: vec![] };
            for step in 0..case.n_steps {
                let mut accumulator = GradientsAccumulator::new();
                let mut total = 0.0;
                for i in 0..m {
                    let (x, target) = micro_batch(step * m + i);
                    let y = owners.iter().zip(case.specs).fold(x.autodiff(), |x, (&(w, b), (kind, _))| {
                        let (weight, bias) = (pool.layers[w].weight.val(), pool.layers[b].bias.val());
                        match kind {
                            Kind::Mix => Mix::apply(weight, bias, x),
                            Kind::Turned => Mix::apply(weight.transpose(), bias, x),
                            Kind::Idle => x,
                        }
                    });
                    let loss = mean_square(y, target.autodiff());
                    total += f64::from(loss.clone().into_scalar::<f32>());
                    let gradients = (loss / f64::from(case.m)).backward();
                    accumulator.accumulate(&pool, GradientsParams::from_grads(gradients, &pool));
                }
                let gradients = accumulator.grads();
                let squares = gradient_values(&pool, &gradients);
                let squares = squares.iter().flat_map(|g| g.iter::<f64>().collect::<Vec<_>>());
                run.norms.push(squares.map(|x| x * x).sum::<f64>().sqrt());
                run.losses.push(total / f64::from(case.m));
                pool = optimizer.step(LEARNING_RATE, pool, gradients);
            }
            for (i, (&(w, b), (kind, _))) in owners.iter().zip(case.specs).enumerate() {
                let inner = if *kind == Kind::Turned { "inner." } else { "" };
                let bias = pool.layers[b].bias.val().into_data();
                run.weights.push((format!("layer_{i:03}.{inner}bias"), bias));
                let weight = pool.layers[w].weight.val().into_data();
                run.weights.push((format!("layer_{i:03}.{inner}weight"), weight));
            }
            Ok::<_, EngineError>(run)
        })
        .expect("the plain loop runs");
    runs.remove(0)
}

fn assert_close(found: &Run, expected: &Run, what: &str) {
    let pairs = found.losses.iter().zip(&expected.losses).chain(found.norms.iter().zip(&expected.norms));
    for (found, expected) in pairs {
        assert!((found - expected).abs() <= TOLERANCE * expected.abs(), "{what}: {found} and {expected}");
    }
    assert_eq!(found.losses.len(), expected.losses.len(), "{what}");
    for ((name, found), (expected_name, expected)) in found.weights.iter().zip(&expected.weights) {
        assert_eq!(name, expected_name, "{what}");
        let largest = expected.iter::<f64>().map(f64::abs).fold(0.0, f64::max);
        for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
            assert!((found - expected).abs() <= TOLERANCE * largest, "{what}: {name}");
        }
    }
}

const WEIGHT: &[&str] = &["weight"];
const BOTH: &[&str] = &["weight", "bias"];
const NESTED: &[&str] = &["inner.weight"];
const ALL: &[&str] = &[];

/// An embedding and its transpose at both ends.
const ENDS: &[Spec] = &[
    (Kind::Mix, Some(("ends", WEIGHT))),
    (Kind::Mix, None),
    (Kind::Mix, None),
    (Kind::Turned, None),
    (Kind::Mix, None),
    (Kind::Turned, Some(("ends", NESTED))),
];

/// Keys out of alphabetical order, over the stages {0, 1}, {1, 2} and {0, 2} of three.
const OVERLAPPING: &[Spec] = &[
    (Kind::Mix, Some(("b", ALL))),
    (Kind::Mix, Some(("c", WEIGHT))),
    (Kind::Mix, Some(("b", ALL))),
    (Kind::Mix, Some(("a", BOTH))),
    (Kind::Turned, Some(("a", NESTED))),
    (Kind::Mix, Some(("c", WEIGHT))),
];

/// On stages 0, 1 and 3 of four, twice on stage 1, and once in a layer that does not use it.
const OFTEN: &[Spec] = &[
    (Kind::Mix, Some(("k", BOTH))),
    (Kind::Mix, None),
    (Kind::Mix, Some(("k", BOTH))),
    (Kind::Mix, Some(("k", WEIGHT))),
    (Kind::Idle, Some(("k", BOTH))),
    (Kind::Mix, None),
    (Kind::Mix, Some(("k", BOTH))),
    (Kind::Mix, None),
];

#[test]
fn a_shared_parameter_is_one_weight_at_any_number_of_stages() {
    for specs in [ENDS, OVERLAPPING, OFTEN] {
        for optimizer in ["adamw", "momentum"] {
            let case = Case { specs, m: 4, n_steps: 4, optimizer };
            let whole = train(case, Schedule::GPipe, 1, 1);
            assert_close(&whole, &shared_leaf(case), &format!("{case:?}"));
            for p in 1..=4 {
                for schedule in [
                    Schedule::GPipe,
                    Schedule::OneFOneB,
                    Schedule::ZbH1,
                    Schedule::LoopedBfs { n_virtual: 1 },
                ] {
                    assert_eq!(train(case, schedule, p, 1), whole, "{schedule}, p={p}, {case:?}");
                }
            }
            for (schedule, p) in
                [(Schedule::Interleaved { n_virtual: 3 }, 2), (Schedule::ZbV, 3), (Schedule::ZbV, 2)]
            {
                assert_eq!(train(case, schedule, p, 1), whole, "{schedule}, p={p}, {case:?}");
            }
        }
    }
}

#[test]
fn a_shared_parameter_is_one_weight_over_replicas_too() {
    for specs in [ENDS, OVERLAPPING, OFTEN] {
        let case = Case { specs, m: 2, n_steps: 3, optimizer: "adamw" };
        let whole = train(case, Schedule::GPipe, 1, 2);
        let one_replica = Case { m: 4, ..case };
        assert_close(&whole, &shared_leaf(one_replica), &format!("{case:?}"));
        for p in 2..=4 {
            assert_eq!(train(case, Schedule::OneFOneB, p, 2), whole, "p={p}, {case:?}");
        }
    }
}

#[test]
fn only_the_named_parameters_stay_equal() {
    let value = |run: &Run, name: &str| {
        let found = run.weights.iter().find(|(other, _)| other == name);
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    };
    let case = Case { specs: ENDS, m: 2, n_steps: 2, optimizer: "adamw" };
    let run = train(case, Schedule::OneFOneB, 3, 1);
    assert_eq!(value(&run, "layer_000.weight"), value(&run, "layer_005.inner.weight"));
    assert_ne!(value(&run, "layer_000.bias"), value(&run, "layer_005.inner.bias"));
    let case = Case { specs: OVERLAPPING, ..case };
    let run = train(case, Schedule::OneFOneB, 3, 1);
    assert_eq!(value(&run, "layer_000.bias"), value(&run, "layer_002.bias"));
    assert_ne!(value(&run, "layer_003.bias"), value(&run, "layer_004.inner.bias"));
    assert_ne!(value(&run, "layer_000.weight"), value(&run, "layer_001.weight"), "keys are apart");
}

/// The last stage has nothing of its own: it counts no parameter and keeps no state.
#[test]
fn a_shared_parameter_counts_once_and_has_one_state() {
    const SPECS: &[Spec] = &[
        (Kind::Mix, Some(("k", ALL))),
        (Kind::Mix, None),
        (Kind::Turned, Some(("k", ALL))),
        (Kind::Mix, Some(("k", ALL))),
    ];
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let module = PipelineModule::builder(&layers(SPECS), mean_square)
            .partition("uniform".parse()?)
            .build(&rank)?;
        let n_parameters = module.n_parameters();
        let config = TrainConfig::new(LEARNING_RATE);
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), config)?;
        let before = engine.optimizer_state_bytes()?;
        engine.train_batch(&mut (0..1).map(micro_batch))?;
        Ok::<_, EngineError>((n_parameters, before, engine.optimizer_state_bytes()?))
    });
    let parts = parts.expect("the run ends well");
    let own = u64::try_from(WIDTH * WIDTH + WIDTH).expect("small");
    assert_eq!(parts[0].0, 2 * own);
    assert_eq!(parts[1].0, 2 * own);
    assert!(parts[0].2 > parts[0].1, "the owner has states: {parts:?}");
    assert_eq!(parts[1].2, parts[1].1, "the copies have none");
}

/// The owner says whether the weight is trained, as it would for one shared leaf.
#[test]
fn a_frozen_owner_freezes_its_copies_and_a_frozen_copy_is_trained() {
    for (frozen, expected) in [(0, false), (2, true)] {
        for p in 1..=3 {
            let parts = World::local(p).expect("a few ranks").run(move |rank| {
                let build = move |i: usize| {
                    move |d: &Device| if i == frozen { Mix::new(i, d).no_grad() } else { Mix::new(i, d) }
                };
                let layers = Layers::new().tied("k", WEIGHT.iter().copied(), build(0)).layer(build(1)).tied(
                    "k",
                    WEIGHT.iter().copied(),
                    build(2),
                );
                let module = PipelineModule::builder(&layers, mean_square).build(&rank)?;
                let before = module.parameters();
                let mut engine =
                    PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(LEARNING_RATE))?;
                engine.train_batch(&mut (0..1).map(micro_batch))?;
                engine.check_copies()?;
                let after = engine.module().parameters();
                let moved = before.iter().zip(&after).filter(|(before, after)| before.data != after.data);
                Ok::<_, EngineError>(moved.map(|(before, _)| before.name.clone()).collect::<Vec<_>>())
            });
            let moved = parts.expect("the run ends well").concat();
            for name in ["layer_000.weight", "layer_002.weight"] {
                assert_eq!(moved.iter().any(|other| other == name), expected, "{name}, p={p}: {moved:?}");
            }
            assert!(moved.iter().any(|name| name == "layer_001.weight"), "{moved:?}");
            let own = format!("layer_{frozen:03}.bias");
            assert!(moved.iter().all(|name| *name != own), "{own} is frozen: {moved:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Any ties of any layers: the same bits at any number of stages, close to one shared leaf.
    #[test]
    fn any_ties_give_the_same_numbers_at_every_split(
        layers in proptest::collection::vec((0..2_usize, 0..4_usize, 0..3_usize), 4..8),
        p in 2..=4_usize,
        n_data in 1..=2_usize,
        schedule in prop_oneof![Just(Schedule::GPipe), Just(Schedule::ZbH1), Just(Schedule::OneFOneB)],
    ) {
        let spec = |(kind, key, paths): (usize, usize, usize)| -> Spec {
            let turned = kind == 1;
            let paths: &[&str] = match (paths, turned) {
                (0, false) => &["weight"],
                (0, true) => &["inner.weight"],
                (1, false) => &["weight", "bias"],
                (1, true) => &["inner.weight", "inner.bias"],
                (_, _) => &[],
            };
            let key = ["z", "m", "a"].get(key);
            (if turned { Kind::Turned } else { Kind::Mix }, key.map(|&key| (key, paths)))
        };
        // The owner has to name what the others name.
        let specs: Vec<Spec> = layers.into_iter().map(spec).collect();
        let specs: Vec<Spec> = specs
            .iter()
            .map(|&(kind, tie)| {
                let first = specs.iter().find(|(_, other)| other.map(|o| o.0) == tie.map(|t| t.0));
                let one_path = first.and_then(|(_, tie)| *tie).is_some_and(|(_, paths)| paths.len() == 1);
                let weight: &[&str] = if kind == Kind::Turned { NESTED } else { WEIGHT };
                (kind, tie.map(|(key, paths)| (key, if one_path { weight } else { paths })))
            })
            .collect();
        let case = Case { specs: specs.leak(), m: 2, n_steps: 2, optimizer: "momentum" };
        let whole = train(case, Schedule::GPipe, 1, n_data);
        let all = Case { m: case.m * u32::try_from(n_data).expect("small"), ..case };
        assert_close(&whole, &shared_leaf(all), &format!("{case:?}"));
        prop_assert_eq!(train(case, schedule, p, n_data), whole);
    }
}

#[test]
fn a_tie_that_cannot_be_is_refused_with_its_facts() {
    let refused = |specs: &'static [Spec]| {
        let built = World::local(2).expect("two ranks").run(move |rank| {
            let built = PipelineModule::builder(&layers(specs), mean_square).build(&rank);
            Ok::<_, EngineError>(built.map(|_| ()))
        });
        match built.expect("errors are values here").remove(1) {
            Err(BuildError::Tie { layer, problem, .. }) => (layer, *problem),
            other => panic!("{other:?}"),
        }
    };
    const UNKNOWN: &[Spec] = &[(Kind::Mix, Some(("k", WEIGHT))), (Kind::Turned, Some(("k", WEIGHT)))];
    let (layer, problem) = refused(UNKNOWN);
    assert_eq!(layer, 1);
    let text = "has no parameter `weight`; it has inner.weight, inner.bias";
    assert_eq!((problem.to_string().as_str(), layer), (text, 1));
    const SHAPES: &[Spec] = &[(Kind::Mix, Some(("k", WEIGHT))), (Kind::Turned, Some(("k", &["inner.bias"])))];
    assert!(matches!(refused(SHAPES), (1, TieProblem::Shape { owner: 0, .. })));
}
