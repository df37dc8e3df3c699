//! Layers that run again in the backward pass: values of any structure, state, failures, and their time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use brigade_engine::nn::{Dropout, Linear};
use brigade_engine::schedule::Schedule;
use brigade_engine::{
    BuildError, Cause, EngineError, Layer, LayerError, Layers, NamedTensor, PipelineEngine, PipelineModule,
    Recompute, StepReport, TrainConfig, Value, World, WorldError,
};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::support::{formula, quiet_ranks};

/// What a run shows: reports, and gradients and weights of all ranks.
struct Seen {
    reports: Vec<StepReport>,
    gradients: Vec<(String, TensorData)>,
    weights: Vec<(String, TensorData)>,
}

fn sorted(named: Vec<NamedTensor>) -> Vec<(String, TensorData)> {
    let mut all: Vec<_> = named.into_iter().map(|n| (n.name, n.data)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Two steps of AdamW on `p` ranks.
fn train<I: Value + Clone + Sync, O: Value>(
    layers: &Layers<I, O>,
    loss: impl Fn(O, ()) -> Tensor<1> + Send + Sync + Clone + 'static,
    input: impl Fn(usize) -> I + Send + Sync + 'static,
    (p, schedule): (usize, Schedule),
    recompute: &Recompute,
) -> Result<Seen, WorldError<EngineError>> {
    quiet_ranks();
    let (layers, recompute) = (layers.clone(), recompute.clone());
    let parts = World::local(p).expect("a few ranks").run(move |rank| {
        let module = PipelineModule::builder(&layers, loss.clone())
            .partition("uniform".parse()?)
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(4)
            .recompute(recompute.clone())
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        engine.observe_gradients(move |named| sink.lock().expect("no panic").extend(named.to_vec()));
        let mut data = (0..8).map(|serial| (input(serial), ()));
        let mut reports = Vec::new();
        while let Some(report) = engine.train_batch(&mut data)? {
            reports.push(report);
        }
        let gradients = std::mem::take(&mut *seen.lock().expect("no panic"));
        Ok::<_, EngineError>((reports, gradients, engine.module().parameters()))
    })?;
    let reports = parts[0].0.clone();
    let gradients = sorted(parts.iter().flat_map(|part| part.1.clone()).collect());
    let weights = sorted(parts.into_iter().flat_map(|part| part.2).collect());
    Ok(Seen { reports, gradients, weights })
}

fn rows(n: usize, serial: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..u16::try_from(n * 4).expect("small"))
        .map(|i| (f32::from(i) * 1.3 + f32::from(u16::try_from(serial).expect("small"))).sin())
        .collect();
    Tensor::from_data(TensorData::new(values, [n, 4]), &Device::flex())
}

fn linear(index: usize, device: &Device) -> Linear {
    formula(Linear::new(&LinearConfig::new(4, 4), device), index)
}

/// Everything at once: used in every layer, passed through, unused, not there in every micro-batch, not
/// floating, a constant, plain.
type Mixed = (Tensor<2>, Option<Tensor<2>>, Tensor<1, Int>, (Tensor<2>, Vec<Tensor<2>>), i64);

/// Makes a mixed value from integers, as a first layer does.
#[derive(Module, Debug)]
struct Open {
    linear: Linear,
    side: Linear,
}

impl Layer for Open {
    type Input = Tensor<1, Int>;
    type Output = Mixed;
    fn forward(&self, ids: Tensor<1, Int>) -> Mixed {
        let n = ids.dims()[0];
        let x = ids.clone().float().reshape([n, 1]).repeat_dim(1, 4) * 0.1;
        let side = n.is_multiple_of(2).then(|| self.side.forward(x.clone()));
        let constant = Tensor::ones([n, 4], &x.device()) * 0.5;
        (self.linear.forward(x), side, ids, (constant, vec![]), 3)
    }
}

#[derive(Module, Debug)]
struct Mix {
    linear: Linear,
    unused: Linear,
    dropout: Dropout,
    #[module(skip)]
    index: usize,
}

impl Mix {
    fn new(index: usize, device: &Device) -> Self {
        let mut layer = Self {
            linear: linear(3 * index + 1, device),
            unused: linear(3 * index + 2, device),
            dropout: Dropout::new(0.3).expect("a probability"),
            index,
        };
        if index == 1 {
            layer.linear.weight = layer.linear.weight.set_require_grad(false);
        }
        if index == 2 { layer.no_grad() } else { layer }
    }
}

impl Layer for Mix {
    type Input = Mixed;
    type Output = Mixed;
    fn forward(&self, (x, side, ids, (constant, mut list), n): Mixed) -> Mixed {
        let y = self.dropout.forward(self.linear.forward(x.clone()).tanh()) * constant.clone();
        let y = match &side {
            Some(side) if self.index.is_multiple_of(2) => y + side.clone(),
            _ => y + x.clone(),
        };
        // One more output that only some later layer uses, and one that none does.
        list.push(self.unused.forward(x));
        (y, side, ids + 1, (constant, list), n + 1)
    }
}

#[derive(Module, Debug)]
struct Close {
    linear: Linear,
}

impl Layer for Close {
    type Input = Mixed;
    type Output = Tensor<2>;
    fn forward(&self, (x, _, ids, (_, list), n): Mixed) -> Tensor<2> {
        let [rows, _] = x.dims();
        let scale = ids.float().reshape([rows, 1]) * 0.01;
        assert_eq!((list.len(), n), (4, 7));
        self.linear.forward(x * scale) + list[1].clone()
    }
}

fn mixed() -> Layers<Tensor<1, Int>, Tensor<2>> {
    let open = |d: &Device| Open { linear: linear(50, d), side: linear(51, d) };
    Layers::new().layer(open).repeat(4, Mix::new).layer(|d| Close { linear: linear(60, d) })
}

fn ids(serial: usize) -> Tensor<1, Int> {
    let n = i64::try_from(2 + serial % 3).expect("small");
    Tensor::arange(0..n, &Device::flex())
}

fn square(y: Tensor<2>, _: ()) -> Tensor<1> {
    y.powi_scalar(2).mean()
}

/// Sums of three and more gradients at one tensor differ in their order at every border of a segment, as
/// they do at every border of a stage.
fn close(found: &[(String, TensorData)], expected: &[(String, TensorData)], what: &str) {
    let names = |all: &[(String, TensorData)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{what}, {name}");
        }
    }
}

