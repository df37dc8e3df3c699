//! Clipping is over the whole model, at any number of stages.

use brigade_engine::schedule::Schedule;
use brigade_engine::{
    BuildError, EngineError, GradientClipping, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig,
    World, WorldError,
};
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use crate::support::{cross_entropy, data, gpt, tokens};

/// Adds its number times a factor, which is then its gradient.
#[derive(Module, Debug)]
struct Times {
    number: Param<Tensor<1>>,
    #[module(skip)]
    factor: f64,
}

impl Layer for Times {
    type Input = Tensor<1>;
    type Output = Tensor<1>;
    fn forward(&self, x: Tensor<1>) -> Tensor<1> {
        x + self.number.val() * self.factor
    }
}

/// Two stages with gradients 3 and 4: the norm is 5 on both, and so is the factor.
#[test]
fn the_norm_and_the_factor_are_those_of_all_stages() {
    let run = |p: usize, clipping: Option<GradientClipping>| {
        let parts = World::local(p).expect("a few ranks").run(move |rank| {
            let layers = Layers::new().repeat(2, |i, d| Times {
                number: Param::from_tensor(Tensor::zeros([1], d)),
                factor: [3.0, -4.0][i],
            });
            let module = PipelineModule::builder(&layers, |y: Tensor<1>, _: ()| y).build(&rank)?;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(1.0))?;
            engine.set_gradient_clipping(clipping)?;
            let mut source = std::iter::repeat_with(|| (Tensor::<1>::zeros([1], &Device::flex()), ()));
            let report = engine.train_batch(&mut source)?.expect("endless data");
            Ok::<_, EngineError>((report.gradient_norm, data(&engine.module().parameters())))
        });
        let parts = parts.expect("the step runs");
        let norm = parts[0].0;
        assert!(parts.iter().all(|part| part.0 == norm), "every rank reports the same norm");
        let values = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
        (norm, parts.into_iter().flat_map(|part| part.1).flat_map(values).collect::<Vec<f64>>())
    };
    for p in 1..=2 {
        let (norm, moved) = run(p, Some(GradientClipping::GlobalNorm(1.0)));
        assert_eq!(norm, Some(5.0));
        for (found, expected) in moved.iter().zip([-0.6, 0.8]) {
            // PyTorch's 1e-6 beside the norm, and f32.
            assert!((found - expected).abs() < 1e-6, "{moved:?}, p={p}");
        }
        assert_eq!(run(p, Some(GradientClipping::GlobalNorm(6.0))), (Some(5.0), vec![-3.0, 4.0]));
        assert_eq!(run(p, Some(GradientClipping::Value(3.5))), (None, vec![-3.0, 3.5]));
        assert_eq!(run(p, None), (None, vec![-3.0, 4.0]));
    }
}

/// The norm is summed in one order, so that clipped training has the same bits at every split.
#[test]
fn clipped_training_is_equal_at_every_split() {
    let run = |schedule: Schedule, p: usize, clipping: GradientClipping| {
        let parts = World::local(p).expect("a few ranks").run(move |rank| {
            let module = PipelineModule::builder(&gpt(4), cross_entropy)
                .schedule(move |shape| schedule.plan(shape))
                .micro_batches(4)
                .build(&rank)?;
            let config = TrainConfig::new(0.01);
            let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), config)?;
            engine.set_gradient_clipping(Some(clipping))?;
            let mut source = (0..12).map(|serial| tokens(serial, 2));
            let mut seen = Vec::new();
            while let Some(report) = engine.train_batch(&mut source)? {
                seen.push((report.loss, report.gradient_norm));
            }
            Ok::<_, EngineError>((seen, engine.module().parameters()))
        });
        let parts = parts.expect("the run ends well");
        let seen = parts[0].0.clone();
        let mut weights: Vec<_> = parts.into_iter().flat_map(|part| part.1).collect();
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        (seen, data(&weights))
    };
    for clipping in [GradientClipping::GlobalNorm(0.2), GradientClipping::Value(0.01)] {
        let whole = run(Schedule::GPipe, 1, clipping);
        assert_eq!(whole.0.len(), 3);
        for p in 2..=3 {
            for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
                assert_eq!(run(schedule, p, clipping), whole, "{schedule}, p={p}, {clipping:?}");
            }
        }
        assert_eq!(run(Schedule::Interleaved { n_virtual: 2 }, 3, clipping), whole, "{clipping:?}");
    }
}

#[test]
fn bounds_that_are_not_above_zero_are_refused() {
    for bound in [0.0, -1.0, f64::NAN] {
        for clipping in [GradientClipping::GlobalNorm(bound), GradientClipping::Value(bound)] {
            let result = World::local(1).expect("one rank").run(move |rank| {
                let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
                let config = TrainConfig::new(0.1);
                let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
                Ok::<_, EngineError>(engine.set_gradient_clipping(Some(clipping))?)
            });
            match result {
                Err(WorldError::Rank { source: EngineError::Build(BuildError::Clipping { .. }), .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn the_norm_of_a_model_without_trained_parameters_is_zero() {
    let norms = World::local(2).expect("two ranks").run(|rank| {
        let layers = Layers::new().repeat(2, |_, d| {
            Times { number: Param::from_tensor(Tensor::ones([1], d)), factor: 2.0 }.no_grad()
        });
        let loss = |y: Tensor<1>, _: Tensor<1>| y;
        let module = PipelineModule::builder(&layers, loss).build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        engine.set_gradient_clipping(Some(GradientClipping::GlobalNorm(1.0)))?;
        let one = Tensor::<1>::ones([1], &Device::flex());
        let report = engine.train_batch(&mut std::iter::once((one.clone(), one)))?.expect("a batch");
        Ok::<_, EngineError>(report.gradient_norm.map(f64::to_bits))
    });
    assert_eq!(norms.expect("the run ends well"), [Some(0.0_f64.to_bits()); 2], "and not -0");
}
