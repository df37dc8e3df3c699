//! The end of a batch: one gradient for each parameter, the optimizer, and new values for all copies.

use std::time::Instant;

use burn::optim::GradientsParams;

use super::PipelineEngine;
use crate::config::precision::unscale;
use crate::error::{StepError, guard};
use crate::gradients::named_gradients;
use crate::hub::Contribution;
use crate::stage::RankModule;
use crate::timing::Timing;
use crate::value::Value;

/// How a step ended.
pub(super) struct StepEnd {
    /// The learning rate of the step.
    pub(super) rate: f64,
    /// The scale that the step's loss had.
    pub(super) loss_scale: Option<f64>,
    pub(super) gradient_norm: Option<f64>,
    pub(super) skipped: bool,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Adds the gradients of all copies up, clips them if asked, updates the weights and gives all
    /// copies the new ones; or, when gradients overflow on any rank, does nothing on all of them.
    pub(super) fn step(
        &mut self,
        mut gradients: GradientsParams,
        timing: &mut Timing,
    ) -> Result<StepEnd, StepError> {
        let rank = self.module.rank.clone();
        let failed = |cause| rank.fail(rank.site("OptimizerStep()"), cause);
        let started = Instant::now();
        self.reducer.sum(&mut gradients)?;
        let (rate, loss_scale) = (self.learning_rate(), self.loss_scale());
        let overflow = self.unscale(&mut gradients)?;
        timing.record_reduction(started.elapsed());
        if let Some(observer) = &mut self.observer {
            let named = named_gradients(&self.module.stages, &gradients);
            guard("the gradient observer", || observer(&named)).map_err(failed)?;
        }
        if overflow {
            return Ok(StepEnd { rate, loss_scale, gradient_norm: None, skipped: true });
        }
        // Not part of the optimizer's time: a rank waits here for the others.
        let norm = match self.clipping {
            Some(clipping) => clipping.apply(&rank, &self.reducer, &self.module.stages, &mut gradients)?,
            None => None,
        };
        let to_update = self.reducer.to_update(&gradients);
        let started = Instant::now();
        let stages = std::mem::replace(&mut self.module.stages, RankModule { stages: Vec::new() });
        let updater = &mut self.updater;
        // A panic leaves no module behind; the failure makes every later call fail too.
        let updated = guard("the optimizer", move || updater.step(rate, stages, gradients));
        let updated = updated.map_err(failed)?;
        timing.record_optimizer(started.elapsed());
        let started = Instant::now();
        self.module.stages = self.reducer.share(updated, &to_update)?;
        timing.record_reduction(started.elapsed());
        self.recast();
        Ok(StepEnd { rate, loss_scale, gradient_norm: norm, skipped: false })
    }

    /// What the losses of this step are multiplied by in their backward passes, if they are.
    pub(super) fn loss_scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(|scaler| scaler.state.scale)
    }

    /// Takes the loss scale out of the summed gradients again and moves it on; tells whether they overflow
    /// on any rank, which all ranks then know.
    fn unscale(&mut self, gradients: &mut GradientsParams) -> Result<bool, StepError> {
        let Some(scaler) = &mut self.scaler else { return Ok(false) };
        let rank = &self.module.rank;
        let overflow = unscale(&self.module.stages, gradients, scaler.state.scale);
        let words = vec![u64::from(overflow)];
        let call = Contribution { call: "overflow of a step".to_owned(), words, messages: Vec::new() };
        let all = rank.exchange(call, || rank.site("sharing overflows"))?;
        let overflow = all.iter().any(|contribution| contribution.words.first() == Some(&1));
        scaler.advance(overflow).map_err(|cause| rank.fail(rank.site("moving the loss scale"), cause))?;
        Ok(overflow)
    }
}