#[test]
fn values_of_any_structure_and_frozen_layers_give_the_same_gradients() {
    let plain = train(&mixed(), square, ids, (1, Schedule::GPipe), &Recompute::default()).expect("trains");
    assert!(!plain.gradients.iter().any(|(name, _)| name.starts_with("layer_003")), "layer 3 is frozen");
    assert!(!plain.gradients.iter().any(|(name, _)| name == "layer_002.linear.weight"), "one weight is");
    let unused = |name: &str| plain.gradients.iter().any(|(found, _)| found == name);
    assert!(unused("layer_002.unused.weight") && !unused("layer_001.unused.weight"));
    for p in 1..=3 {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
            for every in 0..=3 {
                let what = format!("{schedule}, p={p}, every {every}");
                let found = train(&mixed(), square, ids, (p, schedule), &Recompute::every(every));
                let found = found.expect("trains");
                let losses = |seen: &Seen| seen.reports[0].micro_batch_losses.clone();
                assert_eq!(losses(&found), losses(&plain), "{what}");
                close(&found.gradients, &plain.gradients, &what);
                close(&found.weights, &plain.weights, &what);
            }
        }
    }
}

/// Batch norm over rows; its running statistics are state that moves in the forward pass.
#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Layer for Normed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.linear.forward(x))
    }
}

