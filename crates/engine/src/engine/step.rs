//! The end of a batch: one gradient for each parameter, the optimizer, and new values for all copies.

use std::time::Instant;

use burn::optim::GradientsParams;

use super::PipelineEngine;
use crate::error::{StepError, guard};
use crate::gradients::named_gradients;
use crate::stage::RankModule;
use crate::timing::Timing;
use crate::value::Value;

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Adds the gradients of all copies up, clips them if asked, updates the weights and gives all
    /// copies the new ones; returns the norm if it was needed.
    pub(super) fn step(
        &mut self,
        mut gradients: GradientsParams,
        timing: &mut Timing,
    ) -> Result<Option<f64>, StepError> {
        let rank = self.module.rank.clone();
        let failed = |cause| rank.fail(rank.site("OptimizerStep()"), cause);
        let started = Instant::now();
        self.reducer.sum(&mut gradients)?;
        timing.record_reduction(started.elapsed());
        if let Some(observer) = &mut self.observer {
            let named = named_gradients(&self.module.stages, &gradients);
            guard("the gradient observer", || observer(&named)).map_err(failed)?;
        }
        // Not part of the optimizer's time: a rank waits here for the others.
        let norm = match self.clipping {
            Some(clipping) => clipping.apply(&rank, &self.reducer, &self.module.stages, &mut gradients)?,
            None => None,
        };
        let to_update = self.reducer.to_update(&gradients);
        let started = Instant::now();
        let stages = std::mem::replace(&mut self.module.stages, RankModule { stages: Vec::new() });
        let optimizer = &mut self.optimizer;
        let learning_rate = self.learning_rate;
        // A panic leaves no module behind; the failure makes every later call fail too.
        let updated = guard("the optimizer", move || optimizer.step(learning_rate, stages, gradients));
        let updated = updated.map_err(failed)?;
        timing.record_optimizer(started.elapsed());
        let started = Instant::now();
        self.module.stages = self.reducer.share(updated, &to_update)?;
        timing.record_reduction(started.elapsed());
        Ok(norm)
    }
}
