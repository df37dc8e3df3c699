//! What ran wrong elsewhere or here once, one story a test.

use std::sync::Mutex;
use std::time::Duration;

use brigade_engine::schedule::{Schedule, one_f_one_b};
use brigade_engine::topology::Rank;
use brigade_engine::{
    BuildError, Cause, EngineError, Layer, Layers, PipelineEngine, PipelineModule, RankHandle, TrainConfig,
    World, WorldError, nn,
};
use burn::module::{Module, Param, ParamId};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

use crate::support::{cross_entropy, data, gpt, tokens};

/// Graphs of stages on several threads are independent; Burn once lost gradients under
/// backward passes that ran at the same time, and two threads that share leaves deadlock.
#[test]
fn hundreds_of_steps_on_four_threads_stay_equal_to_each_other() {
    let run = || {
        World::local(4)
            .expect("four ranks")
            .run(|rank| {
                let module = PipelineModule::builder(&gpt(2), cross_entropy)
                    .schedule(one_f_one_b)
                    .micro_batches(6)
                    .build(&rank)?;
                let config = TrainConfig::new(0.003);
                let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), config)?;
                let mut source = (0..300 * 6).map(|serial| tokens(serial % 7, 1));
                let mut losses = Vec::new();
                while let Some(report) = engine.train_batch(&mut source)? {
                    losses.push(report.loss);
                }
                Ok::<_, EngineError>(losses)
            })
            .expect("the run ends well")
    };
    let losses = run();
    assert_eq!(losses[0].len(), 300);
    assert!(losses[0][299] < 0.5 * losses[0][0], "{} to {}", losses[0][0], losses[0][299]);
    assert!(losses.iter().all(|rank| *rank == losses[0]));
    assert_eq!(run(), losses, "a second run gives the same numbers");
}

type Plain = Layers<Tensor<2>, Tensor<2>>;
type PlainEngine = PipelineEngine<Tensor<2>, Tensor<2>, Tensor<2>>;

#[derive(Module, Debug)]
struct Eager {
    weight: Param<Tensor<2>>,
}

impl Layer for Eager {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val())
    }
}

fn square(y: Tensor<2>, t: Tensor<2>) -> Tensor<1> {
    (y - t).powi_scalar(2).mean()
}

fn pairs(n: usize) -> impl Iterator<Item = (Tensor<2>, Tensor<2>)> {
    (0..n).map(|_| (Tensor::ones([2, 4], &Device::flex()), Tensor::zeros([2, 4], &Device::flex())))
}

fn build(rank: &RankHandle, layers: &Plain, schedule: Schedule) -> Result<PlainEngine, EngineError> {
    let module = PipelineModule::builder(layers, square)
        .partition("uniform".parse()?)
        .schedule(move |shape| schedule.plan(shape))
        .micro_batches(4)
        .build(rank)?;
    PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))
}

fn constant(i: usize) -> impl Fn(&Device) -> Tensor<2> {
    let value = 0.1 + 0.05 * f64::from(u32::try_from(i).expect("small"));
    move |device| Tensor::full([4, 4], value, device)
}

/// Counting parameters once ran builders without their seed beside another rank's initialisation, so that
/// layers which draw at once got numbers that depended on the timing of threads.
#[test]
fn builders_that_draw_at_once_give_the_same_weights_at_any_split() {
    let weights = |p: usize| {
        let parts = World::local(p).expect("a few ranks").run(|rank| {
            let layers = Layers::new().repeat(12, |_, d| Eager {
                weight: Param::from_tensor(Tensor::random([4, 4], Distribution::Normal(0.0, 0.5), d)),
            });
            Ok::<_, EngineError>(build(&rank, &layers, Schedule::OneFOneB)?.module().parameters())
        });
        data(&parts.expect("builds").concat())
    };
    let whole = weights(1);
    for _ in 0..5 {
        for p in 1..=4 {
            assert_eq!(weights(p), whole, "p={p}");
        }
    }
}

/// Clones of one module in two layers share a parameter id, which Burn's gradients take for one parameter on
/// one rank and for two on two ranks.
#[test]
fn a_parameter_in_two_layers_is_refused() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let one = Mutex::new(Eager { weight: Param::from_tensor(constant(0)(&Device::flex().autodiff())) });
        let layers = Layers::new().repeat(4, move |_, _| one.lock().expect("no panic").clone());
        Ok::<_, EngineError>(build(&rank, &layers, Schedule::OneFOneB).err().map(|error| error.to_string()))
    });
    for error in result.expect("errors are values here") {
        let error = error.expect("refused");
        assert!(error.contains('0') && error.contains('1'), "names both layers: {error}");
    }
}

