//! Training configurations: texts, and DeepSpeed's `ds_config.json`.

use std::fs;
use std::path::{Path, PathBuf};

use brigade_engine::{
    ConfigError, DynamicLossScale, GradientClipping, LearningRateSchedule, LossScale, OptimizerConfig,
    ParameterGroup, PipelineModule, Precision, TrainConfig, World,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{cross_entropy, gpt};

fn folder() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/ds_config");
    std::env::var_os("BRIGADE_DS_CONFIG").map_or_else(default, PathBuf::from)
}

fn read(name: &str) -> String {
    let path = folder().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Tells where `found` lacks something of `expected`; what is not expected may be anything.
fn lacks(found: &Value, expected: &Value, path: &str) -> Option<String> {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => expected.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            found
                .get(key)
                .map_or_else(|| Some(format!("{path} is absent")), |found| lacks(found, value, &path))
        }),
        _ if found == expected => None,
        _ => Some(format!("{path} is {found}, not {expected}")),
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a golden test says how many cases it ran")]
fn ds_configs_give_the_expected_configurations_warnings_and_errors() {
    let expected: Value = serde_json::from_str(&read("expected.json")).expect("JSON");
    let cases = expected["cases"].as_array().expect("a list");
    for case in cases {
        let file = case["file"].as_str().expect("a name");
        let n_replicas = u32::try_from(case["n_replicas"].as_u64().expect("a number")).expect("small");
        let read = TrainConfig::from_deepspeed_file(folder().join(file), n_replicas);
        match (read, case.get("error")) {
            (Ok((config, warnings)), None) => {
                let found = serde_json::to_value(&config).expect("JSON");
                assert_eq!(lacks(&found, &case["config"], file), None);
                let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
                assert_eq!(json!(warnings), case["warnings"], "{file}");
            }
            (Err(error), Some(expected)) => {
                assert_eq!(Some(error.to_string().as_str()), expected.as_str(), "{file}");
            }
            (read, _) => panic!("{file} with {n_replicas} replicas: {read:?}"),
        }
    }
    assert!(!cases.is_empty());
    println!("{} cases of ds_config", cases.len());
}

#[test]
fn any_two_of_the_three_batch_sizes_give_the_third() {
    let mut n_cases = 0;
    for n_replicas in 1..=3_u32 {
        for micro in 1..=4_u32 {
            for steps in 1..=4_u32 {
                let sizes = json!({
                    "train_batch_size": micro * steps * n_replicas,
                    "train_micro_batch_size_per_gpu": micro,
                    "gradient_accumulation_steps": steps,
                });
                let left_out = sizes.as_object().expect("an object").keys().cloned();
                for key in left_out.map(Some).chain([None]) {
                    let mut sizes = sizes.clone();
                    key.as_ref().map(|key| sizes.as_object_mut().expect("an object").remove(key));
                    let read = TrainConfig::from_deepspeed_str(&sizes.to_string(), n_replicas);
                    let (config, warnings) = read.unwrap_or_else(|error| panic!("{sizes}: {error}"));
                    assert_eq!((config.micro_batch_size, config.micro_batches), (Some(micro), Some(steps)));
                    assert!(warnings.is_empty());
                    n_cases += 1;
                }
            }
        }
    }
    assert_eq!(n_cases, 3 * 4 * 4 * 4);
}

