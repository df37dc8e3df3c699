//! What goes wrong on one rank ends the step on all of them, soon and with its cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_engine::schedule::{MicroBatch, gpipe, one_f_one_b};
use brigade_engine::topology::{Rank, Stage};
use brigade_engine::{
    Cause, EngineError, Layer, LayerError, Layers, PipelineEngine, PipelineModule, RankHandle, StepError,
    TrainConfig, World, WorldError,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumState;
use burn::optim::{ModuleOptimizer, Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor};

use crate::support::{SCHEDULES, ScheduleFn, formula, quiet_ranks};

/// How a [`Fuse`] fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Never,
    Panic,
    Error,
    /// Runs a backward of its own, so that the engine's finds the graph consumed.
    Backward,
}

/// A linear layer that fails at its n-th forward.
#[derive(Module, Debug)]
struct Fuse {
    linear: Linear,
    #[module(skip)]
    fault: Fault,
    #[module(skip)]
    at: usize,
    #[module(skip)]
    calls: Arc<AtomicUsize>,
}

impl Layer for Fuse {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x)
    }

    fn try_forward(&self, x: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let y = self.forward(x);
        if call != self.at {
            return Ok(y);
        }
        match self.fault {
            Fault::Never => Ok(y),
            Fault::Panic => panic!("the fuse blew"),
            Fault::Error => Err("the fuse is open".into()),
            Fault::Backward => {
                let _ = y.clone().sum().backward();
                Ok(y)
            }
        }
    }
}

/// `n` layers of which number `bad` fails at forward `at`; all count into `calls`.
fn fuses(
    n: usize,
    bad: usize,
    fault: Fault,
    at: usize,
    calls: &Arc<AtomicUsize>,
) -> Layers<Tensor<2>, Tensor<2>> {
    let calls = Arc::clone(calls);
    Layers::new().repeat(n, move |i, d| Fuse {
        linear: formula(LinearConfig::new(3, 3).init(d), i),
        fault: if i == bad { fault } else { Fault::Never },
        at,
        calls: if i == bad { Arc::default() } else { Arc::clone(&calls) },
    })
}

fn square(y: Tensor<2>, t: Tensor<2>) -> Tensor<1> {
    (y - t).powi_scalar(2).mean()
}

fn pairs(n: usize) -> impl Iterator<Item = (Tensor<2>, Tensor<2>)> {
    (0..n).map(|i| {
        let x = Tensor::full([2, 3], f64::from(u16::try_from(i).expect("small")), &Device::flex());
        (x.clone(), x)
    })
}

type Engine = PipelineEngine<Tensor<2>, Tensor<2>, Tensor<2>>;

fn engine(
    rank: &RankHandle,
    layers: &Layers<Tensor<2>, Tensor<2>>,
    schedule: ScheduleFn,
    n_micro_batches: u32,
) -> Result<Engine, EngineError> {
    let module = PipelineModule::builder(layers, square)
        .schedule(schedule)
        .micro_batches(n_micro_batches)
        .build(rank)?;
    PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))
}

/// Runs `step` on every rank of a pipeline and returns each rank's failure; fails when it takes a second.
fn failures(
    n_ranks: usize,
    step: impl Fn(&RankHandle) -> Result<(), StepError> + Send + Sync + 'static,
) -> Vec<StepError> {
    quiet_ranks();
    let started = Instant::now();
    let results = World::local(n_ranks)
        .expect("a few ranks")
        .run(move |rank| Ok::<_, EngineError>(step(&rank)))
        .expect("the failure is a value of each rank");
    assert!(started.elapsed() < Duration::from_secs(1), "all ranks end within a second");
    results.into_iter().map(|result| result.expect_err("every rank fails")).collect()
}

/// Every rank has the same error.
fn same(errors: &[StepError]) -> &StepError {
    for error in errors {
        assert_eq!(error.to_string(), errors[0].to_string());
    }
    &errors[0]
}

