//! Reads DeepSpeed's `ds_config.json` into a training configuration.

mod object;
mod optimizer;
mod scheduler;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use serde_json::Value;

use self::object::Object;
use super::{CheckpointSettings, FileMonitor, TagValidation, TrainConfig, WandbMonitor, text};
use crate::clipping::GradientClipping;
use crate::config::precision::{DynamicLossScale, LossScale, Precision};
use crate::error::ConfigError;
use crate::reduce::OptimizerSharding;

/// Something in a `ds_config.json` that has no effect, or another one than in DeepSpeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigWarning {
    /// Nothing reads this key.
    Unused {
        /// Where in the configuration.
        path: String,
    },
    /// `"auto"` waits for another program to fill it in; it was taken as left out.
    Auto {
        /// Where in the configuration.
        path: String,
    },
    /// Brigade does it in another way.
    Differs {
        /// Where in the configuration.
        path: String,
        /// How.
        note: String,
    },
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused { path } => write!(f, "`{path}` is not used"),
            Self::Auto { path } => write!(f, "`{path}` is \"auto\", which is taken as left out"),
            Self::Differs { path, note } => write!(f, "`{path}`: {note}"),
        }
    }
}

impl TrainConfig {
    /// Reads the text of a `ds_config.json` for `n_replicas` data-parallel replicas.
    ///
    /// Of the three sizes of a batch two are enough; `gradient_accumulation_steps` is the number of
    /// micro-batches. What is left out has DeepSpeed's default. Comments are passed over.
    ///
    /// # Errors
    /// [`ConfigError`] with the JSON path of the first value that cannot be used, or with all sizes of
    /// batches when they contradict each other. A key that is not known is no error but a warning.
    ///
    /// # Source
    /// DeepSpeed's `runtime/config.py`, `runtime/precision_config.py`, `runtime/lr_schedules.py` and
    /// `monitor/config.py`, for names and defaults.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::TrainConfig;
    ///
    /// let text = r#"{
    ///     "train_batch_size": 256,
    ///     "train_micro_batch_size_per_gpu": 8,
    ///     "optimizer": {"type": "AdamW", "params": {"lr": 0.0003, "betas": [0.9, 0.95]}},
    ///     "gradient_clipping": 1.0,
    ///     "zero_optimization": {"stage": 1, "overlap_comm": true}
    /// }"#;
    /// let (config, warnings) = TrainConfig::from_deepspeed_str(text, 4)?;
    /// assert_eq!(config.micro_batches, Some(8));
    /// assert_eq!(config.learning_rate, 0.0003);
    /// assert_eq!(warnings[0].to_string(), "`zero_optimization.overlap_comm` is not used");
    /// # Ok::<(), brigade_engine::ConfigError>(())
    /// ```
    pub fn from_deepspeed_str(
        text: &str,
        n_replicas: u32,
    ) -> Result<(Self, Vec<ConfigWarning>), ConfigError> {
        let text = text::without_comments(text);
        let mut reader = serde_json::Deserializer::from_str(&text);
        let text::Strict(value) =
            serde_path_to_error::deserialize(&mut reader).map_err(|error| text::at(&error))?;
        reader.end().map_err(|error| text::whole(&error))?;
        let warnings = RefCell::new(Vec::new());
        let mut root = Object::new("", &value, &warnings)?;
        let mut config = Self::default();
        batch_sizes(&mut root, &mut config, n_replicas)?;
        optimizer::read(&mut root, &mut config)?;
        if let Some(schedule) = scheduler::read(&mut root)? {
            config.schedule = schedule;
        }
        precision(&mut root, &mut config)?;
        if let Some(bound) = root.number("gradient_clipping")? {
            config.gradient_clipping = (bound != 0.0).then_some(GradientClipping::GlobalNorm(bound));
        }
        if let Some(mut zero) = root.object("zero_optimization")? {
            config.optimizer_sharding = sharding(zero.count("stage")?.unwrap_or(0))?;
            zero.finish();
        }
        config.steps_per_print = Some(root.positive("steps_per_print")?.unwrap_or(10));
        config.wall_clock_breakdown = root.flag("wall_clock_breakdown")?.unwrap_or(false);
        pipeline(&mut root, &mut config)?;
        checkpoint(&mut root, &mut config.checkpoint)?;
        monitors(&mut root, &mut config)?;
        refused(&mut root)?;
        root.finish();
        config.check()?;
        Ok((config, warnings.into_inner()))
    }

    /// Reads a `ds_config.json`.
    ///
    /// # Errors
    /// As for [`from_deepspeed_str`](Self::from_deepspeed_str); [`ConfigError::File`] when it cannot be read.
    pub fn from_deepspeed_file(
        path: impl AsRef<Path>,
        n_replicas: u32,
    ) -> Result<(Self, Vec<ConfigWarning>), ConfigError> {
        Self::from_deepspeed_str(&super::read(path.as_ref())?, n_replicas)
    }
}

