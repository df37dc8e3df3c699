//! Optimizers: the fused AdamW against Burn's, configurations, and groups of parameters.

use std::collections::BTreeMap;
use std::ops::Range;

use brigade_engine::optimizer::{ParameterState, StateNumber};
use brigade_engine::{
    AdamWSettings, Cause, ConfigError, EngineError, FusedAdamW, LearningRateSchedule, OptimizerConfig,
    ParameterGroup, PipelineEngine, PipelineModule, TrainConfig, World, WorldError,
};
use burn::module::{Module, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamW, AdamWConfig, AdamWState, AdanConfig, GradientsParams,
    LambConfig, LionConfig, ModuleOptimizer, Optimizer, RmsPropConfig, SgdConfig,
};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::support::{cross_entropy, gpt, tokens};

/// Values of many sizes and both signs, zeros of both signs among them.
fn values(n: u16, seed: f64) -> Tensor<1> {
    let value = |i: u16| match i % 17 {
        3 => 0.0,
        5 => -0.0,
        _ => (f64::from(i) * 1.3 + seed).sin() * 10_f64.powi(i32::from(i % 9) - 6),
    };
    let data: Vec<f32> = (0..n).map(|i| format!("{:e}", value(i)).parse().expect("a number")).collect();
    Tensor::from_data(TensorData::new(data, [usize::from(n)]), &Device::flex())
}

fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u32> {
    tensor.to_data().try_to_vec::<f32>().expect("f32").into_iter().map(f32::to_bits).collect()
}

fn burns(settings: &AdamWSettings) -> AdamW {
    let short = |x: f64| format!("{x:e}").parse::<f32>().expect("a number");
    AdamWConfig::new()
        .with_beta_1(short(settings.beta_1))
        .with_beta_2(short(settings.beta_2))
        .with_epsilon(short(settings.epsilon))
        .with_weight_decay(short(settings.weight_decay))
        .with_amsgrad(settings.amsgrad)
        .with_cautious_weight_decay(settings.cautious_weight_decay)
        .build()
}

fn same_state<const D: usize>(ours: &AdamWState<D>, burns: &AdamWState<D>) -> bool {
    ours.momentum.time == burns.momentum.time
        && bits(&ours.momentum.moment_1) == bits(&burns.momentum.moment_1)
        && bits(&ours.momentum.moment_2) == bits(&burns.momentum.moment_2)
}

#[test]
fn fused_adamw_gives_the_bits_of_burns_adamw() {
    let plain = AdamWSettings::default();
    let all = [
        plain,
        AdamWSettings { weight_decay: 0.1, epsilon: 1e-5, ..plain },
        AdamWSettings { beta_1: 0.0, beta_2: 0.5, ..plain },
        AdamWSettings { amsgrad: true, weight_decay: 0.01, ..plain },
        AdamWSettings { cautious_weight_decay: true, weight_decay: 0.01, ..plain },
    ];
    for settings in all {
        let (ours, burns) = (FusedAdamW::new(settings), burns(&settings));
        let start = values(3001, 0.0);
        let (mut a, mut b) = (start.clone(), start.clone());
        let (mut state_a, mut state_b) = (None, None);
        for step in 0..20_u16 {
            let gradient = values(3001, f64::from(step) + 0.5);
            let rate = 0.03 / f64::from(step + 1);
            (a, state_a) = ours.step(rate, a, gradient.clone(), state_a);
            (b, state_b) = burns.step(rate, b, gradient, state_b);
            assert_eq!(bits(&a), bits(&b), "{settings:?}, step {step}");
            let (a, b) = (state_a.as_ref().expect("a state"), state_b.as_ref().expect("a state"));
            assert!(same_state(a, b), "{settings:?}, step {step}");
        }
        assert_eq!(bits(&start), bits(&values(3001, 0.0)), "a handle of the old weight keeps its values");
    }
}

#[test]
fn fused_adamw_takes_transposed_gradients_and_views() {
    let settings = AdamWSettings { weight_decay: 0.1, ..AdamWSettings::default() };
    let (ours, burns) = (FusedAdamW::new(settings), burns(&settings));
    let whole = values(800, 1.0).reshape([40, 20]);
    let weight = whole.clone().narrow(0, 5, 20);
    let gradient = values(400, 2.0).reshape([20, 20]).transpose();
    let (a, state_a) = ours.step(0.1, weight.clone(), gradient.clone(), None);
    let (b, state_b) = burns.step(0.1, weight, gradient, None);
    assert_eq!(bits(&a), bits(&b));
    assert!(same_state(&state_a.expect("a state"), &state_b.expect("a state")));
    assert_eq!(bits(&whole), bits(&values(800, 1.0).reshape([40, 20])));
}

