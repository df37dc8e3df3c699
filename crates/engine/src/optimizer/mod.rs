//! Optimizers by configuration, groups of parameters and learning-rate schedules.

mod adamw;
mod config;
mod deepspeed;
mod groups;
mod schedule;
mod state;

use std::collections::BTreeMap;

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrSchedulerConfig};
use burn::module::{Module, ParamGroup, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::store::RecordError;
use burn::tensor::Bytes;

pub use crate::error::StateError;

pub use adamw::{AdamWSettings, FusedAdamW};
pub use config::{
    AdaGradSettings, AdafactorSettings, AdamSettings, AdanSettings, LambSettings, LionSettings, MuonSettings,
    OptimizerConfig, RmsPropSettings, SgdSettings,
};
pub use deepspeed::{LrRangeTest, OneCycle, WarmupCosineLr, WarmupCurve, WarmupDecayLr, WarmupLr};
pub use groups::ParameterGroup;
pub(crate) use groups::{Assigned, Base, Described, Groups, assign, describe, freeze};
pub use schedule::{LearningRateSchedule, Reduction};
pub(crate) use schedule::{check_rate, check_steps};

pub use state::{ParameterState, StateNumber};

/// The optimizer of a rank's parameters, at a learning rate for each of its groups.
pub(crate) struct Updater {
    optimizer: ModuleOptimizer,
    factors: Vec<(ParamGroup, f64)>,
}

impl Updater {
    pub(crate) fn new(assigned: Assigned) -> Self {
        Self { optimizer: assigned.optimizer, factors: assigned.factors }
    }

    /// Updates the parameters that have a gradient.
    pub(crate) fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M {
        self.optimizer.step(rates(&self.factors, rate), module, gradients)
    }

    /// The whole state in Burn's form.
    pub(crate) fn to_bytes(&self) -> Result<Bytes, RecordError> {
        self.optimizer.into_bytes()
    }

    /// The state of every given parameter that has one, by name.
    pub(crate) fn state(
        &self,
        parameters: &[(Described, ParamId)],
    ) -> Result<BTreeMap<String, ParameterState>, StateError> {
        state::save(&self.optimizer, parameters)
    }

    /// Takes the saved state of the given parameters, and forgets its own.
    pub(crate) fn set_state(
        &mut self,
        states: BTreeMap<String, ParameterState>,
        parameters: &[(Described, ParamId)],
    ) -> Result<(), StateError> {
        self.optimizer = state::load(&self.optimizer, states, parameters)?;
        Ok(())
    }
}

/// Burn's form of one rate and its multiples for some parameters.
fn rates(factors: &[(ParamGroup, f64)], rate: f64) -> ModuleLearningRate {
    if factors.is_empty() {
        return rate.into();
    }
    let base = ModuleLrSchedulerConfig::new(LrSchedulerConfig::Constant(rate));
    let config = factors.iter().fold(base, |config, (group, factor)| {
        config.with_group(group.clone(), LrSchedulerConfig::Constant(rate * factor))
    });
    config.init().expect("constant rates are always right").step()
}