#[test]
fn running_statistics_move_once_for_each_micro_batch() {
    let build = |i: usize, d: &Device| Normed { linear: linear(i, d), norm: BatchNormConfig::new(4).init(d) };
    let layers = Layers::new().repeat(3, build);
    let input = |serial| rows(5, serial);
    let plain = train(&layers, square, input, (1, Schedule::GPipe), &Recompute::default()).expect("trains");
    let running: Vec<_> = plain.weights.iter().filter(|(name, _)| name.contains("running")).collect();
    assert_eq!(running.len(), 6);
    assert!(running.iter().all(|(_, data)| data.iter::<f64>().any(|x| x != 0.0 && x != 1.0)));
    for (p, schedule) in [(1, Schedule::GPipe), (2, Schedule::OneFOneB), (3, Schedule::ZbH1)] {
        for every in 1..=3 {
            let found = train(&layers, square, input, (p, schedule), &Recompute::every(every));
            let found = found.expect("trains");
            assert_eq!(found.gradients, plain.gradients, "{schedule}, every {every}");
            assert_eq!(found.weights, plain.weights, "{schedule}, every {every}");
        }
    }
}

/// Counts how often it runs, and can be told to behave otherwise the second time.
#[derive(Module, Debug)]
struct Counted {
    linear: Linear,
    #[module(skip)]
    runs: Runs,
    #[module(skip)]
    second: Second,
}

#[derive(Clone, Debug, Default)]
struct Runs(Arc<AtomicUsize>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Second {
    #[default]
    Same,
    Panics,
    Fails,
    Wider,
}

impl Layer for Counted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let again = self.runs.0.fetch_add(1, Ordering::Relaxed) >= 4;
        assert!(!(again && self.second == Second::Panics), "the second run");
        let y = self.linear.forward(x);
        if again && self.second == Second::Wider { Tensor::cat(vec![y.clone(), y], 0) } else { y }
    }
    fn try_forward(&self, x: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        let again = self.runs.0.load(Ordering::Relaxed) >= 4;
        if again && self.second == Second::Fails { Err("no second run".into()) } else { Ok(self.forward(x)) }
    }
}

fn counted(n: usize, second: Second) -> (Layers<Tensor<2>, Tensor<2>>, Vec<Runs>) {
    let runs: Vec<Runs> = (0..n).map(|_| Runs::default()).collect();
    let shared = runs.clone();
    let build = move |i: usize, d: &Device| {
        let second = if i + 1 == n { Second::Same } else { second };
        Counted { linear: linear(i, d), runs: shared[i].clone(), second }
    };
    (Layers::new().repeat(n, build), runs)
}

fn counts(runs: &[Runs]) -> Vec<usize> {
    runs.iter().map(|runs| runs.0.load(Ordering::Relaxed)).collect()
}

#[test]
fn exactly_the_chosen_layers_run_again_once_for_both_halves_of_the_backward_pass() {
    let cases: [(Recompute, [usize; 4]); 6] = [
        (Recompute::default(), [8; 4]),
        (Recompute::every(1), [16; 4]),
        (Recompute::every(3), [16; 4]),
        (Recompute::every(1).layers(["layer_001", "layer_002"]), [8, 16, 16, 8]),
        (Recompute::every(4).when(|segment| segment.micro_batch.0 == 2), [10; 4]),
        (
            Recompute::every(2).layers(["Counted"]).when(|segment| segment.layers[0].index == 2),
            [8, 8, 16, 16],
        ),
    ];
    for (recompute, expected) in cases {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1, Schedule::ZbH2] {
            let (layers, runs) = counted(4, Second::Same);
            let seen = train(&layers, square, |serial| rows(2, serial), (1, schedule), &recompute);
            let report = seen.expect("trains").reports.remove(0);
            assert_eq!(counts(&runs), expected, "{schedule}, {recompute:?}");
            let again = report.times.stages[0].recompute.count;
            assert_eq!(again > 0, recompute.is_on(), "{schedule}, {recompute:?}");
        }
    }
}

#[test]
fn an_evaluation_runs_nothing_again() {
    let (layers, runs) = counted(2, Second::Same);
    let evaluated = World::local(1).expect("one rank").run(move |rank| {
        let builder = PipelineModule::builder(&layers, square);
        let module = builder.recompute_every(1).build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        let mut data = (0..3).map(|serial| (rows(2, serial), ()));
        engine.eval_batch(&mut data, 3)?;
        engine.predict_batch(&mut std::iter::once(rows(2, 0)), 1)?;
        Ok::<_, EngineError>(())
    });
    evaluated.expect("evaluates");
    assert_eq!(counts(&runs), [4, 4]);
}

