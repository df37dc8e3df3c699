//! One training step: forward, backward and the update of the weights.

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::Tensor;

use super::PipelineEngine;
use super::data::Feed;
use crate::error::StepError;
use crate::hub::Contribution;
use crate::interpreter::{Interpreter, Mode, RunResult};
use crate::report::{StepReport, StepTimes, encode};
use crate::timing::Timing;
use crate::value::Value;

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Trains on one batch: as many micro-batches of `data` as the module was built for.
    ///
    /// Each micro-batch is a pair of input and target. The ranks that hold the first and the last stage
    /// take them from `data` before any forward runs; the others leave `data` alone. With replicas, each
    /// takes the micro-batches of its own replica, as many as the others. The loss is the mean over the
    /// micro-batches of all replicas, and so is the gradient. `None` when the data has ended.
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
        let mode = Mode::Train { loss_weight: self.loss_weight() };
        let module = &self.module;
        let kind = (mode, module.numbering(self.n_steps, n_micro_batches, true));
        let run = Interpreter::new(&module.rank, &self.training, &module.stages, &module.loss, kind, batch);
        let run = run.recomputing(&module.recompute);
        let run = run.map_err(|cause| module.rank.fail(module.rank.site("preparing the layers"), cause))?;
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

    /// Shares the losses of the last stage, and every rank's times, with every rank.
    pub(super) fn share_losses(
        &self,
        call: &str,
        losses: Vec<Option<Tensor<1>>>,
        timing: Option<&Timing>,
    ) -> Result<(Vec<f64>, StepTimes), StepError> {
        let rank = &self.module.rank;
        // A loss has a number over all replicas: several ranks may hold the last stage.
        let first = self.module.replica.saturating_mul(losses.len());
        let known = losses.into_iter().enumerate().filter_map(|(at, loss)| Some((at, loss?)));
        let losses: Vec<u64> = known
            .flat_map(|(at, loss)| {
                let number = u64::try_from(first.saturating_add(at)).unwrap_or(u64::MAX);
                [number, to_f64(loss).to_bits()]
            })
            .collect();
        let mut words = vec![u64::try_from(losses.len()).unwrap_or(0)];
        words.extend(losses);
        words.extend(timing.map(encode).unwrap_or_default());
        let call = Contribution { call: format!("{call}, end"), words, messages: Vec::new() };
        let all = rank.exchange(call, || rank.site("sharing the losses"))?;
        let mut shared = BTreeMap::new();
        let mut times = Vec::new();
        for contribution in all.iter() {
            let n_words = contribution.words.first().copied().unwrap_or(0);
            let n_words = usize::try_from(n_words).unwrap_or(0);
            let (losses, rest) = contribution.words[1..].split_at(n_words);
            shared.extend(losses.chunks_exact(2).map(|pair| (pair[0], f64::from_bits(pair[1]))));
            times.push(rest);
        }
        let n_stages = self.module.placement.n_stages();
        Ok((shared.into_values().collect(), StepTimes::decode(n_stages, times.into_iter())))
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
