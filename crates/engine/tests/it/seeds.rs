//! Seeds of layers, stages without layers, and counts of parameters: all independent of the split.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use brigade_engine::partition::{Options, PartitionError, PartitionMethod, Pin};
use brigade_engine::schedule::interleaved_one_f_one_b;
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    BuildError, EngineError, Layer, Layers, ModuleSummary, NamedTensor, ParameterCount, PipelineModule,
    PipelineModuleBuilder, World,
};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};

use crate::runs::{batch, linear, same_at_every_split, schedules, square, train};

type Plain = Layers<Tensor<2>, Tensor<2>>;
type Builder = PipelineModuleBuilder<Tensor<2>, Tensor<2>, Tensor<2>>;

fn random(n: usize) -> Plain {
    (0..n).fold(Layers::new(), |layers, _| {
        layers.with(|d| LinearConfig::new(3, 3).init(d), |linear: &Linear, x| linear.forward(x))
    })
}

/// The initial weights of the whole model over `p` ranks, in the order of the layers.
fn weights(
    p: usize,
    layers: &Plain,
    settings: impl Fn(Builder) -> Builder + Send + Sync + 'static,
) -> Result<Vec<(String, TensorData)>, BuildError> {
    let layers = layers.clone();
    let parts = World::local(p).expect("a few ranks").run(move |rank| {
        let builder = PipelineModule::builder(&layers, square).partition("uniform".parse()?);
        Ok::<_, EngineError>(settings(builder).build(&rank).map(|module| module.parameters()))
    });
    let parts = parts.expect("errors are values here").into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut all: Vec<_> = parts.concat().into_iter().map(|NamedTensor { name, data }| (name, data)).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.dedup_by(|(a, one), (b, other)| {
        assert!(a != b || one == other, "replicas start equal");
        a == b
    });
    Ok(all)
}

#[test]
fn initial_weights_depend_on_neither_ranks_nor_virtual_stages_nor_replicas() {
    let layers = random(8);
    let whole = weights(1, &layers, |b| b).unwrap();
    assert_eq!(whole.len(), 16);
    assert_ne!(whole[1].1, whole[3].1, "layers differ");
    for p in [2, 3, 4] {
        assert_eq!(weights(p, &layers, |b| b).unwrap(), whole, "p={p}");
    }
    for v in [2, 4] {
        let schedule = move |shape| interleaved_one_f_one_b(shape, v);
        assert_eq!(
            weights(2, &layers, move |b| b.micro_batches(4).schedule(schedule)).unwrap(),
            whole,
            "v={v}"
        );
    }
    let replicas = |b: Builder| b.topology(ProcessTopology::pipe_data(2, 2).expect("two by two"));
    assert_eq!(weights(4, &layers, replicas).unwrap(), whole);
}

#[test]
fn a_seed_function_chooses_the_seed_of_each_layer() {
    let layers = random(4);
    // The same seed for layers 0 and 2, and for 1 and 3.
    let function = |b: Builder| b.base_seed(40).seed_fn(|base, layer| base + u64::from(layer % 2 == 1));
    let whole = weights(1, &layers, function).unwrap();
    let bits = |i: usize| (whole[2 * i].1.clone(), whole[2 * i + 1].1.clone());
    assert!(bits(0) == bits(2) && bits(1) == bits(3) && bits(0) != bits(1));
    assert_eq!(weights(3, &layers, function).unwrap(), whole);
    // Seeds 40 and 41 are those of the first two layers from 40 on.
    let counted = weights(1, &layers, |b| b.base_seed(40)).unwrap();
    assert_eq!(counted[..4], whole[..4]);
    assert_ne!(counted[4..], whole[4..]);

    let error = weights(2, &layers, |b| b.seed_fn(|_, layer| [1, 2][layer])).unwrap_err();
    assert!(matches!(&error, BuildError::LayerPanicked { layer, .. } if layer.index == 2), "{error}");
}

/// A builder with a generator of its own: seeded by the hook, its weights do not depend on the split.
#[test]
fn a_hook_seeds_other_generators() {
    let whole = {
        let run = |p: usize, hooked: bool| {
            let state = Arc::new(AtomicU64::new(0));
            let drawn = Arc::clone(&state);
            let layers = (0..4).fold(Plain::new(), move |layers, _| {
                let drawn = Arc::clone(&drawn);
                let build = move |d: &Device| {
                    // A step of a linear congruential generator.
                    let next = |x: u64| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let x = drawn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |x| Some(next(x)));
                    let x = next(x.unwrap_or_default()) >> 48;
                    let value = f32::from(u16::try_from(x).expect("16 bits"));
                    let linear = LinearConfig::new(2, 2).with_bias(false).init(d);
                    Linear { weight: Param::from_tensor(Tensor::full([2, 2], value, d)), ..linear }
                };
                layers.with(build, |linear: &Linear, x| linear.forward(x))
            });
            weights(p, &layers, move |b| {
                let state = Arc::clone(&state);
                if hooked { b.seed_hook(move |seed| state.store(seed, Ordering::Relaxed)) } else { b }
            })
            .unwrap()
        };
        let whole = run(1, true);
        assert_eq!(run(2, true), whole);
        assert_eq!(run(4, true), whole);
        assert_ne!(run(2, false), run(1, false), "without the hook the split shows");
        whole
    };
    assert_ne!(whole[0].1, whole[1].1);
}