const TRAIN: &str = "train_batch_size";
const MICRO: &str = "train_micro_batch_size_per_gpu";
const STEPS: &str = "gradient_accumulation_steps";

/// Takes two of the three sizes, and computes or compares the third.
fn batch_sizes(root: &mut Object<'_>, config: &mut TrainConfig, n_replicas: u32) -> Result<(), ConfigError> {
    let automatic = [TRAIN, MICRO, STEPS].into_iter().any(|key| root.is_auto(key));
    let [train, micro, steps] = [root.positive(TRAIN)?, root.positive(MICRO)?, root.positive(STEPS)?];
    if train.is_none() && micro.is_none() && !automatic {
        return Err(ConfigError::Value {
            path: TRAIN.to_owned(),
            found: "absent".to_owned(),
            expected: format!("two of `{TRAIN}`, `{MICRO}` and `{STEPS}`"),
        });
    }
    let contradiction = || ConfigError::BatchSizes {
        train_batch_size: u64::from(train.unwrap_or(0)),
        micro_batch_size: micro.map_or("(not given)".to_owned(), |n| n.to_string()),
        accumulation_steps: steps.map_or("(not given)".to_owned(), |n| n.to_string()),
        n_replicas,
    };
    let wide = u64::from;
    let share = |total: u32, parts: u64| {
        let part = wide(total).checked_div(parts).filter(|part| part * parts == wide(total) && *part > 0);
        part.and_then(|part| u32::try_from(part).ok()).ok_or_else(contradiction)
    };
    let replicas = wide(n_replicas);
    (config.micro_batch_size, config.micro_batches) = match (train, micro, steps) {
        (Some(train), Some(micro), Some(steps)) => {
            let product = wide(micro).checked_mul(wide(steps)).and_then(|n| n.checked_mul(replicas));
            if product != Some(wide(train)) {
                return Err(contradiction());
            }
            (Some(micro), Some(steps))
        }
        (Some(train), Some(micro), None) => {
            (Some(micro), Some(share(train, wide(micro).saturating_mul(replicas))?))
        }
        (Some(train), None, steps) => {
            let steps = steps.unwrap_or(1);
            (Some(share(train, wide(steps).saturating_mul(replicas))?), Some(steps))
        }
        (None, Some(micro), steps) => (Some(micro), Some(steps.unwrap_or(1))),
        (None, None, steps) => (None, steps),
    };
    Ok(())
}

fn precision(root: &mut Object<'_>, config: &mut TrainConfig) -> Result<(), ConfigError> {
    let mut half = false;
    if let Some(mut fp16) = root.object("fp16")? {
        half = fp16.flag("enabled")?.unwrap_or(false);
        let fixed = fp16.number("loss_scale")?.unwrap_or(0.0);
        let defaults = DynamicLossScale::default();
        let power = fp16.count("initial_scale_power")?.unwrap_or(16);
        let dynamic = DynamicLossScale {
            initial: 2.0_f64.powi(i32::try_from(power).unwrap_or(i32::MAX)),
            window: fp16.positive("loss_scale_window")?.unwrap_or(defaults.window),
            hysteresis: fp16.positive("hysteresis")?.unwrap_or(defaults.hysteresis),
            consecutive_hysteresis: fp16.flag("consecutive_hysteresis")?.unwrap_or(false),
            min: fp16.number("min_loss_scale")?.unwrap_or(defaults.min),
            factor: defaults.factor,
        };
        if fp16.flag("auto_cast")? == Some(false) {
            fp16.differs("auto_cast", "float inputs are always cast");
        }
        fp16.finish();
        if half {
            config.precision = Precision::F16;
            config.loss_scale =
                Some(if fixed == 0.0 { LossScale::Dynamic(dynamic) } else { LossScale::Static(fixed) });
        }
    }
    for name in ["bf16", "bfloat16"] {
        let Some(mut bf16) = root.object(name)? else { continue };
        let enabled = bf16.flag("enabled")?.unwrap_or(false);
        bf16.finish();
        if enabled && half {
            let reason = "`fp16.enabled` is on as well: keep one of the two".to_owned();
            return Err(ConfigError::Unsupported { path: format!("{name}.enabled"), reason });
        }
        if enabled {
            config.precision = Precision::Bf16;
        }
    }
    if let Some(mut types) = root.object("data_types")? {
        match types.text("grad_accum_dtype")?.as_deref() {
            None | Some("fp32") => {}
            Some(other) => {
                let (path, found) = ("data_types.grad_accum_dtype".to_owned(), format!("\"{other}\""));
                let expected = "\"fp32\": gradients are always added in f32".to_owned();
                return Err(ConfigError::Value { path, found, expected });
            }
        }
        types.finish();
    }
    Ok(())
}

