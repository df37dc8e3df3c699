//! Training: forward and backward of a batch, gradients kept or used at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::data::{Agreed, Feed, Form, Request};
use super::share::{Losses, Summary};
use super::step::StepEnd;
use super::{PLANS_MAX, PipelineEngine};
use crate::data::DataItem;
use crate::error::{Cause, StepError};
use crate::interpreter::{Interpreter, Mode, RunResult};
use crate::normaliser::Normaliser;
use crate::report::{Note, StepReport, StepTimes};
use crate::stage::RankModule;
use crate::value::Value;

/// What happens to the gradients of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Update,
    Keep,
}

/// Gradients that wait for the batch that ends their step.
pub(super) struct Accumulated {
    /// Sums of count times gradient, not yet divided by what all count.
    gradients: GradientsParams,
    losses: Losses,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Trains on one batch: as many micro-batches of `data` as the module was built for.
    ///
    /// Each micro-batch is a pair of input and target, or a [`DataItem`]. The ranks that hold the first
    /// and the last stage take them from `data` before any forward runs, or that of the first stage
    /// alone ([`DataOn`](crate::DataOn)); the others leave `data` alone. With replicas, each takes the
    /// micro-batches of its own replica, as many as the others. The loss is the mean over the
    /// micro-batches of all replicas, or what the [`Normaliser`] says, and so is the gradient. `None` when
    /// the data has ended.
    ///
    /// # Errors
    /// [`StepError`]: the first failure of any rank, the same on all of them. The engine cannot be used
    /// after it: its ranks are no longer at the same step.
    pub fn train_batch<B: Into<DataItem<I, T>>>(
        &mut self,
        data: &mut impl Iterator<Item = B>,
    ) -> Result<Option<StepReport>, StepError> {
        self.train("train_batch", data, Form::MicroBatch, Then::Update)
    }

    /// Trains on one whole batch, the next item of `batches`, which the engine splits into as many
    /// micro-batches as the module was built for.
    ///
    /// All tensors are cut along their first dimension, into pieces as equal as can be
    /// ([`piece_sizes`](crate::piece_sizes)); what is no tensor is in every piece. Pieces count by their
    /// samples, so that loss and gradient are those of the whole batch. A batch of fewer samples than
    /// micro-batches becomes as many micro-batches as it has samples, under a plan for them, and the
    /// report says so ([`Note::FewerMicroBatches`]).
    ///
    /// # Errors
    /// As for [`PipelineEngine::train_batch`]; [`Cause::Split`] for a batch that cannot be cut, and
    /// [`Cause::Plan`] when the schedule has no plan for fewer micro-batches.
    pub fn train_batch_split<B: Into<DataItem<I, T>>>(
        &mut self,
        batches: &mut impl Iterator<Item = B>,
    ) -> Result<Option<StepReport>, StepError> {
        self.train("train_batch_split", batches, Form::WholeBatch, Then::Update)
    }

    /// Computes the gradients of a batch and keeps them for the step that the next
    /// [`PipelineEngine::train_batch`] ends.
    ///
    /// That step is then the one of all batches together: one loss, one gradient, one update. The report
    /// is of this batch alone. Replicas add up only at the end.
    ///
    /// # Errors
    /// As for [`PipelineEngine::train_batch`].
    pub fn accumulate_batch<B: Into<DataItem<I, T>>>(
        &mut self,
        data: &mut impl Iterator<Item = B>,
    ) -> Result<Option<StepReport>, StepError> {
        self.train("accumulate_batch", data, Form::MicroBatch, Then::Keep)
    }

    /// The same as [`PipelineEngine::accumulate_batch`] for a whole batch that the engine splits.
    ///
    /// # Errors
    /// As for [`PipelineEngine::train_batch_split`].
    pub fn accumulate_batch_split<B: Into<DataItem<I, T>>>(
        &mut self,
        batches: &mut impl Iterator<Item = B>,
    ) -> Result<Option<StepReport>, StepError> {
        self.train("accumulate_batch_split", batches, Form::WholeBatch, Then::Keep)
    }

    /// Number of micro-batches, over all replicas, whose gradients wait for the end of the step.
    #[must_use]
    pub fn n_accumulated(&self) -> usize {
        self.accumulated.as_ref().map_or(0, |accumulated| accumulated.losses.len())
    }

    /// Forgets the gradients that wait, on the rank that calls it: let all ranks do so.
    pub fn discard_accumulated(&mut self) {
        self.accumulated = None;
    }

