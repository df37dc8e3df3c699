//! DeepSpeed's learning-rate schedulers, under its names and with its defaults.
//!
//! DeepSpeed sets a rate before the first step and then one after each successful step, so its iteration
//! number is one behind the number of updates.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::schedule::{check_rate, check_steps, float};
use crate::error::ConfigError;

/// The way up of a warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmupCurve {
    /// With the logarithm of the iteration: steep first.
    #[default]
    Log,
    /// By equal amounts.
    Linear,
}

impl WarmupCurve {
    /// Share of the way after `iteration` of `n_steps`.
    fn share(self, iteration: u64, n_steps: u64) -> f64 {
        match self {
            Self::Log => (float(iteration) + 1.0).ln() / float(n_steps).ln(),
            Self::Linear => float(iteration) / float(n_steps),
        }
    }
}

/// Fewer steps than 2 would divide by the logarithm of 1.
fn at_least_two(n_steps: u64) -> u64 {
    n_steps.max(2)
}

/// From `min` up to `max`, and then `max`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WarmupLr {
    /// First rate.
    pub warmup_min_lr: f64,
    /// Last rate; the configured learning rate if it is left out.
    pub warmup_max_lr: Option<f64>,
    /// Steps on the way.
    pub warmup_num_steps: u64,
    /// The way.
    pub warmup_type: WarmupCurve,
}

impl Default for WarmupLr {
    fn default() -> Self {
        Self {
            warmup_min_lr: 0.0,
            warmup_max_lr: None,
            warmup_num_steps: 1000,
            warmup_type: WarmupCurve::Log,
        }
    }
}

impl WarmupLr {
    pub(super) fn rate(&self, learning_rate: f64, n_updates: u64) -> f64 {
        self.between(learning_rate, n_updates, |_, _| 1.0)
    }

    /// The rate with the share of the way that `after` gives for an iteration past the `n_steps` of the way.
    fn between(&self, learning_rate: f64, n_updates: u64, after: impl Fn(u64, u64) -> f64) -> f64 {
        let (min, max) = (self.warmup_min_lr, self.warmup_max_lr.unwrap_or(learning_rate));
        let Some(iteration) = n_updates.checked_sub(1) else { return min };
        let n_steps = at_least_two(self.warmup_num_steps);
        let share = if iteration < n_steps {
            self.warmup_type.share(iteration, n_steps)
        } else {
            after(iteration, n_steps)
        };
        min + (max - min) * share
    }

    pub(super) fn check(&self, path: &str) -> Result<(), ConfigError> {
        check_rate(&format!("{path}.warmup_min_lr"), self.warmup_min_lr)?;
        check_rate(&format!("{path}.warmup_max_lr"), self.warmup_max_lr.unwrap_or(0.0))?;
        check_steps(&format!("{path}.warmup_num_steps"), self.warmup_num_steps)
    }
}

/// From `min` up to `max`, and then by equal amounts down to `min` at the last step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupDecayLr {
    /// Steps of the whole training.
    pub total_num_steps: u64,
    /// First and last rate.
    #[serde(default)]
    pub warmup_min_lr: f64,
    /// Highest rate; 0.001 if it is left out, as in DeepSpeed.
    #[serde(default = "decay_max_default")]
    pub warmup_max_lr: f64,
    /// Steps on the way up.
    #[serde(default = "warmup_steps_default")]
    pub warmup_num_steps: u64,
    /// The way up.
    #[serde(default)]
    pub warmup_type: WarmupCurve,
}

fn decay_max_default() -> f64 {
    0.001
}

fn warmup_steps_default() -> u64 {
    1000
}

impl WarmupDecayLr {
    fn warmup(&self) -> WarmupLr {
        WarmupLr {
            warmup_min_lr: self.warmup_min_lr,
            warmup_max_lr: Some(self.warmup_max_lr),
            warmup_num_steps: self.warmup_num_steps,
            warmup_type: self.warmup_type,
        }
    }

    pub(super) fn rate(&self, learning_rate: f64, n_updates: u64) -> f64 {
        let total = self.total_num_steps;
        self.warmup().between(learning_rate, n_updates, |iteration, n_steps| {
            float(total.saturating_sub(iteration)) / float(total.saturating_sub(n_steps)).max(1.0)
        })
    }

    pub(super) fn check(&self, path: &str) -> Result<(), ConfigError> {
        check_steps(&format!("{path}.total_num_steps"), self.total_num_steps)?;
        self.warmup().check(path)
    }
}

/// Up to the configured learning rate, and then along half a cosine down to a share of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupCosineLr {
    /// Steps of the whole training.
    pub total_num_steps: u64,
    /// Share of the learning rate that the way up starts from; the very first step is at 0.
    #[serde(default)]
    pub warmup_min_ratio: f64,
    /// Steps on the way up.
    #[serde(default = "warmup_steps_default")]
    pub warmup_num_steps: u64,
    /// Share of the learning rate at the end.
    #[serde(default = "cosine_min_default")]
    pub cos_min_ratio: f64,
    /// The way up.
    #[serde(default)]
    pub warmup_type: WarmupCurve,
}

fn cosine_min_default() -> f64 {
    0.0001
}

