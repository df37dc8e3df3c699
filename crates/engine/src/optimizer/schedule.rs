//! Learning rates as functions of the number of updates: nothing to save but that number.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::deepspeed::{LrRangeTest, OneCycle, WarmupCosineLr, WarmupDecayLr, WarmupLr};
use crate::error::ConfigError;

/// How the learning rate goes over the updates of the weights.
///
/// The rate of the first update is that at 0. A step that is skipped for an overflow does not count. Every
/// rank computes the same rate from the same number, and a number is all that a checkpoint needs.
/// `initial` stands for the configured learning rate where it is left out.
///
/// # Source
/// The schedulers of Burn 0.22.1 (`burn::lr_scheduler`), in closed form; those of DeepSpeed
/// (`deepspeed/runtime/lr_schedules.py`) by their names.
///
/// # Examples
/// ```
/// use brigade_engine::LearningRateSchedule;
///
/// let schedule: LearningRateSchedule =
///     serde_json::from_str(r#"{"warmup": {"n_steps": 4, "then": {"cosine": {"n_steps": 10}}}}"#)?;
/// let rates: Vec<f64> = [0, 2, 4, 9, 14].iter().map(|&n| schedule.rate(0.1, n)).collect();
/// assert_eq!(rates[..3], [0.0, 0.05, 0.1]);
/// assert!((rates[3] - 0.05).abs() < 1e-12 && rates[4].abs() < 1e-12);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LearningRateSchedule {
    /// The same for ever.
    #[default]
    Constant,
    /// The same for ever, whatever the configured rate; for compositions.
    Rate(f64),
    /// By equal amounts from `initial` to `end`, and then `end`.
    Linear {
        /// First rate.
        #[serde(default)]
        initial: Option<f64>,
        /// Last rate.
        #[serde(default)]
        end: f64,
        /// Updates from the first to the last.
        n_steps: u64,
    },
    /// Along half a cosine from `initial` to `min`, and then `min`.
    Cosine {
        /// First rate.
        #[serde(default)]
        initial: Option<f64>,
        /// Last rate.
        #[serde(default)]
        min: f64,
        /// Updates from the first to the last.
        n_steps: u64,
    },
    /// Times `gamma` at each update.
    Exponential {
        /// First rate.
        #[serde(default)]
        initial: Option<f64>,
        /// Factor of each update.
        gamma: f64,
    },
    /// Times `gamma` every `n_steps` updates.
    Step {
        /// First rate.
        #[serde(default)]
        initial: Option<f64>,
        /// Updates at one rate.
        n_steps: u64,
        /// Factor from one rate to the next.
        gamma: f64,
    },
    /// Up by equal amounts for `warmup_steps`, then down with the root of the number of updates.
    Noam {
        /// Factor of every rate.
        factor: f64,
        /// Width of the model.
        model_size: u32,
        /// Updates that the rate grows for.
        warmup_steps: u32,
    },
    /// By equal amounts from `start` to the first rate of `then`, which then begins.
    Warmup {
        /// First rate.
        #[serde(default)]
        start: f64,
        /// Updates until `then` begins.
        n_steps: u64,
        /// What comes after.
        then: Box<LearningRateSchedule>,
    },
    /// One after the other; each counts its own updates from 0.
    Sequential {
        /// In the order of their use.
        schedules: Vec<LearningRateSchedule>,
        /// The update at which each but the first begins.
        milestones: Vec<u64>,
    },
    /// Several at once.
    Composed {
        /// In any order.
        schedules: Vec<LearningRateSchedule>,
        /// How their rates become one.
        reduction: Reduction,
    },
    /// DeepSpeed's `WarmupLR`.
    WarmupLr(WarmupLr),
    /// DeepSpeed's `WarmupDecayLR`.
    WarmupDecayLr(WarmupDecayLr),
    /// DeepSpeed's `WarmupCosineLR`.
    WarmupCosineLr(WarmupCosineLr),
    /// DeepSpeed's `OneCycle`, without its cycle of momenta.
    OneCycle(OneCycle),
    /// DeepSpeed's `LRRangeTest`.
    LrRangeTest(LrRangeTest),
}

/// How several rates become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their mean.
    Avg,
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
}

