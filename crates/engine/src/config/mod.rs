//! The training configuration: what a run is told in one file.

mod deepspeed;
pub(crate) mod precision;
mod text;

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clipping::GradientClipping;
use crate::engine::DataOn;
use crate::error::ConfigError;
use crate::normaliser::Normaliser;
use crate::optimizer::{LearningRateSchedule, OptimizerConfig, ParameterGroup, check_rate, check_steps};
use crate::reduce::OptimizerSharding;

pub use self::deepspeed::ConfigWarning;
pub use self::precision::{DynamicLossScale, LossScale, LossScaleState, Precision};

/// How to train; the same on every rank, which each call compares.
///
/// Made by [`TrainConfig::new`], from JSON or TOML, or from DeepSpeed's `ds_config.json`. What is left out
/// of a text has its default; a key that does not exist is refused.
///
/// # Examples
/// ```
/// use brigade_engine::{OptimizerConfig, Precision, TrainConfig};
///
/// let config = TrainConfig::from_json_str(
///     r#"{"learning_rate": 0.0003, "optimizer": {"adam_w": {"weight_decay": 0.1}}, "precision": "bf16"}"#,
/// )?;
/// assert!(matches!(&config.optimizer, Some(OptimizerConfig::AdamW(s)) if s.weight_decay == 0.1));
/// assert_eq!(config.precision, Precision::Bf16);
///
/// let wrong = TrainConfig::from_json_str(r#"{"optimizer": {"adam_w": {"beta_1": "high"}}}"#).unwrap_err();
/// assert!(wrong.to_string().starts_with("`optimizer.adam_w.beta_1`: invalid type: string"));
/// # Ok::<(), brigade_engine::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TrainConfig {
    /// Learning rate of the first step, unless the schedule says otherwise; see
    /// [`PipelineEngine::set_learning_rate`](crate::PipelineEngine::set_learning_rate).
    pub learning_rate: f64,
    /// How the learning rate goes on.
    pub schedule: LearningRateSchedule,
    /// The optimizer, unless the program gives one.
    pub optimizer: Option<OptimizerConfig>,
    /// Parameters that are trained otherwise than the rest.
    pub parameter_groups: Vec<ParameterGroup>,
    /// What loss and gradient are a mean over.
    pub normaliser: Normaliser,
    /// Which ranks read the data.
    pub data_on: DataOn,
    /// Bound of the gradients of every step.
    pub gradient_clipping: Option<GradientClipping>,
    /// Element type of forward and backward passes.
    pub precision: Precision,
    /// Factor of the loss in the backward pass; with `f16`, dynamic if it is left out.
    pub loss_scale: Option<LossScale>,
    /// Micro-batches of one batch; see
    /// [`PipelineModuleBuilder::config`](crate::PipelineModuleBuilder::config).
    #[doc(alias = "gradient_accumulation_steps")]
    pub micro_batches: Option<u32>,
    /// Samples of one micro-batch: for the program that makes the data.
    #[doc(alias = "train_micro_batch_size_per_gpu")]
    pub micro_batch_size: Option<u32>,
    /// How the layers are cut, such as `parameters` or `type:Block`; see
    /// [`PipelineModuleBuilder::config`](crate::PipelineModuleBuilder::config).
    #[doc(alias = "partition_method")]
    pub partition: Option<String>,
    /// Layers between two values that are kept for the backward pass; 0 keeps all.
    #[doc(alias = "activation_checkpoint_interval")]
    pub recompute_every: Option<u32>,
    /// Who keeps the optimizer's state where the pipeline has replicas.
    #[doc(alias = "zero_optimization")]
    pub optimizer_sharding: OptimizerSharding,
    /// Steps from one line of progress to the next: for the program that prints.
    pub steps_per_print: Option<u32>,
    /// Whether a program prints how long the parts of a step took, which every report says.
    pub wall_clock_breakdown: bool,
    /// Where the numbers of a run go: for the program that writes them.
    pub monitors: Monitors,
    /// How checkpoints are written.
    pub checkpoint: CheckpointSettings,
}

/// Where the numbers of a run go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Monitors {
    /// Event files for `TensorBoard`.
    pub tensorboard: Option<FileMonitor>,
    /// Tables of comma-separated values.
    pub csv: Option<FileMonitor>,
    /// The service Weights & Biases.
    pub wandb: Option<WandbMonitor>,
}

/// Files of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileMonitor {
    /// Folder.
    pub output_path: String,
    /// Folder in it for this run.
    pub job_name: String,
}

/// A run of Weights & Biases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WandbMonitor {
    /// Team.
    pub team: Option<String>,
    /// Group of runs.
    pub group: Option<String>,
    /// Project.
    pub project: Option<String>,
}