impl WarmupCosineLr {
    pub(super) fn rate(&self, learning_rate: f64, n_updates: u64) -> f64 {
        let Some(iteration) = n_updates.checked_sub(1) else { return 0.0 };
        let n_steps = at_least_two(self.warmup_num_steps);
        let ratio = if iteration < n_steps {
            let min = self.warmup_min_ratio;
            min + self.warmup_type.share(iteration, n_steps) * (1.0 - min)
        } else {
            let min = self.cos_min_ratio;
            let (done, all) = (iteration - n_steps + 1, self.total_num_steps.saturating_sub(n_steps).max(1));
            let progress = (float(done) / float(all)).min(1.0);
            (min + (1.0 - min) * (1.0 + (PI * progress).cos()) / 2.0).max(0.0)
        };
        learning_rate * ratio
    }

    pub(super) fn check(&self, path: &str) -> Result<(), ConfigError> {
        check_steps(&format!("{path}.total_num_steps"), self.total_num_steps)?;
        check_rate(&format!("{path}.warmup_min_ratio"), self.warmup_min_ratio)?;
        check_steps(&format!("{path}.warmup_num_steps"), self.warmup_num_steps)?;
        check_rate(&format!("{path}.cos_min_ratio"), self.cos_min_ratio)
    }
}

/// Up to `cycle_max_lr` and down again, and then further down, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneCycle {
    /// First rate, and that at the end of the cycle.
    pub cycle_min_lr: f64,
    /// Highest rate.
    pub cycle_max_lr: f64,
    /// How fast the rate goes down after the cycle; 0 for not at all.
    #[serde(default)]
    pub decay_lr_rate: f64,
    /// Steps on the way up.
    #[serde(default = "cycle_steps_default")]
    pub cycle_first_step_size: u64,
    /// Steps on the way down; as many as on the way up if it is left out.
    #[serde(default)]
    pub cycle_second_step_size: Option<u64>,
    /// Equal stairs of the way up; 0 for none.
    #[serde(default)]
    pub cycle_first_stair_count: u64,
    /// Equal stairs of the way down; as many as on the way up if it is left out.
    #[serde(default)]
    pub cycle_second_stair_count: Option<u64>,
    /// Steps that one unit of the decay takes; 0 for no decay.
    #[serde(default)]
    pub decay_step_size: u64,
}

fn cycle_steps_default() -> u64 {
    2000
}

impl OneCycle {
    fn second_steps(&self) -> u64 {
        self.cycle_second_step_size.unwrap_or(self.cycle_first_step_size)
    }

    pub(super) fn rate(&self, n_updates: u64) -> f64 {
        let (first, second) = (self.cycle_first_step_size, self.second_steps());
        let total = first.saturating_add(second);
        if n_updates == 0 {
            return self.cycle_min_lr;
        }
        if n_updates > total {
            let decays = self.decay_step_size > 0 && self.decay_lr_rate > 0.0;
            let units = float(n_updates - total) / float(self.decay_step_size.max(1));
            return if decays {
                self.cycle_min_lr / (1.0 + self.decay_lr_rate * units)
            } else {
                self.cycle_min_lr
            };
        }
        let (position, stairs) = if n_updates <= first {
            (float(n_updates) / float(first), self.cycle_first_stair_count)
        } else {
            let stairs = self.cycle_second_stair_count.unwrap_or(self.cycle_first_stair_count);
            (float(total - n_updates) / float(second), stairs)
        };
        let height = if stairs > 0 { (position * float(stairs)).floor() / float(stairs) } else { position };
        self.cycle_min_lr + (self.cycle_max_lr - self.cycle_min_lr) * height
    }

    pub(super) fn check(&self, path: &str) -> Result<(), ConfigError> {
        check_rate(&format!("{path}.cycle_min_lr"), self.cycle_min_lr)?;
        check_rate(&format!("{path}.cycle_max_lr"), self.cycle_max_lr)?;
        check_rate(&format!("{path}.decay_lr_rate"), self.decay_lr_rate)?;
        check_steps(&format!("{path}.cycle_first_step_size"), self.cycle_first_step_size)?;
        check_steps(&format!("{path}.cycle_second_step_size"), self.second_steps())
    }
}

/// Ever higher rates, to find the highest that trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LrRangeTest {
    /// First rate.
    pub lr_range_test_min_lr: f64,
    /// Steps that one unit of growth takes.
    pub lr_range_test_step_size: u64,
    /// Growth of one unit, in first rates.
    pub lr_range_test_step_rate: f64,
    /// Whether the rate grows only at the end of each unit.
    pub lr_range_test_staircase: bool,
}

impl Default for LrRangeTest {
    fn default() -> Self {
        Self {
            lr_range_test_min_lr: 1e-3,
            lr_range_test_step_size: 2000,
            lr_range_test_step_rate: 1.0,
            lr_range_test_staircase: false,
        }
    }
}

impl LrRangeTest {
    pub(super) fn rate(&self, n_updates: u64) -> f64 {
        let units = float(n_updates) / float(self.lr_range_test_step_size);
        let units = if self.lr_range_test_staircase { units.floor() } else { units };
        self.lr_range_test_min_lr * (1.0 + self.lr_range_test_step_rate * units)
    }

    pub(super) fn check(&self, path: &str) -> Result<(), ConfigError> {
        check_rate(&format!("{path}.lr_range_test_min_lr"), self.lr_range_test_min_lr)?;
        check_steps(&format!("{path}.lr_range_test_step_size"), self.lr_range_test_step_size)?;
        check_rate(&format!("{path}.lr_range_test_step_rate"), self.lr_range_test_step_rate)
    }
}