    fn train<B: Into<DataItem<I, T>>>(
        &mut self,
        call: &str,
        data: &mut impl Iterator<Item = B>,
        form: Form,
        then: Then,
    ) -> Result<Option<StepReport>, StepError> {
        let wanted = self.module.n_micro_batches();
        let clipping =
            self.clipping.map_or(String::new(), |clipping| format!(", gradients clipped by {clipping:?}"));
        let (step, waiting) = (self.n_steps, self.n_accumulated());
        let name = format!(
            "{call} after {step} steps and {waiting} micro-batches at learning rate {}{clipping}",
            self.learning_rate()
        );
        let request = Request { call: &name, n_micro_batches: wanted, feed: Feed::Pairs, form };
        let Some(agreed) = self.fetch_pairs(request, data)? else { return Ok(None) };
        let Agreed { mut batch, n_micro_batches, counts } = agreed;
        self.prepare_training(n_micro_batches)?;
        // Where the whole is known and is this batch, factors are divided before anything runs.
        let is_whole = then == Then::Update && self.accumulated.is_none();
        let divides_late = !is_whole || self.normaliser == Normaliser::Weights;
        if !divides_late {
            batch.factors = self.factors(&counts, n_micro_batches, counts.total);
        }

        let started = Instant::now();
        self.precision.cast_inputs(&mut batch);
        let loss_scale = self.loss_scale();
        let before = self.accumulated.take();
        let (sums, mut losses) = before.map_or_else(
            || (GradientsParams::new(), Losses::default()),
            |Accumulated { gradients, losses }| (gradients, losses),
        );
        let module = &self.module;
        let route = self.trainings.get(&n_micro_batches).unwrap_or(&self.training);
        let mut numbering = module.numbering(self.n_steps, n_micro_batches, true);
        // Micro-batches of one step have different numbers, whatever calls they came with.
        let offset = u64::try_from(losses.len()).unwrap_or(u64::MAX);
        numbering.first_micro_batch = numbering.first_micro_batch.saturating_add(offset);
        let kind = (Mode::Train { scale: loss_scale.unwrap_or(1.0) }, numbering);
        let run = Interpreter::new(&module.rank, route, self.compute_stages(), &module.loss, kind, batch);
        let run = run.recomputing(&module.recompute);
        let run = run.map_err(|cause| module.rank.fail(module.rank.site("preparing the layers"), cause))?;
        let RunResult { losses: mut found, mut gradients, mut timing, .. } = run.starting_from(sums).run()?;
        let note = Note::of(wanted, n_micro_batches);

        if then == Then::Keep {
            timing.stop();
            let elapsed = started.elapsed();
            let (of_this_batch, times) = self.share(call, found, &counts, Some(&timing))?;
            losses.extend(of_this_batch.clone());
            self.accumulated = Some(Accumulated { gradients, losses });
            let end = StepEnd { rate: self.learning_rate(), loss_scale, gradient_norm: None, skipped: false };
            return self.report(of_this_batch, end, elapsed, times, note, then).map(Some);
        }
        if divides_late {
            let (of_this_batch, _) = self.share(call, std::mem::take(&mut found), &counts, None)?;
            losses.extend(of_this_batch);
            let total = self.counted(&losses)?;
            divide(&self.module.stages, &mut gradients, total);
        }
        let end = self.step(gradients, &mut timing)?;
        timing.stop();
        let elapsed = started.elapsed();
        let (of_this_batch, times) = self.share(call, found, &counts, Some(&timing))?;
        if !divides_late {
            losses.extend(of_this_batch);
        }
        self.n_steps += 1;
        self.n_updates += u64::from(!end.skipped);
        self.report(losses, end, elapsed, times, note, then).map(Some)
    }

    fn report(
        &self,
        losses: Losses,
        end: StepEnd,
        elapsed: Duration,
        times: StepTimes,
        note: Option<Note>,
        then: Then,
    ) -> Result<StepReport, StepError> {
        let Summary { loss, micro_batch_losses, metrics } = self.summary(losses)?;
        let is_update = then == Then::Update;
        Ok(StepReport {
            // The step that a kept batch belongs to is still to come.
            step: if is_update { self.n_steps } else { self.n_steps.saturating_add(1) },
            loss,
            micro_batch_losses,
            metrics,
            learning_rate: end.rate,
            loss_scale: end.loss_scale,
            skipped: end.skipped,
            gradient_norm: end.gradient_norm,
            is_update,
            note,
            elapsed,
            times,
        })
    }

    /// Makes and proves the plan for a batch of fewer micro-batches than the module was built for.
    fn prepare_training(&mut self, n_micro_batches: u32) -> Result<(), StepError> {
        let is_known = n_micro_batches == self.module.n_micro_batches();
        if is_known || self.trainings.contains_key(&n_micro_batches) {
            return Ok(());
        }
        let rank = &self.module.rank;
        let plan = self.module.training_plan(n_micro_batches).map_err(|source| {
            rank.fail(rank.site("planning"), Cause::Plan { n_micro_batches, source: Arc::new(source) })
        })?;
        let route = self.module.route(Arc::new(plan))?;
        while self.trainings.len() >= PLANS_MAX {
            self.trainings.pop_first();
        }
        self.trainings.insert(n_micro_batches, route);
        Ok(())
    }
}

/// Divides every gradient by what all micro-batches count together.
fn divide(module: &RankModule, gradients: &mut GradientsParams, total: f64) {
    struct Divide<'a>(&'a mut GradientsParams, f64);
    impl ModuleVisitor for Divide<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0.register::<D>(param.id, gradient.div_scalar(self.1));
            }
        }
    }
    module.visit(&mut Divide(gradients, total));
}