/// How checkpoints are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CheckpointSettings {
    /// What happens when ranks name one checkpoint differently.
    pub tag_validation: TagValidation,
}

/// What happens when ranks name one checkpoint differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagValidation {
    /// Nothing.
    Ignore,
    /// A warning.
    #[default]
    Warn,
    /// An error.
    Fail,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            schedule: LearningRateSchedule::Constant,
            optimizer: None,
            parameter_groups: Vec::new(),
            normaliser: Normaliser::default(),
            data_on: DataOn::default(),
            gradient_clipping: None,
            precision: Precision::F32,
            loss_scale: None,
            micro_batches: None,
            micro_batch_size: None,
            partition: None,
            recompute_every: None,
            optimizer_sharding: OptimizerSharding::Replicated,
            steps_per_print: None,
            wall_clock_breakdown: false,
            monitors: Monitors::default(),
            checkpoint: CheckpointSettings::default(),
        }
    }
}

impl TrainConfig {
    /// Trains at `learning_rate`, with the defaults for everything else.
    #[must_use]
    pub fn new(learning_rate: f64) -> Self {
        Self { learning_rate, ..Self::default() }
    }

    /// Reads JSON; comments, as in C or Python, are passed over.
    ///
    /// # Errors
    /// [`ConfigError::Text`] with the path of what does not fit, [`ConfigError::Value`] as for
    /// [`check`](Self::check).
    pub fn from_json_str(text: &str) -> Result<Self, ConfigError> {
        let text = text::without_comments(text);
        // Serde would take a list for the fields in their order.
        if !text.trim_start().starts_with('{') {
            return Err(text::whole(&"expected an object, such as {\"learning_rate\": 0.001}"));
        }
        let mut reader = serde_json::Deserializer::from_str(&text);
        let config: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| text::at(&error))?;
        let end = |error: serde_json::Error| text::whole(&error);
        reader.end().map_err(end)?;
        config.check()?;
        Ok(config)
    }

    /// Reads a JSON file.
    ///
    /// # Errors
    /// As for [`from_json_str`](Self::from_json_str); [`ConfigError::File`] when it cannot be read.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::from_json_str(&read(path.as_ref())?)
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// As for [`from_json_str`](Self::from_json_str).
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::TrainConfig;
    ///
    /// let config = TrainConfig::from_toml_str(
    ///     r#"
    ///     learning_rate = 0.1
    ///     micro_batches = 8
    ///     [optimizer.sgd]
    ///     momentum = 0.9
    ///     "#,
    /// )?;
    /// assert_eq!(config.micro_batches, Some(8));
    /// # Ok::<(), brigade_engine::ConfigError>(())
    /// ```
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigError> {
        let reader = toml::Deserializer::parse(text).map_err(|error| text::whole(&error))?;
        let config: Self = serde_path_to_error::deserialize(reader).map_err(|error| text::at(&error))?;
        config.check()?;
        Ok(config)
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    /// As for [`from_json_file`](Self::from_json_file).
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::from_toml_str(&read(path.as_ref())?)
    }

    /// Refuses values outside what they may be.
    ///
    /// # Errors
    /// [`ConfigError::Value`] or [`ConfigError::Unsupported`] with the path of the first such value.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_rate("learning_rate", self.learning_rate)?;
        self.schedule.check("schedule")?;
        if let Some(optimizer) = &self.optimizer {
            optimizer.check("optimizer")?;
        }
        for (i, group) in self.parameter_groups.iter().enumerate() {
            group.check(&format!("parameter_groups[{i}]"), self.learning_rate)?;
        }
        if let Some(GradientClipping::GlobalNorm(bound) | GradientClipping::Value(bound)) =
            self.gradient_clipping
            && !(bound > 0.0 && bound.is_finite())
        {
            let (path, found) = ("gradient_clipping".to_owned(), bound.to_string());
            return Err(ConfigError::Value { path, found, expected: "a finite number above 0".to_owned() });
        }
        if let Some(loss_scale) = &self.loss_scale {
            loss_scale.check("loss_scale")?;
        }
        let counts = [
            ("micro_batches", self.micro_batches),
            ("micro_batch_size", self.micro_batch_size),
            ("steps_per_print", self.steps_per_print),
        ];
        for (path, count) in counts {
            check_steps(path, count.unwrap_or(1).into())?;
        }
        if let Some(Err(error)) =
            self.partition.as_ref().map(|p| p.parse::<brigade_partition::PartitionMethod>())
        {
            let path = "partition".to_owned();
            return Err(ConfigError::Text { path, message: error.to_string() });
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })
}
