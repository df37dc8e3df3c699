//! One training step: forward, backward and the update of the weights.

use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::PipelineEngine;
use super::data::Feed;
use crate::error::{StepError, guard};
use crate::gradients::named_gradients;
use crate::hub::Contribution;
use crate::interpreter::{Interpreter, Mode, RunResult};
use crate::report::{StepReport, StepTimes, encode};
use crate::stage::RankModule;
use crate::timing::Timing;
use crate::value::Value;

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Trains on one batch: as many micro-batches of `data` as the module was built for.
    ///
    /// Each micro-batch is a pair of input and target. The ranks that hold the first and the last stage
    /// take them from `data` before any forward runs; the others leave `data` alone. The loss is the
    /// mean over the micro-batches, and so is the gradient. `None` when the data has ended.
    ///
    /// # Errors
    /// [`StepError`]: the first failure of any rank, the same on all of them. The engine cannot be used
    /// after it: its ranks are no longer at the same step.
    pub fn train_batch(
        &mut self,
        data: &mut impl Iterator<Item = (I, T)>,
    ) -> Result<Option<StepReport>, StepError> {
        let n_micro_batches = self.module.n_micro_batches();
        let clipping =
            self.clipping.map_or(String::new(), |clipping| format!(", gradients clipped by {clipping:?}"));
        let step = self.n_steps;
        let name =
            format!("train_batch after {step} steps at learning rate {}{clipping}", self.learning_rate);
        let Some(batch) = self.fetch(&name, n_micro_batches, data, Feed::Pairs)? else {
            return Ok(None);
        };
        let started = Instant::now();
        let mode = Mode::Train { loss_weight: 1.0 / f64::from(n_micro_batches) };
        let module = &self.module;
        let kind = (mode, module.numbering(self.n_steps, true));
        let run = Interpreter::new(&module.rank, &self.training, &module.stages, &module.loss, kind, batch);
        let RunResult { losses, gradients, mut timing, .. } = run.run()?;
        let gradient_norm = self.step(gradients, &mut timing)?;
        timing.stop();
        let elapsed = started.elapsed();
        let (micro_batch_losses, times) = self.share_losses("train_batch", losses, Some(&timing))?;
        self.n_steps += 1;
        Ok(Some(StepReport {
            step: self.n_steps,
            loss: mean(&micro_batch_losses),
            micro_batch_losses,
            learning_rate: self.learning_rate,
            gradient_norm,
            elapsed,
            times,
        }))
    }

    /// Clips the summed gradients if asked, and updates the weights; returns their norm if it was needed.
    fn step(
        &mut self,
        mut gradients: GradientsParams,
        timing: &mut Timing,
    ) -> Result<Option<f64>, StepError> {
        let rank = self.module.rank.clone();
        let failed = |cause| rank.fail(rank.site("OptimizerStep()"), cause);
        if let Some(observer) = &mut self.observer {
            let named = named_gradients(&self.module.stages, &gradients);
            guard("the gradient observer", || observer(&named)).map_err(failed)?;
        }
        // Not part of the optimizer's time: a rank waits here for the others.
        let norm = match self.clipping {
            Some(clipping) => clipping.apply(&rank, &self.module.stages, &mut gradients)?,
            None => None,
        };
        let started = Instant::now();
        let stages = std::mem::replace(&mut self.module.stages, RankModule { stages: Vec::new() });
        let optimizer = &mut self.optimizer;
        let learning_rate = self.learning_rate;
        // A panic leaves no module behind; the failure makes every later call fail too.
        let updated = guard("the optimizer", move || optimizer.step(learning_rate, stages, gradients));
        self.module.stages = updated.map_err(failed)?;
        timing.record_optimizer(started.elapsed());
        Ok(norm)
    }

    /// Shares the losses of the last stage, and every rank's times, with every rank.
    pub(super) fn share_losses(
        &self,
        call: &str,
        losses: Vec<Option<Tensor<1>>>,
        timing: Option<&Timing>,
    ) -> Result<(Vec<f64>, StepTimes), StepError> {
        let rank = &self.module.rank;
        let bits: Vec<u64> = losses.into_iter().flatten().map(|loss| to_f64(loss).to_bits()).collect();
        let mut words = vec![u64::try_from(bits.len()).unwrap_or(0)];
        words.extend(bits);
        words.extend(timing.map(encode).unwrap_or_default());
        let call = Contribution { call: format!("{call}, end"), words, messages: Vec::new() };
        let all = rank.exchange(call, || rank.site("sharing the losses"))?;
        let mut shared = Vec::new();
        let mut times = Vec::new();
        for contribution in all.iter() {
            let n_losses = contribution.words.first().copied().unwrap_or(0);
            let n_losses = usize::try_from(n_losses).unwrap_or(0);
            let (losses, rest) = contribution.words[1..].split_at(n_losses);
            shared.extend(losses.iter().map(|&bits| f64::from_bits(bits)));
            times.push(rest);
        }
        let n_stages = self.module.placement.n_stages();
        Ok((shared, StepTimes::decode(n_stages, times.into_iter())))
    }
}

/// The value of a tensor of one element, exactly.
fn to_f64(loss: Tensor<1>) -> f64 {
    loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

/// The mean, summed in micro-batch order.
pub(super) fn mean(losses: &[f64]) -> f64 {
    let n: f64 = losses.iter().map(|_| 1.0).sum();
    losses.iter().sum::<f64>() / n
}
