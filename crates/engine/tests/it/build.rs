//! A module is built as asked, or refused with the facts.

use brigade_engine::partition::PartitionError;
use brigade_engine::schedule::{Plan, forward_only, gpipe};
use brigade_engine::topology::{ProcessTopology, Stage};
use brigade_engine::{
    BuildError, EngineError, Layer, Layers, PipelineEngine, PipelineModule, RankHandle, TrainConfig, World,
    WorldSizeError,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Int, Tensor};

use crate::support::{cross_entropy, data, gpt};

type Built = Result<PipelineModule<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>, BuildError>;

/// A rank's stages, and the boundaries of all stages.
type Split = (Vec<Stage>, Vec<usize>);

/// Builds on every rank; the first rank's error, or the modules' stages and cuts.
fn build(
    n_ranks: usize,
    make: impl Fn(&RankHandle) -> Built + Send + Sync + 'static,
) -> Result<Vec<Split>, BuildError> {
    let built = World::local(n_ranks).expect("a few ranks").run(move |rank| {
        Ok::<_, EngineError>(make(&rank).map(|m| (m.stages().collect(), m.cuts().boundaries().to_vec())))
    });
    built.expect("errors are values here").into_iter().collect()
}

#[test]
fn layers_are_cut_as_asked() {
    let uniform = build(2, |rank| {
        PipelineModule::builder(&gpt(4), cross_entropy).partition("uniform".parse().unwrap()).build(rank)
    });
    assert_eq!(uniform.unwrap(), [(vec![Stage(0)], vec![0, 3, 6]), (vec![Stage(1)], vec![0, 3, 6])]);
    // 4 blocks of 8 x (4 x 8 + 2 x 16) and more dominate: two for each stage.
    let balanced = build(2, |rank| PipelineModule::builder(&gpt(4), cross_entropy).build(rank)).unwrap();
    assert_eq!(balanced[0].1, [0, 3, 6]);
    let by_type = build(2, |rank| {
        PipelineModule::builder(&gpt(3), cross_entropy)
            .partition("type:block|head".parse().unwrap())
            .build(rank)
    });
    assert_eq!(by_type.unwrap()[0].1, [0, 3, 5]);
}

#[test]
fn more_stages_than_layers_is_refused() {
    let error = build(4, |rank| PipelineModule::builder(&gpt(1), cross_entropy).build(rank)).unwrap_err();
    assert!(matches!(error, BuildError::Partition(PartitionError::TooFewLayers { .. })), "{error:?}");
}

#[test]
fn an_empty_list_is_refused() {
    let built = World::local(1).unwrap().run(|rank| {
        let layers = Layers::<Tensor<2>, Tensor<2>>::new();
        Ok::<_, EngineError>(PipelineModule::builder(&layers, |y, _: ()| y.mean()).build(&rank).map(|_| ()))
    });
    assert!(matches!(built.unwrap()[0], Err(BuildError::NoLayers)));
}

#[test]
fn a_topology_of_another_size_or_with_other_axes_is_refused() {
    let error = build(2, |rank| {
        let topology = ProcessTopology::pipe_data(3, 1)?;
        PipelineModule::builder(&gpt(3), cross_entropy).topology(topology).build(rank)
    });
    assert!(matches!(error.unwrap_err(), BuildError::WorldSize { ranks: 3, world: 2, .. }));
    let error = build(2, |rank| {
        let topology = ProcessTopology::pipe_data_model(1, 1, 2)?;
        PipelineModule::builder(&gpt(3), cross_entropy).topology(topology).build(rank)
    });
    let error = error.unwrap_err();
    assert!(error.to_string().starts_with("axis `model` has size 2"), "{error}");
}

#[test]
fn a_schedule_that_does_not_train_or_does_not_fit_is_refused() {
    let error =
        build(2, |rank| PipelineModule::builder(&gpt(3), cross_entropy).schedule(forward_only).build(rank));
    assert!(matches!(error.unwrap_err(), BuildError::PlanKind { wanted: "training", .. }));
    let error = build(2, |rank| {
        PipelineModule::builder(&gpt(3), cross_entropy)
            .schedule(|mut shape| {
                shape.n_ranks = 3;
                gpipe(shape)
            })
            .build(rank)
    });
    assert!(matches!(error.unwrap_err(), BuildError::PlanRanks { plan: 3, topology: 2 }));
    let error = build(2, |rank| PipelineModule::builder(&gpt(3), cross_entropy).micro_batches(0).build(rank));
    assert!(matches!(error.unwrap_err(), BuildError::Schedule(_)));
}

#[test]
fn an_unsound_plan_is_refused() {
    // The second micro-batch has no backward pass on rank 1.
    let error = build(2, |rank| {
        PipelineModule::builder(&gpt(3), cross_entropy)
            .micro_batches(2)
            .schedule(|_| {
                let text = "placement linear:2; micro-batches 2\n0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n";
                Ok(text.parse::<Plan>().expect("the text is well formed"))
            })
            .build(rank)
    });
    assert!(matches!(error.unwrap_err(), BuildError::Check(_) | BuildError::Lower(_)));
}

#[derive(Module, Debug)]
struct Plain {
    linear: Linear,
}

impl Layer for Plain {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x)
    }
}

#[test]
fn a_layer_that_panics_while_it_is_built_is_named() {
    let built = World::local(2).unwrap().run(|rank| {
        let layers = Layers::new().repeat(3, |i, d| {
            assert_ne!(i, 1, "no such layer");
            Plain { linear: LinearConfig::new(2, 2).init(d) }
        });
        Ok::<_, EngineError>(PipelineModule::builder(&layers, |y, _: ()| y.mean()).build(&rank).map(|_| ()))
    });
    for result in built.unwrap() {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, BuildError::LayerPanicked { layer, .. } if layer.to_string() == "layer 1 (Plain)"),
            "{error}"
        );
    }
}

#[test]
fn random_weights_depend_on_the_layer_and_the_seed_and_not_on_the_split() {
    let weights = |p: usize, seed: u64| {
        let parts = World::local(p).unwrap().run(move |rank| {
            let layers = Layers::new().repeat(4, |_, d| Plain { linear: LinearConfig::new(5, 5).init(d) });
            let module =
                PipelineModule::builder(&layers, |y, _: ()| y.mean()).base_seed(seed).build(&rank)?;
            Ok::<_, EngineError>(module.parameters())
        });
        parts.unwrap().concat()
    };
    let whole = weights(1, 7);
    assert_eq!(whole[0].name, "layer_000.linear.weight");
    assert_eq!(whole[7].name, "layer_003.linear.bias");
    assert_ne!(whole[0].data, whole[2].data, "layers differ");
    assert_ne!(data(&whole), data(&weights(1, 8)), "seeds differ");
    for p in 2..=4 {
        let split = weights(p, 7);
        assert_eq!(data(&split), data(&whole));
        assert!(split.iter().zip(&whole).all(|(a, b)| a.name == b.name));
    }
}

#[test]
fn impossible_worlds_and_learning_rates_are_refused() {
    assert_eq!(World::local(0).unwrap_err(), WorldSizeError::Size { ranks: 0, max: 4096 });
    assert!(World::local(5000).is_err());
    assert!(World::local(1).unwrap().threads_per_rank(0).is_err());
    for learning_rate in [f64::NAN, f64::INFINITY, -1.0] {
        let result = World::local(1).unwrap().run(move |rank| {
            let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
            PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(learning_rate)).map(|_| ())
        });
        assert!(result.unwrap_err().to_string().contains("rank 0"));
    }
}
