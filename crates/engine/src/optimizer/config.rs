//! Optimizers as data: Burn's, by name and numbers.

use burn::module::ParamGroup;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdanConfig, LambConfig, LionConfig, ModuleOptimizer,
    MuonConfig, RmsPropConfig, SgdConfig,
};
use burn::tensor::ElementConversion;
use serde::{Deserialize, Serialize};

use super::adamw::{AdamWSettings, FusedAdamW};
use crate::error::ConfigError;

/// An optimizer and its numbers, but the learning rate, which is the engine's.
///
/// Every optimizer of Burn 0.22.1 that updates one parameter at a time; L-BFGS, which runs the model
/// itself, is none. `weight_decay` is decoupled from the gradient where the method says so (AdamW, Lion,
/// LAMB, Adan, Adafactor, Muon), and added to the gradient elsewhere.
///
/// # Examples
/// ```
/// use brigade_engine::OptimizerConfig;
///
/// let config: OptimizerConfig = serde_json::from_str(r#"{"sgd": {"momentum": 0.9, "nesterov": true}}"#)?;
/// let OptimizerConfig::Sgd(sgd) = config else { panic!("not SGD") };
/// assert_eq!((sgd.momentum, sgd.dampening), (0.9, 0.0));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OptimizerConfig {
    /// [`FusedAdamW`].
    AdamW(AdamWSettings),
    /// Burn's Adam.
    Adam(AdamSettings),
    /// Burn's SGD.
    Sgd(SgdSettings),
    /// Burn's `AdaGrad`.
    AdaGrad(AdaGradSettings),
    /// Burn's `RmsProp`.
    RmsProp(RmsPropSettings),
    /// Burn's LAMB.
    Lamb(LambSettings),
    /// Burn's Lion.
    Lion(LionSettings),
    /// Burn's Adan.
    Adan(AdanSettings),
    /// Burn's Adafactor.
    Adafactor(AdafactorSettings),
    /// Burn's Muon, for matrices only: give the other parameters another optimizer by a group.
    Muon(MuonSettings),
}