#[test]
fn a_failing_forward_on_any_rank_ends_every_rank_with_its_place() {
    for p in 1..=4 {
        for bad in 0..p {
            for (fault, text) in
                [(Fault::Panic, "panicked: the fuse blew"), (Fault::Error, "failed: the fuse is open")]
            {
                for (_, schedule) in SCHEDULES {
                    let errors = failures(p, move |rank| {
                        let layers = fuses(p, bad, fault, 2, &Arc::default());
                        let mut engine = engine(rank, &layers, schedule, 4).expect("the engine is built");
                        engine.train_batch(&mut pairs(8)).map(|_| ())
                    });
                    let error = same(&errors);
                    let place = u64::try_from(bad).expect("small");
                    assert_eq!(error.site().rank, Rank(place));
                    assert_eq!(error.site().stage, Some(Stage(u32::try_from(bad).expect("small"))));
                    assert_eq!(error.site().micro_batch, Some(MicroBatch(2)));
                    assert!(error.site().instruction.starts_with("ForwardPass"), "{error}");
                    assert!(error.to_string().ends_with(&format!("layer {bad} (Fuse) {text}")), "{error}");
                }
            }
        }
    }
}

#[test]
fn a_panic_in_the_backward_pass_ends_every_rank() {
    for bad in 0..3 {
        let errors = failures(3, move |rank| {
            let layers = fuses(3, bad, Fault::Backward, 1, &Arc::default());
            let mut engine = engine(rank, &layers, one_f_one_b, 4).expect("the engine is built");
            engine.train_batch(&mut pairs(4)).map(|_| ())
        });
        let error = same(&errors);
        assert_eq!(error.site().stage, Some(Stage(u32::try_from(bad).expect("small"))));
        assert_eq!(error.site().micro_batch, Some(MicroBatch(1)));
        assert!(error.site().instruction.starts_with("BackwardPass"), "{error}");
        assert!(matches!(error.cause(), Cause::Panicked { what: "the backward pass", .. }), "{error}");
    }
}

#[test]
fn a_failed_engine_gives_the_same_failure_again() {
    let errors = failures(2, |rank| {
        let layers = fuses(2, 1, Fault::Panic, 0, &Arc::default());
        let mut engine = engine(rank, &layers, one_f_one_b, 2).expect("the engine is built");
        let mut data = pairs(8);
        let first = engine.train_batch(&mut data).expect_err("the fuse blows");
        let second = engine.train_batch(&mut data).expect_err("the engine is over");
        assert_eq!(first.to_string(), second.to_string());
        let third = engine.eval_batch(&mut data, 1).expect_err("the engine is over");
        assert_eq!(first.to_string(), third.to_string());
        Err(second)
    });
    same(&errors);
}

#[test]
fn a_loss_that_panics_or_is_not_one_number_is_named() {
    fn run(loss: fn(Tensor<2>, Tensor<2>) -> Tensor<1>) -> StepError {
        let errors = failures(2, move |rank| {
            let layers = fuses(2, 0, Fault::Never, 0, &Arc::default());
            let module = PipelineModule::builder(&layers, loss).micro_batches(2).build(rank).expect("builds");
            let config = TrainConfig::new(0.1);
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config).expect("joins");
            engine.train_batch(&mut pairs(2)).map(|_| ())
        });
        same(&errors).clone()
    }
    let error = run(|_, _| panic!("no loss today"));
    assert!(error.to_string().ends_with("the loss function panicked: no loss today"), "{error}");
    assert_eq!((error.site().rank, error.site().stage), (Rank(1), Some(Stage(1))));
    let error = run(|y, _| y.reshape([6]));
    assert!(matches!(error.cause(), Cause::LossShape { elements: 6 }), "{error}");
}

#[test]
fn an_optimizer_that_panics_ends_every_rank() {
    #[derive(Clone)]
    struct Broken;
    impl Optimizer for Broken {
        type State<const D: usize> = MomentumState<D>;
        fn step<const D: usize>(
            &self,
            _lr: f64,
            _tensor: Tensor<D>,
            _grad: Tensor<D>,
            _state: Option<Self::State<D>>,
        ) -> (Tensor<D>, Option<Self::State<D>>) {
            panic!("no step today")
        }
        fn to_device<const D: usize>(state: Self::State<D>, _device: &Device) -> Self::State<D> {
            state
        }
    }
    let errors = failures(2, |rank| {
        let layers = fuses(2, 0, Fault::Never, 0, &Arc::default());
        let module = PipelineModule::builder(&layers, square).build(rank).expect("builds");
        let optimizer: ModuleOptimizer =
            if rank.rank() == Rank(1) { Broken.into() } else { SgdConfig::new().init() };
        let config = TrainConfig::new(0.1);
        let mut engine = PipelineEngine::new(module, optimizer, config).expect("joins");
        engine.train_batch(&mut pairs(1)).map(|_| ())
    });
    let error = same(&errors);
    assert!(error.to_string().ends_with("OptimizerStep(): the optimizer panicked: no step today"), "{error}");
}