#[test]
fn fused_adamw_leaves_other_element_types_to_burn() {
    let settings = AdamWSettings::default();
    let (ours, burns) = (FusedAdamW::new(settings), burns(&settings));
    for dtype in [FloatDType::F64, FloatDType::BF16, FloatDType::F16] {
        let (weight, gradient) = (values(50, 1.0).cast(dtype), values(50, 2.0).cast(dtype));
        let (a, _) = ours.step(0.1, weight.clone(), gradient.clone(), None);
        let (b, _) = burns.step(0.1, weight, gradient, None);
        assert_eq!(a.dtype(), DType::from(dtype));
        assert_eq!(bits(&a.cast(FloatDType::F32)), bits(&b.cast(FloatDType::F32)));
    }
}

/// Large tensors are cut over the rank's workers; elements do not meet, so the bits stay.
#[test]
fn fused_adamw_gives_the_same_bits_on_several_workers() {
    let step = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("a pool");
        let weight = Tensor::<1>::cat((0..3_u8).map(|i| values(50_000, f64::from(i))).collect(), 0);
        let gradient = Tensor::<1>::cat((0..3_u8).map(|i| values(50_000, f64::from(i) + 0.5)).collect(), 0);
        let ours = FusedAdamW::new(AdamWSettings::default());
        bits(&pool.install(|| ours.step(0.1, weight, gradient, None)).0)
    };
    assert_eq!(step(1), step(3));
}

/// A module of one parameter of each of two shapes.
#[derive(Module, Debug)]
struct Small {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
}

fn small() -> Small {
    let leaf = |tensor: Tensor<1>| Tensor::<1>::from_inner(tensor).require_grad();
    let matrix = Tensor::<2>::from_inner(values(24, 0.3).reshape([4, 6])).require_grad();
    Small { matrix: Param::from_tensor(matrix), vector: Param::from_tensor(leaf(values(10, 0.7))) }
}

fn small_gradients(module: &Small, step: u8) -> GradientsParams {
    let mut gradients = GradientsParams::new();
    gradients.register(module.matrix.id, values(24, f64::from(step)).reshape([4, 6]));
    gradients.register(module.vector.id, values(10, f64::from(step) + 0.1));
    gradients
}