/// A builder that starts a pipeline of its own waited for itself for ever.
#[test]
fn a_builder_that_builds_a_pipeline_is_told_when_the_deadline_is_over() {
    let world = World::local(1).expect("one rank").deadline(Duration::from_millis(100));
    let result = world.run(|rank| {
        let inner = rank.clone();
        let layers = Layers::new().layer(move |d| {
            let layers = Layers::new().layer(|d| Eager { weight: Param::from_tensor(constant(0)(d)) });
            build(&inner, &layers, Schedule::GPipe).expect("it is not this builder's turn");
            Eager { weight: Param::from_tensor(constant(0)(d)) }
        });
        build(&rank, &layers, Schedule::GPipe).map(|_| ())
    });
    match result {
        Err(WorldError::Rank { source: EngineError::Build(error), .. }) => {
            assert!(matches!(&error, BuildError::LayerPanicked { layer, .. } if layer.index == 0), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// Ranks whose models, cuts or learning rates differ once trained something that nobody wrote.
#[test]
fn ranks_that_run_different_models_are_told_at_once() {
    for what in 0..3 {
        let result = World::local(2).expect("two ranks").run(move |rank| {
            let second = rank.rank().index() == 1;
            let n_layers = if second && what == 0 { 4 } else { 8 };
            let layers =
                Layers::new().repeat(n_layers, |i, d| Eager { weight: Param::from_tensor(constant(i)(d)) });
            let method = if second && what == 1 { "cuts:0,1,8" } else { "uniform" };
            let module = PipelineModule::builder(&layers, square).partition(method.parse()?).build(&rank)?;
            let learning_rate = if second && what == 2 { 0.2 } else { 0.1 };
            let config = TrainConfig::new(learning_rate);
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
            engine.train_batch(&mut pairs(1)).map(|_| ()).map_err(EngineError::from)
        });
        match result {
            Err(WorldError::Rank { source: EngineError::Step(error), .. }) => {
                assert!(matches!(error.cause(), Cause::CallsDiffer { .. }), "{error}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

/// Two engines used in another order on one rank waited for the whole deadline.
#[test]
fn engines_used_in_another_order_are_told_at_once() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let layers = Layers::new().repeat(4, |i, d| Eager { weight: Param::from_tensor(constant(i)(d)) });
        let mut engines = [build(&rank, &layers, Schedule::GPipe)?, build(&rank, &layers, Schedule::GPipe)?];
        engines[rank.rank().index()].train_batch(&mut pairs(4)).map(|_| ()).map_err(EngineError::from)
    });
    match result {
        Err(WorldError::Rank { source: EngineError::Step(error), .. }) => {
            assert!(matches!(error.cause(), Cause::CallsDiffer { .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// A panic whose payload panics when it is dropped once left the world waiting at full speed.
#[test]
fn a_panic_that_cannot_be_dropped_ends_the_world() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "the bomb went off");
        }
    }
    for p in 1..=2 {
        let result = World::local(p).expect("a few ranks").run(|rank| -> Result<(), EngineError> {
            if rank.rank().index() == 0 {
                std::panic::panic_any(Bomb);
            }
            let layers = Layers::new().repeat(2, |i, d| Eager { weight: Param::from_tensor(constant(i)(d)) });
            build(&rank, &layers, Schedule::GPipe)?.train_batch(&mut pairs(4))?;
            Ok(())
        });
        assert!(matches!(result, Err(WorldError::Panicked { rank: Rank(0), .. })), "{result:?}");
    }
}

#[test]
fn a_deadline_beyond_the_clock_is_for_ever() {
    let world = World::local(2).expect("two ranks").deadline(Duration::MAX);
    let result = world.run(|rank| {
        let layers = Layers::new().repeat(2, |i, d| Eager { weight: Param::from_tensor(constant(i)(d)) });
        Ok::<_, EngineError>(build(&rank, &layers, Schedule::GPipe)?.train_batch(&mut pairs(4))?.is_some())
    });
    assert_eq!(result.expect("the step runs"), [true, true]);
}

/// A builder that ignored its device trained nothing, without a word.
#[test]
fn layers_built_without_autodiff_learn_all_the_same() {
    let losses = World::local(2).expect("two ranks").run(|rank| {
        let layers = Layers::new()
            .repeat(2, |i, _| Eager { weight: Param::from_tensor(constant(i)(&Device::flex())) });
        let mut engine = build(&rank, &layers, Schedule::OneFOneB)?;
        let mut data = pairs(40);
        let mut losses = Vec::new();
        while let Some(report) = engine.train_batch(&mut data)? {
            losses.push(report.loss);
        }
        Ok::<_, EngineError>(losses)
    });
    let losses = losses.expect("the run ends well").remove(0);
    assert!(losses[9] < 0.5 * losses[0], "{losses:?}");
}

/// The gradient of a weight that is computed from others cannot wait, since it flows on.
#[test]
fn linear_layers_with_a_computed_weight_train_under_zero_bubble_schedules() {
    #[derive(Module, Debug)]
    struct Scaled {
        base: Param<Tensor<2>>,
        gain: Param<Tensor<1>>,
    }
    impl Layer for Scaled {
        type Input = Tensor<2>;
        type Output = Tensor<2>;
        fn forward(&self, x: Tensor<2>) -> Tensor<2> {
            let weight = self.base.val() * self.gain.val().unsqueeze();
            let linear = nn::Linear { weight: Param::initialized(ParamId::new(), weight), bias: None };
            linear.forward(x)
        }
    }
    let weights = |schedule: Schedule| {
        let parts = World::local(2).expect("two ranks").run(move |rank| {
            let layers = Layers::new().repeat(2, |i, d| Scaled {
                base: Param::from_tensor(constant(i)(d)),
                gain: Param::from_tensor(Tensor::ones([1], d)),
            });
            let mut engine = build(&rank, &layers, schedule)?;
            engine.train_batch(&mut pairs(4))?;
            Ok::<_, EngineError>(engine.module().parameters())
        });
        data(&parts.expect("the step runs").concat())
    };
    assert_eq!(weights(Schedule::ZbH1), weights(Schedule::OneFOneB));
}

#[test]
fn an_observer_that_panics_ends_every_rank() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let layers = Layers::new().repeat(2, |i, d| Eager { weight: Param::from_tensor(constant(i)(d)) });
        let mut engine = build(&rank, &layers, Schedule::GPipe)?;
        if rank.rank().index() == 1 {
            engine.observe_gradients(|_| panic!("nothing to see"));
        }
        Ok::<_, EngineError>(engine.train_batch(&mut pairs(4)).err().map(|error| error.to_string()))
    });
    for error in result.expect("errors are values here") {
        let error = error.expect("every rank fails");
        assert!(
            error.contains("rank 1") && error.contains("the gradient observer panicked: nothing"),
            "{error}"
        );
    }
}