#[test]
fn a_batch_of_no_samples_is_refused_by_its_path() {
    for (text, path) in [
        (r#"{"train_batch_size": 0}"#, "train_batch_size"),
        (r#"{"train_batch_size": 4.5}"#, "train_batch_size"),
        (r#"{"train_batch_size": -4}"#, "train_batch_size"),
        (r#"{"train_batch_size": 4, "gradient_accumulation_steps": 0}"#, "gradient_accumulation_steps"),
    ] {
        match TrainConfig::from_deepspeed_str(text, 1) {
            Err(ConfigError::Value { path: found, .. }) => assert_eq!(found, path),
            other => panic!("{text}: {other:?}"),
        }
    }
    match TrainConfig::from_deepspeed_str(r#"{"train_batch_size": 4}"#, 0) {
        Err(ConfigError::BatchSizes { n_replicas: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn rich() -> TrainConfig {
    let mut config = TrainConfig::new(0.25);
    config.optimizer = Some(OptimizerConfig::Sgd(Default::default()));
    config.schedule = LearningRateSchedule::Warmup {
        start: 0.0,
        n_steps: 3,
        then: Box::new(LearningRateSchedule::Cosine { initial: None, min: 0.01, n_steps: 7 }),
    };
    config.parameter_groups = vec![ParameterGroup::no_decay(), ParameterGroup::matching("^layer_000")];
    config.gradient_clipping = Some(GradientClipping::GlobalNorm(1.0));
    config.precision = Precision::F16;
    config.loss_scale = Some(LossScale::Dynamic(DynamicLossScale { window: 7, ..Default::default() }));
    config.micro_batches = Some(8);
    config.partition = Some("type:block".to_owned());
    config
}

#[test]
fn configurations_survive_json_and_toml() {
    for config in [TrainConfig::default(), TrainConfig::new(0.5), rich()] {
        let json = serde_json::to_string(&config).expect("JSON");
        assert_eq!(TrainConfig::from_json_str(&json).expect("its own text"), config);
        let toml = toml::to_string(&config).expect("TOML");
        assert_eq!(TrainConfig::from_toml_str(&toml).expect("its own text"), config);
    }
    assert_eq!(TrainConfig::from_json_str("{} // nothing").expect("defaults"), TrainConfig::default());
    assert_eq!(TrainConfig::from_toml_str("").expect("defaults"), TrainConfig::default());
}

#[test]
fn wrong_configurations_are_refused_with_the_path_of_what_is_wrong() {
    let cases = [
        (r#"{"learning_rat": 1}"#, "learning_rat"),
        (r#"{"learning_rate": "fast"}"#, "learning_rate"),
        (r#"{"learning_rate": -1}"#, "learning_rate"),
        (r#"{"optimizer": {"adam_w": {"beta_1": 1.0}}}"#, "optimizer.beta_1"),
        (r#"{"optimizer": {"adam_w": {"beta": 0.5}}}"#, "optimizer.adam_w.beta"),
        (r#"{"optimizer": {"sgd": {"nesterov": true}}}"#, "optimizer.momentum"),
        (r#"{"optimizer": {"adamx": {}}}"#, "optimizer"),
        (r#"{"schedule": {"cosine": {}}}"#, "schedule.cosine"),
        (r#"{"schedule": {"cosine": {"n_steps": 0}}}"#, "schedule.n_steps"),
        (
            r#"{"schedule": {"warmup": {"n_steps": 1, "then": {"step": {"n_steps": 1, "gamma": -1}}}}}"#,
            "schedule.then.gamma",
        ),
        (
            r#"{"schedule": {"sequential": {"schedules": ["constant", "constant"], "milestones": []}}}"#,
            "schedule.milestones",
        ),
        (r#"{"parameter_groups": [{"frozen": true}]}"#, "parameter_groups[0].pattern"),
        (
            r#"{"parameter_groups": [{"dimensions": 1}, {"dimensions": 2, "weight_decay": -1}]}"#,
            "parameter_groups[1].weight_decay",
        ),
        (r#"{"gradient_clipping": {"value": 0}}"#, "gradient_clipping"),
        (r#"{"loss_scale": {"dynamic": {"factor": 1}}}"#, "loss_scale.dynamic.factor"),
        (r#"{"micro_batches": 0}"#, "micro_batches"),
        (r#"{"optimizer_sharding": "gradients"}"#, "optimizer_sharding"),
        (r#"{"partition": "halves"}"#, "partition"),
        (r#"{"precision": "f8"}"#, "precision"),
        (r#"{"precision": "f32"} {"#, "."),
        (r#"[]"#, "."),
    ];
    for (text, expected) in cases {
        let path = match TrainConfig::from_json_str(text) {
            Err(
                ConfigError::Text { path, .. }
                | ConfigError::Value { path, .. }
                | ConfigError::Unsupported { path, .. },
            ) => path,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(path, expected, "{text}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = TrainConfig::from_json_file("no/such.json").expect_err("no file");
    assert!(error.to_string().starts_with("no/such.json cannot be read: "), "{error}");
    let error = TrainConfig::from_toml_file("no/such.toml").expect_err("no file");
    assert!(matches!(error, ConfigError::File { .. }));
}

#[test]
fn a_builder_takes_micro_batches_and_partition_from_a_configuration() {
    let n_micro_batches = World::local(2).expect("two ranks").run(|rank| {
        let text = r#"{"micro_batches": 3, "partition": "uniform"}"#;
        let config = TrainConfig::from_json_str(text)?;
        let module = PipelineModule::builder(&gpt(2), cross_entropy).config(&config)?.build(&rank)?;
        assert_eq!(module.cuts().boundaries(), [0, 2, 4]);
        Ok::<_, brigade_engine::EngineError>(module.n_micro_batches())
    });
    assert_eq!(n_micro_batches.expect("both build"), [3, 3]);
}

/// JSON of any form, with the keys that readers know among others.
fn any_json() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "optimizer",
        "type",
        "params",
        "lr",
        "betas",
        "scheduler",
        "fp16",
        "bf16",
        "enabled",
        "initial_scale_power",
        "loss_scale",
        "zero_optimization",
        "stage",
        "pipeline",
        "partition_method",
        "checkpoint",
        "tag_validation",
        "gradient_clipping",
        "wandb",
        "amp",
        "learning_rate",
        "schedule",
        "cosine",
        "adam_w",
        "n_steps",
        "parameter_groups",
        "pattern",
        "total_num_steps",
        "warmup_num_steps",
        "x",
    ]);
    let texts =
        prop::sample::select(vec!["auto", "Adam", "WarmupDecayLR", "OneCycle", "type:(", "constant", "é"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..100_u8).prop_map(Value::from),
        texts.prop_map(Value::from),
        ".{0,80}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        let entries = prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner.clone(), 0..8);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            entries.prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(value in any_json(), text in ".{0,200}", n_replicas in any::<u32>()) {
        for text in [value.to_string(), text] {
            let _ = TrainConfig::from_json_str(&text);
            let _ = TrainConfig::from_toml_str(&text);
            if let Ok((config, _)) = TrainConfig::from_deepspeed_str(&text, n_replicas) {
                // What is read can be written, and then read again.
                let written = serde_json::to_string(&config).expect("JSON");
                prop_assert_eq!(TrainConfig::from_json_str(&written).expect("its own text"), config);
            }
        }
    }

    #[test]
    fn ds_configs_of_any_sizes_agree_or_are_refused(
        train in prop::option::of(0..40_u32),
        micro in prop::option::of(0..8_u32),
        steps in prop::option::of(0..8_u32),
        n_replicas in 1..4_u32,
    ) {
        let text = json!({
            "train_batch_size": train,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": steps,
        });
        if let Ok((config, _)) = TrainConfig::from_deepspeed_str(&text.to_string(), n_replicas) {
            let (size, count) = (config.micro_batch_size.expect("a size"), config.micro_batches.expect("a number"));
            prop_assert!(micro.is_none_or(|micro| micro == size));
            prop_assert!(steps.is_none_or(|steps| steps == count));
            prop_assert!(train.is_none_or(|train| train == size * count * n_replicas));
        }
    }
}