impl LearningRateSchedule {
    /// The rate of an update, where `n_updates` came before it and `learning_rate` is the configured one.
    #[must_use]
    pub fn rate(&self, learning_rate: f64, n_updates: u64) -> f64 {
        let n = float(n_updates);
        let or_given = |initial: &Option<f64>| initial.unwrap_or(learning_rate);
        match self {
            Self::Constant => learning_rate,
            Self::Rate(rate) => *rate,
            Self::Linear { initial, end, n_steps } => {
                let start = or_given(initial);
                // Burn's form: from the end, so that the last rate is exact.
                end - (end - start) / float(*n_steps) * float(n_steps.saturating_sub(n_updates))
            }
            Self::Cosine { initial, min, n_steps } => {
                let progress = (n / float(*n_steps)).min(1.0);
                min + 0.5 * (or_given(initial) - min) * (1.0 + (progress * PI).cos())
            }
            Self::Exponential { initial, gamma } => or_given(initial) * gamma.powi(whole(n_updates)),
            Self::Step { initial, n_steps, gamma } => {
                or_given(initial) * gamma.powi(whole(n_updates / (*n_steps).max(1)))
            }
            Self::Noam { factor, model_size, warmup_steps } => {
                let (update, warmup) = (n + 1.0, f64::from(*warmup_steps));
                factor * f64::from(*model_size).powf(-0.5) * update.powf(-0.5).min(update * warmup.powf(-1.5))
            }
            Self::Warmup { start, n_steps, then } if n_updates < *n_steps => {
                start + (then.rate(learning_rate, 0) - start) * (n / float(*n_steps))
            }
            Self::Warmup { n_steps, then, .. } => then.rate(learning_rate, n_updates - n_steps),
            Self::Sequential { schedules, milestones } => {
                let active = milestones.partition_point(|&milestone| n_updates >= milestone);
                let begun = active.checked_sub(1).and_then(|at| milestones.get(at)).copied().unwrap_or(0);
                schedules.get(active).map_or(learning_rate, |s| s.rate(learning_rate, n_updates - begun))
            }
            Self::Composed { schedules, reduction } => {
                let rates = schedules.iter().map(|schedule| schedule.rate(learning_rate, n_updates));
                match reduction {
                    Reduction::Sum => rates.sum(),
                    Reduction::Prod => rates.product(),
                    Reduction::Avg => {
                        let parts: f64 = schedules.iter().map(|_| 1.0).sum();
                        rates.map(|rate| rate / parts).sum()
                    }
                }
            }
            Self::WarmupLr(schedule) => schedule.rate(learning_rate, n_updates),
            Self::WarmupDecayLr(schedule) => schedule.rate(learning_rate, n_updates),
            Self::WarmupCosineLr(schedule) => schedule.rate(learning_rate, n_updates),
            Self::OneCycle(schedule) => schedule.rate(n_updates),
            Self::LrRangeTest(schedule) => schedule.rate(n_updates),
        }
    }

    /// Refuses numbers that give no rates.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the path of the number, which begins with `path`.
    pub fn check(&self, path: &str) -> Result<(), ConfigError> {
        let rate = |name: &str, value: f64| check_rate(&format!("{path}.{name}"), value);
        let initial = |value: &Option<f64>| rate("initial", value.unwrap_or(0.0));
        let steps = |name: &str, n: u64| check_steps(&format!("{path}.{name}"), n);
        match self {
            Self::Constant => Ok(()),
            Self::Rate(value) => check_rate(path, *value),
            Self::Linear { initial: first, end, n_steps } => {
                initial(first)?;
                rate("end", *end)?;
                steps("n_steps", *n_steps)
            }
            Self::Cosine { initial: first, min, n_steps } => {
                initial(first)?;
                rate("min", *min)?;
                steps("n_steps", *n_steps)
            }
            Self::Exponential { initial: first, gamma } => {
                initial(first)?;
                rate("gamma", *gamma)
            }
            Self::Step { initial: first, n_steps, gamma } => {
                initial(first)?;
                rate("gamma", *gamma)?;
                steps("n_steps", *n_steps)
            }
            Self::Noam { factor, model_size, warmup_steps } => {
                rate("factor", *factor)?;
                steps("model_size", (*model_size).into())?;
                steps("warmup_steps", (*warmup_steps).into())
            }
            Self::Warmup { start, n_steps, then } => {
                rate("start", *start)?;
                steps("n_steps", *n_steps)?;
                then.check(&format!("{path}.then"))
            }
            Self::Sequential { schedules, milestones } => {
                let rising = milestones.windows(2).all(|pair| pair[0] < pair[1]);
                if milestones.len().checked_add(1) != Some(schedules.len())
                    || !rising
                    || milestones.first() == Some(&0)
                {
                    return Err(ConfigError::Value {
                        path: format!("{path}.milestones"),
                        found: format!("{milestones:?} for {} schedules", schedules.len()),
                        expected: "one number fewer than schedules, rising, the first above 0".to_owned(),
                    });
                }
                check_all(path, schedules)
            }
            Self::Composed { schedules, .. } => check_all(path, schedules),
            Self::WarmupLr(schedule) => schedule.check(path),
            Self::WarmupDecayLr(schedule) => schedule.check(path),
            Self::WarmupCosineLr(schedule) => schedule.check(path),
            Self::OneCycle(schedule) => schedule.check(path),
            Self::LrRangeTest(schedule) => schedule.check(path),
        }
    }
}

fn check_all(path: &str, schedules: &[LearningRateSchedule]) -> Result<(), ConfigError> {
    if schedules.is_empty() {
        return Err(ConfigError::Value {
            path: format!("{path}.schedules"),
            found: "empty".to_owned(),
            expected: "at least one schedule".to_owned(),
        });
    }
    let mut all = schedules.iter().enumerate();
    all.try_for_each(|(i, schedule)| schedule.check(&format!("{path}.schedules[{i}]")))
}

/// Refuses what is no size of a learning rate.
pub(crate) fn check_rate(path: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    let expected = "a finite number of at least 0".to_owned();
    Err(ConfigError::Value { path: path.to_owned(), found: value.to_string(), expected })
}

/// Refuses a number of steps that something is divided by.
pub(crate) fn check_steps(path: &str, value: u64) -> Result<(), ConfigError> {
    if value > 0 {
        return Ok(());
    }
    let expected = "a whole number of at least 1".to_owned();
    Err(ConfigError::Value { path: path.to_owned(), found: value.to_string(), expected })
}

/// Exact up to 2^32 updates, and from there on the same.
pub(super) fn float(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

fn whole(n: u64) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