/// Counting looks at layers without making their parameters: only the owner's are ever made.
#[test]
fn counting_makes_no_parameter() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&made);
    let layers = (0..4_usize).fold(Plain::new(), |layers, i| {
        let log = Arc::clone(&log);
        let build = move |d: &Device| {
            let log = Arc::clone(&log);
            let init = move |device: &Device, require_grad: bool| {
                log.lock().expect("no panic").push((i, std::thread::current().name().map(str::to_owned)));
                Tensor::<2>::random([3, 3], Distribution::Default, device).set_require_grad(require_grad)
            };
            let linear = LinearConfig::new(3, 3).with_bias(false).init(d);
            let weight = Param::uninitialized(linear.weight.id, init, d.clone(), i != 1, [3, 3].into());
            Linear { weight, ..linear }
        };
        layers.with(build, |linear: &Linear, x| linear.forward(x))
    });
    let summaries = World::local(2).unwrap().run(move |rank| {
        let module = PipelineModule::builder(&layers, square).partition("uniform".parse()?).build(&rank)?;
        Ok::<_, EngineError>(module.summary().clone())
    });
    let summaries = summaries.unwrap();
    assert_eq!(summaries[0], summaries[1]);
    let trainable: Vec<u64> = summaries[0].layers.iter().map(|layer| layer.parameters.n_trainable).collect();
    assert_eq!(trainable, [9, 0, 9, 9]);
    let mut made = made.lock().expect("no panic").clone();
    made.sort();
    let owners = [0, 0, 1, 1].map(|rank| Some(format!("brigade-rank-{rank}")));
    assert_eq!(made, (0..4).zip(owners).collect::<Vec<_>>(), "each parameter once, by its owner");
}

#[test]
fn stages_without_layers_are_refused_or_hand_their_input_on() {
    let error = weights(4, &random(3), |b| b).unwrap_err();
    assert!(
        matches!(error, BuildError::Partition(PartitionError::TooFewLayers { n_layers: 3, n_stages: 4, .. })),
        "{error}"
    );
    let allow_empty = |b: Builder| b.partition_options(Options { allow_empty: true, ..Options::default() });
    let whole = weights(1, &random(3), allow_empty).unwrap();
    assert_eq!(weights(4, &random(3), allow_empty).unwrap(), whole);
}

/// Stages without layers anywhere: at the front, in the middle, at the end; under every schedule.
#[test]
fn empty_stages_change_no_number() {
    let layers = Layers::<Tensor<2>, _>::new()
        .with(|d| linear(0, d), |linear, x| linear.forward(x))
        .map(|x: Tensor<2>| (x.clone().tanh(), x))
        .with(|d| linear(1, d), |linear, (a, b): (Tensor<2>, Tensor<2>)| linear.forward(a) * b);
    let whole = same_at_every_split(&layers, square, &batch(&[2, 1, 3]));
    let mut n_compared = 0;
    for cuts in ["0,0,1,2,3", "0,1,1,2,3", "0,1,2,3,3", "0,3,3,3,3", "0,0,0,3,3"] {
        let method: PartitionMethod = format!("cuts:{cuts}").parse().expect("cuts");
        for (schedule, p) in schedules(3, |n_stages| n_stages == 4) {
            let plan = move |shape| schedule.plan(shape);
            let seen = train(p, plan, method.clone(), &layers, square, &batch(&[2, 1, 3]));
            assert_eq!(seen, whole, "{schedule}, {cuts}");
            n_compared += 1;
        }
    }
    assert!(n_compared >= 30, "{n_compared} comparisons");
}

#[test]
fn layers_can_be_bound_to_a_stage() {
    let pins = vec![Pin::Stage { layer: 1, stage: 1 }];
    let whole = weights(2, &random(4), move |b| {
        b.partition_options(Options { pins: pins.clone(), ..Options::default() })
    });
    assert_eq!(whole.unwrap(), weights(1, &random(4), |b| b).unwrap());
}

#[derive(Module, Debug)]
struct Mixed {
    norm: BatchNorm,
    inner: Linear,
    frozen: Linear,
    half: Param<Tensor<1>>,
}

impl Layer for Mixed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.frozen.forward(self.inner.forward(self.norm.forward(x)))
    }
}