#[test]
fn every_optimizer_of_a_configuration_is_burns() {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0).with_nesterov(true);
    let decay = || Some(WeightDecayConfig::new(0.1));
    let pairs: Vec<(&str, ModuleOptimizer)> = vec![
        (r#"{"adam": {"weight_decay": 0.1}}"#, {
            AdamConfig::new().with_epsilon(1e-8).with_weight_decay(decay()).init()
        }),
        (r#"{"adam_w": {"weight_decay": 0.1, "amsgrad": true}}"#, {
            AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).with_amsgrad(true).init()
        }),
        (r#"{"sgd": {"momentum": 0.9, "nesterov": true, "weight_decay": 0.1}}"#, {
            SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(decay()).init()
        }),
        (r#"{"sgd": {}}"#, SgdConfig::new().init()),
        (r#"{"ada_grad": {"lr_decay": 0.01}}"#, {
            AdaGradConfig::new().with_epsilon(1e-10).with_lr_decay(0.01).init()
        }),
        (r#"{"rms_prop": {"momentum": 0.5, "centered": true}}"#, {
            RmsPropConfig::new().with_epsilon(1e-8).with_momentum(0.5).with_centered(true).init()
        }),
        (r#"{"lamb": {"weight_decay": 0.1}}"#, {
            LambConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).init()
        }),
        (r#"{"lion": {"weight_decay": 0.1}}"#, LionConfig::new().with_weight_decay(0.1).init()),
        (r#"{"adan": {"weight_decay": 0.1}}"#, AdanConfig::new().with_weight_decay(0.1).init()),
        (r#"{"adafactor": {}}"#, AdafactorConfig::new().init()),
    ];
    for (text, mut burns) in pairs {
        let config: OptimizerConfig = serde_json::from_str(text).expect("a configuration");
        let mut ours = ModuleOptimizer::from(config);
        let mut a = small();
        let mut b = a.clone();
        for step in 0..5 {
            let (for_a, for_b) = (small_gradients(&a, step), small_gradients(&b, step));
            a = ours.step(0.01, a, for_a);
            b = burns.step(0.01, b, for_b);
        }
        assert_eq!(bits(&a.matrix.val().inner()), bits(&b.matrix.val().inner()), "{text}");
        assert_eq!(bits(&a.vector.val().inner()), bits(&b.vector.val().inner()), "{text}");
    }
}

/// The weights of all ranks after `n_steps` steps, by name, and the rates of the steps.
fn train(n_ranks: usize, n_steps: usize, config: &TrainConfig) -> Result<Run, WorldError<EngineError>> {
    let config = config.clone();
    let runs = World::local(n_ranks).expect("a few ranks").run(move |rank| {
        let module = PipelineModule::builder(&gpt(2), cross_entropy).micro_batches(2).build(&rank)?;
        let mut engine = PipelineEngine::from_config(module, config.clone())?;
        let mut data = (0..2 * n_steps).map(|i| tokens(i, 2));
        let mut rates = Vec::new();
        while let Some(report) = engine.train_batch(&mut data)? {
            rates.push(report.learning_rate);
        }
        let parameters = engine.module().parameters().into_iter();
        let parameters = parameters.map(|p| (p.name, p.data.try_to_vec::<f32>().expect("f32")));
        Ok::<_, EngineError>((parameters.collect::<Vec<_>>(), rates))
    })?;
    let rates = runs[0].1.clone();
    assert!(runs.iter().all(|(_, other)| *other == rates), "rates are equal on every rank");
    Ok(Run { weights: runs.into_iter().flat_map(|(weights, _)| weights).collect(), rates })
}

#[derive(Debug)]
struct Run {
    weights: BTreeMap<String, Vec<f32>>,
    rates: Vec<f64>,
}

fn config(text: &str) -> TrainConfig {
    TrainConfig::from_json_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The error that every rank's engine gives for a configuration.
fn refusal(n_ranks: usize, text: &str) -> ConfigError {
    match train(n_ranks, 1, &config(text)) {
        Err(WorldError::Rank { source: EngineError::Config(error), .. }) => error,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn frozen_parameters_stay_by_their_global_names_at_any_number_of_stages() {
    let frozen = config(
        r#"{"learning_rate": 0.1, "optimizer": {"sgd": {}},
            "parameter_groups": [{"pattern": "^layer_001\\.|\\.norm\\.", "frozen": true}]}"#,
    );
    let start = train(1, 0, &frozen).expect("no step").weights;
    let one = train(1, 2, &frozen).expect("a run").weights;
    for (name, values) in &one {
        let stays = name.starts_with("layer_001.") || name.contains(".norm.");
        // The key's bias has no effect on attention, so it may stay as well.
        assert!((values == &start[name]) == stays || name.ends_with("key.bias"), "{name}");
    }
    for n_ranks in [2, 3] {
        assert_eq!(train(n_ranks, 2, &frozen).expect("a run").weights, one, "{n_ranks} ranks");
    }
}

#[test]
fn a_stage_whose_layers_are_all_frozen_still_passes_gradients_on() {
    let text =
        r#"{"optimizer": {"sgd": {}}, "parameter_groups": [{"pattern": "^layer_00[12]", "frozen": true}]}"#;
    let one = train(1, 2, &config(text)).expect("a run").weights;
    assert_eq!(train(4, 2, &config(text)).expect("a run").weights, one);
    assert_ne!(
        one["layer_000.tokens.weight"],
        train(1, 0, &config(text)).expect("no step").weights["layer_000.tokens.weight"]
    );
}

#[test]
fn weight_decay_can_be_off_for_vectors() {
    let run = |groups: &str, decay: f64| {
        let text = format!(
            r#"{{"learning_rate": 0.1, "optimizer": {{"adam_w": {{"weight_decay": {decay}}}}}, "parameter_groups": {groups}}}"#
        );
        [1, 3].map(|n_ranks| train(n_ranks, 1, &config(&text)).expect("a run").weights)
    };
    // After one step the gradients of all three runs are the same.
    let [all, _] = run("[]", 0.3);
    let [none, _] = run("[]", 0.0);
    let [grouped, at_three] = run(r#"[{"dimensions": 1, "weight_decay": 0}]"#, 0.3);
    assert_eq!(grouped, at_three);
    let mut counts = [0, 0];
    for (name, values) in &grouped {
        let is_vector = name.ends_with("bias") || name.contains("norm");
        let expected = if is_vector { &none } else { &all };
        assert_eq!(values, &expected[name], "{name}");
        assert_ne!(all[name], none[name], "{name}");
        counts[usize::from(is_vector)] += 1;
    }
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
}

#[test]
fn groups_have_their_own_learning_rate_and_the_first_match_counts() {
    let plain =
        r#""learning_rate": 0.2, "optimizer": {"sgd": {}}, "schedule": {"linear": {"end": 0, "n_steps": 4}}"#;
    let run = |groups: &str, steps| {
        let text = format!(r#"{{{plain}, "parameter_groups": {groups}}}"#);
        [1, 2].map(|n_ranks| train(n_ranks, steps, &config(&text)).expect("a run"))
    };
    let [start, _] = run("[]", 0);
    let [base, _] = run("[]", 1);
    let groups = r#"[{"pattern": "layer_003", "learning_rate_factor": 0.5}, {"pattern": "layer_00[23]", "learning_rate": 0.4}]"#;
    let [one, two] = run(groups, 1);
    assert_eq!(one.weights, two.weights);
    for (name, after) in &one.weights {
        let factor = match &name[..9] {
            "layer_003" => 0.5,
            "layer_002" => 2.0,
            _ => 1.0,
        };
        let (before, usual) = (&start.weights[name], &base.weights[name]);
        for ((after, before), usual) in after.iter().zip(before).zip(usual) {
            let (moved, usually) = (after - before, usual - before);
            // Differences of nearby numbers: the last bits of the weights are lost.
            assert!((moved - factor * usually).abs() <= 1e-6, "{name}: {moved} and {factor} x {usually}");
        }
    }
    let [three, _] = run(groups, 3);
    for (found, expected) in three.rates.iter().zip([0.2, 0.15, 0.1]) {
        assert!((found - expected).abs() < 1e-12, "{:?}", three.rates);
    }
}

#[test]
fn a_group_that_matches_nothing_on_any_rank_is_refused_with_what_there_is() {
    for n_ranks in [1, 3] {
        let text = r#"{"optimizer": {"sgd": {}},
                       "parameter_groups": [{"pattern": "layer_003"}, {"pattern": "head", "dimensions": 3}]}"#;
        let error = refusal(n_ranks, text).to_string();
        let start = "`parameter_groups[1]` (pattern `head`, 3 dimension(s)) matches no parameter of any stage; \
                     there are layer_000.tokens.weight (2D), layer_000.positions.weight (2D), layer_001.";
        assert!(error.starts_with(start), "{error}");
        assert!(error.ends_with(" more"), "{error}");
    }
}

#[test]
fn settings_that_an_optimizer_cannot_have_are_refused() {
    let muon = refusal(2, r#"{"optimizer": {"muon": {}}}"#);
    assert!(matches!(&muon, ConfigError::Unsupported { path, .. } if path == "optimizer"), "{muon}");
    let pattern = refusal(1, r#"{"optimizer": {"sgd": {}}, "parameter_groups": [{"pattern": "("}]}"#);
    assert!(matches!(&pattern, ConfigError::Value { path, .. } if path == "parameter_groups[0].pattern"));
    let result = World::local(1).expect("one rank").run(|rank| {
        let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
        let mut config = TrainConfig::new(0.1);
        config.parameter_groups = vec![ParameterGroup::no_decay()];
        PipelineEngine::new(module, SgdConfig::new().init(), config).map(|_| ())
    });
    match result {
        Err(WorldError::Rank {
            source: EngineError::Config(ConfigError::Unsupported { path, .. }), ..
        }) => {
            assert_eq!(path, "parameter_groups[0].weight_decay");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_optimizer_is_asked_for_and_no_more() {
    let made = |by_value: bool, in_config: bool| {
        World::local(1).expect("one rank").run(move |rank| {
            let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
            let mut config = TrainConfig::new(0.1);
            config.optimizer = in_config.then(|| OptimizerConfig::Sgd(Default::default()));
            if by_value {
                PipelineEngine::new(module, SgdConfig::new().build(), config).map(|_| ())
            } else {
                PipelineEngine::from_config(module, config).map(|_| ())
            }
        })
    };
    for (by_value, in_config) in [(true, true), (false, false)] {
        match made(by_value, in_config) {
            Err(WorldError::Rank { source: EngineError::Config(_), .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(made(true, false).is_ok() && made(false, true).is_ok());
}

#[test]
fn muon_trains_matrices_beside_another_optimizer_for_the_rest() {
    let text = r#"{"learning_rate": 0.02, "optimizer": {"muon": {}}, "parameter_groups": [
        {"pattern": "layer_000|layer_003", "optimizer": {"adam_w": {}}, "learning_rate": 0.001},
        {"dimensions": 1, "optimizer": {"adam_w": {}}, "learning_rate": 0.001}
    ]}"#;
    let one = train(1, 3, &config(text)).expect("a run").weights;
    assert_eq!(train(3, 3, &config(text)).expect("a run").weights, one);
}

/// What a checkpoint needs: an optimizer made anew, on another number of ranks, goes on bit for bit.
#[test]
fn the_state_of_an_optimizer_goes_on_at_another_number_of_ranks() {
    let text = r#"{"learning_rate": 0.05, "optimizer": {"adam_w": {"weight_decay": 0.1}},
        "parameter_groups": [{"dimensions": 1, "weight_decay": 0, "learning_rate_factor": 2}]}"#;
    let run = |n_ranks: usize, batches: Range<usize>, saved: Option<Saved>| {
        let parts = World::local(n_ranks).expect("a few ranks").run(move |rank| {
            let layers = gpt(2);
            let module = PipelineModule::builder(&layers, cross_entropy).build(&rank)?;
            let mut engine = PipelineEngine::from_config(module, config(text))?;
            if let Some((weights, states)) = saved.clone() {
                engine.set_parameters(&weights)?;
                engine.set_optimizer_state(states)?;
            }
            let mut data = batches.clone().map(|i| tokens(i, 2));
            while engine.train_batch(&mut data)?.is_some() {}
            let weights = engine.module().parameters().into_iter().map(|p| (p.name, p.data));
            Ok::<_, EngineError>((weights.collect::<Vec<_>>(), engine.optimizer_state()?))
        });
        let (mut weights, mut states) = (BTreeMap::new(), BTreeMap::new());
        for (some, others) in parts.expect("a run") {
            weights.extend(some);
            states.extend(others);
        }
        (weights, states)
    };
    let whole = run(1, 0..5, None);
    let half = run(2, 0..3, None);
    let name = "layer_001.attention.query.weight";
    assert_eq!(half.1[name].numbers["momentum.time"], StateNumber::UInt(3));
    assert_eq!(half.1[name].tensors["momentum.moment_1"].shape().as_slice(), [8, 8]);
    for n_ranks in [1, 3] {
        let on = run(n_ranks, 3..5, Some(half.clone()));
        assert!(on == whole, "{n_ranks} ranks");
    }
}

type Saved = (BTreeMap<String, TensorData>, BTreeMap<String, ParameterState>);

#[test]
fn ranks_with_different_configurations_are_told() {
    let result = World::local(2).expect("two ranks").run(|rank| {
        let module = PipelineModule::builder(&gpt(2), cross_entropy).build(&rank)?;
        let mut config = TrainConfig::new(0.1);
        config.optimizer = Some(OptimizerConfig::Sgd(Default::default()));
        if rank.rank().index() == 1 {
            config.schedule = LearningRateSchedule::Exponential { initial: None, gamma: 0.5 };
        }
        let mut engine = PipelineEngine::from_config(module, config)?;
        engine.train_batch(&mut (0..1).map(|i| tokens(i, 2)))?;
        Ok::<_, EngineError>(())
    });
    match result {
        Err(WorldError::Rank { source: EngineError::Step(error), .. }) => {
            assert!(matches!(error.cause(), Cause::CallsDiffer { .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_learning_rate_set_by_the_program_takes_the_place_of_the_schedule() {
    World::local(1)
        .expect("one rank")
        .run(|rank| {
            let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
            let text = r#"{"learning_rate": 1, "optimizer": {"sgd": {}}, "schedule": {"exponential": {"gamma": 0.5}}}"#;
            let mut engine = PipelineEngine::from_config(module, config(text))?;
            let mut data = (0..4).map(|i| tokens(i, 2));
            let mut rate = |engine: &mut PipelineEngine<_, _, _>| {
                Ok::<_, EngineError>(engine.train_batch(&mut data)?.expect("data").learning_rate)
            };
            assert_eq!([rate(&mut engine)?, rate(&mut engine)?], [1.0, 0.5]);
            engine.set_learning_rate(0.125)?;
            assert_eq!([rate(&mut engine)?, rate(&mut engine)?], [0.125, 0.125]);
            Ok::<_, EngineError>(())
        })
        .expect("a run");
}