#[test]
fn data_that_ends_inside_a_batch_is_an_error_before_any_forward() {
    for p in 1..=3 {
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&calls);
        let errors = failures(p, move |rank| {
            // No layer is the bad one, so every forward counts.
            let layers = fuses(3, 9, Fault::Never, 0, &seen);
            let mut engine = engine(rank, &layers, one_f_one_b, 4).expect("the engine is built");
            engine.train_batch(&mut pairs(3)).map(|_| ())
        });
        let error = same(&errors);
        assert!(matches!(error.cause(), Cause::DataEnded { wanted: 4, found: 3 }), "{error}");
        assert_eq!(calls.load(Ordering::Relaxed), 0, "no forward ran");
    }
}

#[test]
fn data_that_ends_between_batches_is_the_end() {
    let reports = World::local(3)
        .expect("three ranks")
        .run(|rank| {
            let mut engine = engine(&rank, &fuses(3, 9, Fault::Never, 0, &Arc::default()), gpipe, 4)?;
            let mut data = pairs(8);
            let mut n_steps = 0;
            while engine.train_batch(&mut data)?.is_some() {
                n_steps += 1;
            }
            Ok::<_, EngineError>(n_steps)
        })
        .expect("the data ends after two batches");
    assert_eq!(reports, [2, 2, 2]);
}

#[test]
fn ranks_with_different_amounts_of_data_are_told() {
    let errors = failures(3, |rank| {
        let mut engine =
            engine(rank, &fuses(3, 9, Fault::Never, 0, &Arc::default()), gpipe, 4).expect("builds");
        let n = if rank.rank() == Rank(2) { 2 } else { 4 };
        engine.train_batch(&mut pairs(n)).map(|_| ())
    });
    let error = same(&errors);
    assert!(matches!(error.cause(), Cause::DataDiffers { other: Rank(0), there: 4, here: 2 }), "{error}");
    assert_eq!(error.site().rank, Rank(2));
}

#[test]
fn a_data_source_that_panics_ends_every_rank() {
    let errors = failures(2, |rank| {
        let mut engine =
            engine(rank, &fuses(2, 9, Fault::Never, 0, &Arc::default()), gpipe, 2).expect("builds");
        let bad = rank.rank() == Rank(0);
        let mut data = pairs(2).inspect(move |_| assert!(!bad, "the disk is gone"));
        engine.train_batch(&mut data).map(|_| ())
    });
    let error = same(&errors);
    assert!(error.to_string().contains("the data source panicked: the disk is gone"), "{error}");
}

#[test]
fn ranks_that_make_different_calls_are_told() {
    let errors = failures(2, |rank| {
        let mut engine =
            engine(rank, &fuses(2, 9, Fault::Never, 0, &Arc::default()), gpipe, 2).expect("builds");
        if rank.rank() == Rank(0) {
            engine.train_batch(&mut pairs(2)).map(|_| ())
        } else {
            engine.eval_batch(&mut pairs(2), 2).map(|_| ())
        }
    });
    assert!(matches!(same(&errors).cause(), Cause::CallsDiffer { .. }), "{}", errors[0]);
}