fn mixed(d: &Device) -> Mixed {
    let half = Tensor::<1>::from_data(TensorData::from([0.5; 6]), (d, DType::BF16));
    Mixed {
        norm: BatchNormConfig::new(3).init(d),
        inner: LinearConfig::new(3, 3).init(d),
        frozen: LinearConfig::new(3, 3).init(d).no_grad(),
        half: Param::from_tensor(half),
    }
}

fn summary(p: usize) -> ModuleSummary {
    let all = World::local(p).expect("a few ranks").run(|rank| {
        let embed = |d: &Device| Embed { tokens: EmbeddingConfig::new(7, 3).init(d) };
        let layers = Layers::<Tensor<2>, _>::new()
            .layer(mixed)
            .named("mixed")
            // Built without autodiff: trained all the same.
            .with(
                |d| LinearConfig::new(3, 3).init(&d.clone().inner()),
                |linear: &Linear, x| linear.forward(x),
            )
            .map(|x: Tensor<2>| x)
            .tied("tokens", ["tokens.weight"], embed)
            .tied_with("tokens", |embed: &Embed, x: Tensor<2>| {
                x + embed.tokens.weight.val().mean().unsqueeze()
            });
        let module = PipelineModule::builder(&layers, square).partition("uniform".parse()?).build(&rank)?;
        Ok::<_, EngineError>(module.summary().clone())
    });
    let all = all.expect("a summary");
    assert!(all.iter().all(|summary| *summary == all[0]), "the same on every rank");
    all[0].clone()
}

#[derive(Module, Debug)]
struct Embed {
    tokens: Embedding,
}

impl Layer for Embed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x * self.tokens.weight.val().mean().unsqueeze()
    }
}

#[test]
fn the_summary_counts_trained_frozen_and_shared_parameters_on_every_rank() {
    let whole = summary(1);
    let count = |n_trainable, n_frozen, bytes| ParameterCount { n_trainable, n_frozen, bytes };
    // Batch norm: 6 trained, 6 running; a trained and a frozen linear layer of 12; 6 of two bytes.
    assert_eq!(whole.layers[0].parameters, count(6 + 12 + 6, 6 + 12, 4 * 36 + 2 * 6));
    assert_eq!(whole.layers[1].parameters, count(12, 0, 48));
    assert_eq!(whole.layers[2].parameters, count(0, 0, 0));
    assert_eq!((whole.layers[3].parameters, whole.layers[3].unique), (count(21, 0, 84), count(21, 0, 84)));
    assert_eq!((whole.layers[4].parameters, whole.layers[4].unique), (count(21, 0, 84), count(0, 0, 0)));
    assert_eq!((whole.total, whole.unique), (count(78, 18, 372), count(57, 18, 288)));
    for p in 2..=5 {
        let split = summary(p);
        assert_eq!((split.total, split.unique, split.stages.len()), (whole.total, whole.unique, p));
        let stages = split.stages.iter();
        assert_eq!(stages.clone().map(|stage| stage.parameters).sum::<ParameterCount>(), whole.total);
        assert_eq!(stages.map(|stage| stage.unique).sum::<ParameterCount>(), whole.unique);
        let unsplit =
            |layer: &brigade_engine::LayerSummary| (layer.parameters, layer.unique, layer.name.clone());
        assert!(split.layers.iter().map(unsplit).eq(whole.layers.iter().map(unsplit)));
    }
    assert_eq!(
        format!("{:#}", summary(2)),
        "\
layer  name   type     stage  parameters  trainable  frozen  unique  bytes
    0  mixed  Mixed        0          42         24      18      42    156
    1         Linear       0          12         12       0      12     48
    2         closure      0           0          0       0       0      0
    3         Embed        1          21         21       0      21     84
    4         Embed        1          21         21       0       0     84
total                                 96         78      18      75    372
"
    );
}

/// As in DeepSpeed, only trained parameters weigh in cuts by parameters.
#[test]
fn cuts_by_parameters_weigh_trained_ones() {
    let cuts = World::local(2).unwrap().run(|rank| {
        let layers = (0..4_usize).fold(Plain::new(), |layers, i| {
            let width = if i == 0 { 50 } else { 3 };
            let build = move |d: &Device| {
                let up: Linear = LinearConfig::new(3, width).init(d);
                let down: Linear = LinearConfig::new(width, 3).init(d);
                if i == 0 { (up.no_grad(), down.no_grad()) } else { (up, down) }
            };
            layers.with(build, |(up, down), x| down.forward(up.forward(x)))
        });
        let module = PipelineModule::builder(&layers, square).build(&rank)?;
        Ok::<_, EngineError>(module.cuts().boundaries().to_vec())
    });
    assert_eq!(cuts.unwrap()[0], [0, 3, 4]);
}