/// What a stage of `ZeRO` cuts up, if it is no more than the optimizer's state.
fn sharding(stage: u32) -> Result<OptimizerSharding, ConfigError> {
    let why = match stage {
        0 => return Ok(OptimizerSharding::Replicated),
        1 => return Ok(OptimizerSharding::Sharded),
        2 => {
            "cutting up the gradients would reduce them at every micro-batch, while a pipeline adds them up and \
             reduces them once a batch; use 0 or 1"
        }
        3 => {
            "cutting up the parameters would gather them at every micro-batch, while a pipeline cuts the model \
             into stages instead; use 0 or 1"
        }
        _ => "there is no such stage; use 0 or 1",
    };
    let path = "zero_optimization.stage".to_owned();
    Err(ConfigError::Unsupported { path, reason: format!("stage {stage}: {why}") })
}

fn pipeline(root: &mut Object<'_>, config: &mut TrainConfig) -> Result<(), ConfigError> {
    let Some(mut pipeline) = root.object("pipeline")? else { return Ok(()) };
    config.recompute_every = pipeline.count("activation_checkpoint_interval")?;
    config.partition = pipeline.text("partition_method")?;
    if let Some(Err(error)) =
        config.partition.as_ref().map(|p| p.parse::<brigade_partition::PartitionMethod>())
    {
        let path = "pipeline.partition_method".to_owned();
        return Err(ConfigError::Text { path, message: error.to_string() });
    }
    if pipeline.flag("seed_layers")? == Some(false) {
        pipeline.differs("seed_layers", "every layer always starts from a seed of its own");
    }
    if pipeline.any("stages").is_some() {
        pipeline.differs("stages", "the schedule and the number of ranks say how many stages there are");
    }
    pipeline.finish();
    Ok(())
}

fn checkpoint(root: &mut Object<'_>, settings: &mut CheckpointSettings) -> Result<(), ConfigError> {
    let Some(mut checkpoint) = root.object("checkpoint")? else { return Ok(()) };
    if let Some(validation) = checkpoint.text("tag_validation")? {
        settings.tag_validation = match validation.to_ascii_lowercase().as_str() {
            "ignore" => TagValidation::Ignore,
            "warn" => TagValidation::Warn,
            "fail" => TagValidation::Fail,
            _ => {
                return Err(ConfigError::Value {
                    path: "checkpoint.tag_validation".to_owned(),
                    found: format!("\"{validation}\""),
                    expected: "\"Ignore\", \"Warn\" or \"Fail\"".to_owned(),
                });
            }
        };
    }
    checkpoint.finish();
    Ok(())
}

fn monitors(root: &mut Object<'_>, config: &mut TrainConfig) -> Result<(), ConfigError> {
    for (key, slot) in
        [("tensorboard", &mut config.monitors.tensorboard), ("csv_monitor", &mut config.monitors.csv)]
    {
        let Some(mut monitor) = root.object(key)? else { continue };
        let enabled = monitor.flag("enabled")?.unwrap_or(false);
        let output_path = monitor.text("output_path")?.unwrap_or_default();
        let job_name = monitor.text("job_name")?.unwrap_or_else(|| "DeepSpeedJobName".to_owned());
        monitor.finish();
        *slot = enabled.then_some(FileMonitor { output_path, job_name });
    }
    if let Some(mut wandb) = root.object("wandb")? {
        let enabled = wandb.flag("enabled")?.unwrap_or(false);
        let monitor = WandbMonitor {
            team: wandb.text("team")?,
            group: wandb.text("group")?,
            project: Some(wandb.text("project")?.unwrap_or_else(|| "deepspeed".to_owned())),
        };
        wandb.finish();
        config.monitors.wandb = enabled.then_some(monitor);
    }
    Ok(())
}

/// What would train otherwise if it were passed over.
fn refused(root: &mut Object<'_>) -> Result<(), ConfigError> {
    for (key, instead) in [
        ("amp", "use `bf16` or `fp16`"),
        ("torch_autocast", "use `bf16` or `fp16`"),
        ("progressive_layer_drop", "turn it off"),
        ("elasticity", "give the sizes of the batch"),
    ] {
        let enabled = |value: &Value| value.get("enabled").and_then(Value::as_bool);
        if root.any(key).and_then(enabled) == Some(true) {
            let reason = format!("not part of Brigade: {instead}");
            return Err(ConfigError::Unsupported { path: format!("{key}.enabled"), reason });
        }
    }
    Ok(())
}