#[test]
fn ranks_that_build_different_plans_are_told() {
    let errors = failures(2, |rank| {
        let m = if rank.rank() == Rank(0) { 2 } else { 3 };
        let layers = fuses(2, 9, Fault::Never, 0, &Arc::default());
        match engine(rank, &layers, gpipe, m) {
            Ok(mut engine) => engine.train_batch(&mut pairs(6)).map(|_| ()),
            Err(EngineError::Step(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    });
    let cause = same(&errors).cause();
    assert!(matches!(cause, Cause::LinkDiffers { .. } | Cause::CallsDiffer { .. }), "{cause}");
}

#[test]
fn ranks_with_different_seeds_or_exclusive_layers_are_told() {
    for what in ["seed", "exclusive"] {
        let result = World::local(2).expect("two ranks").run(move |rank| {
            let is_odd = rank.rank() == Rank(1);
            let layers = Layers::new().repeat(2, |_, d| {
                let linear = LinearConfig::new(3, 3).init(d);
                Fuse { linear, fault: Fault::Never, at: 0, calls: Arc::default() }
            });
            let builder = PipelineModule::builder(&layers, square);
            let builder = match (is_odd, what) {
                (true, "seed") => builder.base_seed(99),
                (true, _) => builder.exclusive(["Fuse"]),
                (false, _) => builder,
            };
            let module = builder.build(&rank)?;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
            let error = engine.train_batch(&mut pairs(1)).expect_err("the ranks differ");
            Ok::<_, EngineError>(error.cause().to_string())
        });
        let told = result.expect("every rank is told");
        assert_eq!(told[0], told[1]);
        assert!(
            told[0].contains(what) && told[0].contains("every rank must make the same calls"),
            "{told:?}"
        );
    }
}

/// What a rank needs for its stages is gone with its program.
#[test]
fn a_handle_used_after_its_program_has_ended_is_told() {
    let handles = World::local(2).expect("two ranks").run(Ok::<_, EngineError>);
    for rank in handles.expect("nothing goes wrong") {
        let layers = Layers::new().repeat(2, |_, d| {
            let linear = LinearConfig::new(3, 3).init(d);
            Fuse { linear, fault: Fault::Never, at: 0, calls: Arc::default() }
        });
        let module = PipelineModule::builder(&layers, square).build(&rank).expect("a sound module");
        let engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1));
        match engine {
            Err(EngineError::Step(error)) => assert!(matches!(error.cause(), Cause::ProgramEnded), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_program_that_returns_an_error_ends_the_others_and_is_returned() {
    let started = Instant::now();
    let result = World::local(3).expect("three ranks").run(|rank| {
        let mut engine = engine(&rank, &fuses(3, 9, Fault::Never, 0, &Arc::default()), gpipe, 2)
            .map_err(|error| error.to_string())?;
        if rank.rank() == Rank(1) {
            return Err("out of disk".to_owned());
        }
        engine.train_batch(&mut pairs(2)).map(|_| ()).map_err(|error| error.to_string())
    });
    assert!(started.elapsed() < Duration::from_secs(1));
    match result {
        Err(WorldError::Rank { rank: Rank(1), source }) => assert_eq!(source, "out of disk"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_panics_ends_the_others_and_is_returned() {
    quiet_ranks();
    let result = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank, &fuses(2, 9, Fault::Never, 0, &Arc::default()), gpipe, 2)?;
        assert_eq!(rank.rank(), Rank(1), "rank 0 has had enough");
        engine.train_batch(&mut pairs(2)).map(|_| ()).map_err(EngineError::from)
    });
    match result {
        Err(WorldError::Panicked { rank: Rank(0), message }) => assert!(message.contains("had enough")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_ends_early_is_named_to_those_who_wait_for_it() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank, &fuses(2, 9, Fault::Never, 0, &Arc::default()), gpipe, 2)?;
        if rank.rank() == Rank(0) {
            return Ok(());
        }
        engine.train_batch(&mut pairs(2)).map(|_| ()).map_err(EngineError::from)
    });
    match result {
        Err(WorldError::Rank { rank: Rank(1), source: EngineError::Step(error) }) => {
            assert!(matches!(error.cause(), Cause::PeerEnded { peer: Rank(0), .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_never_comes_is_named_when_the_deadline_is_over_and_given_up() {
    let world = World::local(2).expect("two ranks").deadline(Duration::from_millis(200));
    let result = world.run(|rank| {
        let mut engine = engine(&rank, &fuses(2, 9, Fault::Never, 0, &Arc::default()), gpipe, 2)?;
        if rank.rank() == Rank(0) {
            loop {
                std::thread::park();
            }
        }
        engine.train_batch(&mut pairs(2)).map(|_| ()).map_err(EngineError::from)
    });
    match result {
        Err(WorldError::Stuck { rank: Rank(0), n_ranks: 1, first, .. }) => {
            assert_eq!(first.site().rank, Rank(1));
            assert!(first.to_string().contains("nothing came from rank(s) 0 within 200ms"), "{first}");
        }
        other => panic!("{other:?}"),
    }
}