fn failure(recompute: &Recompute, second: Second, p: usize) -> (String, Cause) {
    let (layers, _) = counted(2, second);
    let error = train(&layers, square, |serial| rows(2, serial), (p, Schedule::GPipe), recompute);
    match error.err().expect("the second run goes wrong") {
        WorldError::Rank { source: EngineError::Step(error), .. } => {
            (error.site().instruction.clone(), error.cause().clone())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn what_goes_wrong_in_a_second_run_names_the_layer_and_the_backward_pass() {
    let every = Recompute::every(1);
    for p in 1..=2 {
        let (site, cause) = failure(&every, Second::Panics, p);
        assert!(site.contains("BackwardPass"), "{site}");
        assert!(matches!(&cause, Cause::LayerPanicked { layer, .. } if layer.index == 0), "{cause}");
        let (_, cause) = failure(&every, Second::Fails, p);
        assert!(matches!(&cause, Cause::LayerFailed { layer, .. } if layer.index == 0), "{cause}");
        let (_, cause) = failure(&every, Second::Wider, p);
        assert!(cause.to_string().starts_with("layer 0 (Counted) gave other outputs"), "{cause}");
        let (site, cause) = failure(&Recompute::every(1).when(|_| panic!("undecided")), Second::Same, p);
        assert!(site.contains("ForwardPass"), "{site}");
        assert!(cause.to_string().contains("undecided"), "{cause}");
    }
}

#[test]
fn a_name_that_no_layer_has_is_refused() {
    let (layers, _) = counted(2, Second::Same);
    let recompute = Recompute::every(1).layers(["Counted", "layer_002"]);
    let error = train(&layers, square, |serial| rows(2, serial), (1, Schedule::GPipe), &recompute);
    let Some(WorldError::Rank { source: EngineError::Build(error), .. }) = error.err() else {
        panic!("it builds");
    };
    assert!(matches!(&error, BuildError::UnknownLayer { name, .. } if name == "layer_002"), "{error}");
}

/// Sleeps, so that its time is known from below.
#[derive(Module, Debug)]
struct Slow {
    by: Param<Tensor<2>>,
}

impl Layer for Slow {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        std::thread::sleep(std::time::Duration::from_millis(3));
        x + self.by.val()
    }
}

/// The time of second runs is told apart from that of backward passes, and a replay counts it.
#[test]
fn a_replay_of_measured_times_counts_what_ran_again() {
    let times = World::local(1).expect("one rank").run(|rank| {
        let slow = |_: usize, d: &Device| Slow { by: Param::from_tensor(Tensor::zeros([1, 4], d)) };
        let layers = Layers::new().repeat(2, slow);
        let module = PipelineModule::builder(&layers, square)
            .micro_batches(3)
            .recompute(Recompute::every(1).when(|segment| segment.micro_batch.0 > 0))
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        let mut data = (0..3).map(|serial| (rows(2, serial), ()));
        let times = engine.train_batch(&mut data)?.expect("a batch").times;
        let replayed = engine.replay(&times).expect("times replay").makespan_s();
        Ok::<_, EngineError>((times, replayed))
    });
    let (times, replayed) = times.expect("trains").remove(0);
    let stage = times.stages[0];
    assert_eq!((stage.backward.count, stage.recompute.count), (3, 2));
    assert!(stage.recompute.total >= std::time::Duration::from_millis(12), "{stage:?}");
    let spent = stage.forward.total + stage.backward.total + stage.recompute.total + times.ranks[0].optimizer;
    assert!((replayed - spent.as_secs_f64()).abs() < 1e-6, "{replayed} and {spent:?}");
    assert!((times.ranks[0].busy.as_secs_f64() - spent.as_secs_f64()).abs() < 1e-6);
}