/// Declares the settings of one optimizer with their defaults.
macro_rules! settings {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

settings! {
    /// Settings of Adam; the defaults are PyTorch's.
    AdamSettings {
        /// Decay of the mean of gradients.
        beta_1: f64 = 0.9,
        /// Decay of the mean of squared gradients.
        beta_2: f64 = 0.999,
        /// Added to the root of the second mean.
        epsilon: f64 = 1e-8,
        /// Share of each weight that is added to its gradient.
        weight_decay: f64 = 0.0,
        /// Divides by the largest second mean so far.
        amsgrad: bool = false,
    }
}

settings! {
    /// Settings of SGD; the defaults are PyTorch's.
    SgdSettings {
        /// Share of the last update that is kept; 0 for none.
        momentum: f64 = 0.0,
        /// Share of the gradient that the momentum leaves out.
        dampening: f64 = 0.0,
        /// Looks ahead by one update.
        nesterov: bool = false,
        /// Share of each weight that is added to its gradient.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Settings of `AdaGrad`; the defaults are PyTorch's.
    AdaGradSettings {
        /// How fast the learning rate goes down by itself.
        lr_decay: f64 = 0.0,
        /// Added to the root of the sum of squares.
        epsilon: f64 = 1e-10,
        /// Share of each weight that is added to its gradient.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Settings of `RmsProp`; the defaults are PyTorch's.
    RmsPropSettings {
        /// Decay of the mean of squared gradients.
        alpha: f64 = 0.99,
        /// Share of the last update that is kept.
        momentum: f64 = 0.0,
        /// Added to the root of the mean.
        epsilon: f64 = 1e-8,
        /// Divides by an estimate of the variance.
        centered: bool = false,
        /// Share of each weight that is added to its gradient.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Settings of LAMB; the defaults are DeepSpeed's.
    LambSettings {
        /// Decay of the mean of gradients.
        beta_1: f64 = 0.9,
        /// Decay of the mean of squared gradients.
        beta_2: f64 = 0.999,
        /// Added to the root of the second mean.
        epsilon: f64 = 1e-8,
        /// Share of each weight that is added to its update.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Settings of Lion; the defaults are the paper's.
    LionSettings {
        /// Share of the mean in the direction of the update.
        beta_1: f64 = 0.9,
        /// Decay of the mean of gradients.
        beta_2: f64 = 0.99,
        /// Share of each weight that goes away a step, times the learning rate.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Settings of Adan; the defaults are the paper's.
    AdanSettings {
        /// Decay of the mean of gradients.
        beta_1: f64 = 0.98,
        /// Decay of the mean of their differences.
        beta_2: f64 = 0.92,
        /// Decay of the mean of squares.
        beta_3: f64 = 0.99,
        /// Added to the root of the mean of squares.
        epsilon: f64 = 1e-8,
        /// Share of each weight that goes away a step, times the learning rate.
        weight_decay: f64 = 0.0,
        /// Decays before the update instead of after it.
        no_prox: bool = false,
    }
}

settings! {
    /// Settings of Adafactor; the defaults are Burn's.
    AdafactorSettings {
        /// Added to squared gradients.
        epsilon_1: f64 = 1e-30,
        /// Least size of a parameter that scales its step.
        epsilon_2: f64 = 1e-3,
        /// Largest root mean square of an update.
        clip_threshold: f64 = 1.0,
        /// Exponent of the decay of the means.
        decay_rate: f64 = -0.8,
        /// Whether the rate is at most one over the root of the number of updates.
        relative_step: bool = true,
        /// Whether the step grows with the size of the parameter.
        scale_parameter: bool = true,
        /// Share of each weight that goes away a step, times the learning rate.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Settings of Muon; the defaults are its author's.
    MuonSettings {
        /// Share of the last update that is kept.
        momentum: f64 = 0.95,
        /// Looks ahead by one update.
        nesterov: bool = true,
        /// Steps of the iteration that makes an update orthogonal.
        ns_steps: u32 = 5,
        /// Share of each weight that goes away a step, times the learning rate.
        weight_decay: f64 = 0.0,
    }
}

/// Calls `$use` with Burn's optimizer for a configuration, whatever its type.
macro_rules! with_built {
    ($config:expr, $optimizer:ident => $use:expr) => {
        match $config {
            OptimizerConfig::AdamW(s) => {
                let $optimizer = FusedAdamW::new(*s);
                $use
            }
            OptimizerConfig::Adam(s) => {
                let $optimizer = AdamConfig::new()
                    .with_beta_1(s.beta_1.elem())
                    .with_beta_2(s.beta_2.elem())
                    .with_epsilon(s.epsilon.elem())
                    .with_amsgrad(s.amsgrad)
                    .with_weight_decay(decay(s.weight_decay))
                    .build();
                $use
            }
            OptimizerConfig::Sgd(s) => {
                let momentum = MomentumConfig::new()
                    .with_momentum(s.momentum)
                    .with_dampening(s.dampening)
                    .with_nesterov(s.nesterov);
                let $optimizer = SgdConfig::new()
                    .with_momentum((s.momentum > 0.0).then_some(momentum))
                    .with_weight_decay(decay(s.weight_decay))
                    .build();
                $use
            }
            OptimizerConfig::AdaGrad(s) => {
                let $optimizer = AdaGradConfig::new()
                    .with_lr_decay(s.lr_decay)
                    .with_epsilon(s.epsilon.elem())
                    .with_weight_decay(decay(s.weight_decay))
                    .build();
                $use
            }
            OptimizerConfig::RmsProp(s) => {
                let $optimizer = RmsPropConfig::new()
                    .with_alpha(s.alpha.elem())
                    .with_momentum(s.momentum.elem())
                    .with_epsilon(s.epsilon.elem())
                    .with_centered(s.centered)
                    .with_weight_decay(decay(s.weight_decay))
                    .build();
                $use
            }
            OptimizerConfig::Lamb(s) => {
                let $optimizer = LambConfig::new()
                    .with_beta_1(s.beta_1.elem())
                    .with_beta_2(s.beta_2.elem())
                    .with_epsilon(s.epsilon.elem())
                    .with_weight_decay(s.weight_decay.elem())
                    .build();
                $use
            }
            OptimizerConfig::Lion(s) => {
                let $optimizer = LionConfig::new()
                    .with_beta_1(s.beta_1.elem())
                    .with_beta_2(s.beta_2.elem())
                    .with_weight_decay(s.weight_decay.elem())
                    .build();
                $use
            }
            OptimizerConfig::Adan(s) => {
                let $optimizer = AdanConfig::new()
                    .with_beta_1(s.beta_1.elem())
                    .with_beta_2(s.beta_2.elem())
                    .with_beta_3(s.beta_3.elem())
                    .with_epsilon(s.epsilon.elem())
                    .with_weight_decay(s.weight_decay.elem())
                    .with_no_prox(s.no_prox)
                    .build();
                $use
            }
            OptimizerConfig::Adafactor(s) => {
                let $optimizer = AdafactorConfig::new()
                    .with_epsilon_1(s.epsilon_1.elem())
                    .with_epsilon_2(s.epsilon_2.elem())
                    .with_clip_threshold(s.clip_threshold.elem())
                    .with_decay_rate(s.decay_rate)
                    .with_relative_step(s.relative_step)
                    .with_scale_parameter(s.scale_parameter)
                    .with_weight_decay(s.weight_decay.elem())
                    .build();
                $use
            }
            OptimizerConfig::Muon(s) => {
                let momentum = MomentumConfig::new()
                    .with_momentum(s.momentum)
                    .with_dampening(0.0)
                    .with_nesterov(s.nesterov);
                let $optimizer = MuonConfig::new()
                    .with_momentum(momentum)
                    .with_ns_steps(usize::try_from(s.ns_steps).unwrap_or(usize::MAX))
                    .with_weight_decay(decay(s.weight_decay))
                    .build();
                $use
            }
        }
    };
}

/// Burn's setting of a decay, which is absent when it is 0.
fn decay(penalty: f64) -> Option<WeightDecayConfig> {
    (penalty != 0.0).then(|| WeightDecayConfig::new(penalty.elem()))
}

impl OptimizerConfig {
    /// The same optimizer with another weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        let (Self::AdamW(AdamWSettings { weight_decay: slot, .. })
        | Self::Adam(AdamSettings { weight_decay: slot, .. })
        | Self::Sgd(SgdSettings { weight_decay: slot, .. })
        | Self::AdaGrad(AdaGradSettings { weight_decay: slot, .. })
        | Self::RmsProp(RmsPropSettings { weight_decay: slot, .. })
        | Self::Lamb(LambSettings { weight_decay: slot, .. })
        | Self::Lion(LionSettings { weight_decay: slot, .. })
        | Self::Adan(AdanSettings { weight_decay: slot, .. })
        | Self::Adafactor(AdafactorSettings { weight_decay: slot, .. })
        | Self::Muon(MuonSettings { weight_decay: slot, .. })) = &mut self;
        *slot = weight_decay;
        self
    }

    /// Adds the optimizer to another, for the parameters of `group`.
    pub(super) fn join(&self, optimizer: ModuleOptimizer, group: ParamGroup) -> ModuleOptimizer {
        with_built!(self, built => optimizer.with_group(group, built, None))
    }

    /// Refuses numbers that no optimizer can use.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the path of the number, which begins with `path`.
    pub fn check(&self, path: &str) -> Result<(), ConfigError> {
        let at = |name: &str, value: f64, right: bool, expected: &str| {
            let error = || ConfigError::Value {
                path: format!("{path}.{name}"),
                found: value.to_string(),
                expected: expected.to_owned(),
            };
            if right { Ok(()) } else { Err(error()) }
        };
        let beta = |name, value| at(name, value, (0.0..1.0).contains(&value), "at least 0 and below 1");
        let size = |name, value: f64| {
            at(name, value, value.is_finite() && value >= 0.0, "a finite number of at least 0")
        };
        match self {
            Self::AdamW(AdamWSettings { beta_1, beta_2, epsilon, weight_decay, .. })
            | Self::Adam(AdamSettings { beta_1, beta_2, epsilon, weight_decay, .. })
            | Self::Lamb(LambSettings { beta_1, beta_2, epsilon, weight_decay }) => {
                beta("beta_1", *beta_1)?;
                beta("beta_2", *beta_2)?;
                size("epsilon", *epsilon)?;
                size("weight_decay", *weight_decay)
            }
            Self::Sgd(s) => {
                size("momentum", s.momentum)?;
                at("dampening", s.dampening, s.dampening.is_finite(), "a finite number")?;
                let looks_ahead = !s.nesterov || (s.momentum > 0.0 && s.dampening == 0.0);
                at("momentum", s.momentum, looks_ahead, "above 0, with no dampening, for `nesterov`")?;
                size("weight_decay", s.weight_decay)
            }
            Self::AdaGrad(s) => {
                size("lr_decay", s.lr_decay)?;
                size("epsilon", s.epsilon)?;
                size("weight_decay", s.weight_decay)
            }
            Self::RmsProp(s) => {
                beta("alpha", s.alpha)?;
                size("momentum", s.momentum)?;
                size("epsilon", s.epsilon)?;
                size("weight_decay", s.weight_decay)
            }
            Self::Lion(s) => {
                beta("beta_1", s.beta_1)?;
                beta("beta_2", s.beta_2)?;
                size("weight_decay", s.weight_decay)
            }
            Self::Adan(s) => {
                beta("beta_1", s.beta_1)?;
                beta("beta_2", s.beta_2)?;
                beta("beta_3", s.beta_3)?;
                size("epsilon", s.epsilon)?;
                size("weight_decay", s.weight_decay)
            }
            Self::Adafactor(s) => {
                size("epsilon_1", s.epsilon_1)?;
                size("epsilon_2", s.epsilon_2)?;
                at("clip_threshold", s.clip_threshold, s.clip_threshold > 0.0, "above 0")?;
                at("decay_rate", s.decay_rate, s.decay_rate < 0.0, "below 0")?;
                size("weight_decay", s.weight_decay)
            }
            Self::Muon(s) => {
                size("momentum", s.momentum)?;
                size("weight_decay", s.weight_decay)
            }
        }
    }
}

impl From<OptimizerConfig> for ModuleOptimizer {
    fn from(config: OptimizerConfig) -> Self {
        with_built!(&config, built => built.into())
    }
}
