//! Losses and outputs without training.

use std::sync::Arc;

use burn::module::Module;

use super::data::Feed;
use super::train::mean;
use super::{EVALUATION_PLANS_MAX, PipelineEngine};
use crate::error::{Cause, StepError, guard};
use crate::hub::Contribution;
use crate::interpreter::{Batch, Interpreter, Mode, RunResult};
use crate::report::EvalReport;
use crate::stage::RankModule;
use crate::value::Value;

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Computes the loss on `n_micro_batches` micro-batches of each replica without training.
    ///
    /// Layers run as in Burn's validation: no dropout, no gradients; parameters stay as they are.
    /// `None` when the data has ended.
    ///
    /// # Errors
    /// As for [`PipelineEngine::train_batch`]; also [`Cause::Plan`] for 0 micro-batches.
    pub fn eval_batch(
        &mut self,
        data: &mut impl Iterator<Item = (I, T)>,
        n_micro_batches: u32,
    ) -> Result<Option<EvalReport>, StepError> {
        self.prepare(n_micro_batches)?;
        let Some(batch) = self.fetch("eval_batch", n_micro_batches, data, Feed::Pairs)? else {
            return Ok(None);
        };
        let run = self.run_forward(n_micro_batches, Mode::Evaluate, batch)?;
        let (micro_batch_losses, _) = self.share_losses("eval_batch", run.losses, None)?;
        Ok(Some(EvalReport { loss: mean(&micro_batch_losses), micro_batch_losses }))
    }

    /// Computes the outputs for `n_micro_batches` inputs of each replica, in their order and that of the
    /// replicas, on every rank.
    ///
    /// `None` when the data has ended.
    ///
    /// # Errors
    /// As for [`PipelineEngine::eval_batch`].
    pub fn predict_batch(
        &mut self,
        data: &mut impl Iterator<Item = I>,
        n_micro_batches: u32,
    ) -> Result<Option<Vec<O>>, StepError> {
        self.prepare(n_micro_batches)?;
        let mut pairs = data.map(|input| (input, ()));
        let Some(batch) = self.fetch("predict_batch", n_micro_batches, &mut pairs, Feed::Inputs)? else {
            return Ok(None);
        };
        let run = self.run_forward(n_micro_batches, Mode::Predict, batch)?;
        let messages = run.outputs.into_iter().flatten().collect();
        let rank = &self.module.rank;
        let site = || rank.site("sharing the outputs");
        let call = Contribution { call: "predict_batch".to_owned(), words: Vec::new(), messages };
        let all = rank.exchange(call, site)?;
        // In the order of the micro-batches in each replica: several ranks may hold the last stage.
        let mut outputs = Vec::new();
        for ranks in &self.module.grid {
            let first = outputs.len();
            outputs.extend(ranks.iter().flat_map(|&peer| {
                all.get(peer.index()).into_iter().flat_map(move |c| c.messages.iter().map(move |m| (peer, m)))
            }));
            outputs[first..].sort_by_key(|(_, message)| message.tag.micro_batch);
        }
        outputs
            .into_iter()
            .map(|(peer, message)| {
                let tree = message
                    .clone()
                    .into_tree()
                    .map_err(|source| rank.fail(site(), Cause::Message { peer, source }))?;
                O::from_tree(tree.map(|boundary| boundary.tensor))
                    .map_err(|source| rank.fail(site(), Cause::DataValue { what: "output", source }))
            })
            .collect::<Result<Vec<O>, StepError>>()
            .map(Some)
    }

    /// Makes and proves the plan of an evaluation, before any data is taken for it.
    fn prepare(&mut self, n_micro_batches: u32) -> Result<(), StepError> {
        let rank = &self.module.rank;
        if !self.evaluations.contains_key(&n_micro_batches) {
            let plan = self.module.evaluation_plan(n_micro_batches).map_err(|source| {
                rank.fail(rank.site("planning"), Cause::Plan { n_micro_batches, source: Arc::new(source) })
            })?;
            let route = self.module.route(Arc::new(plan))?;
            while self.evaluations.len() >= EVALUATION_PLANS_MAX {
                self.evaluations.pop_first();
            }
            self.evaluations.insert(n_micro_batches, route);
        }
        Ok(())
    }

    fn run_forward(
        &mut self,
        n_micro_batches: u32,
        mode: Mode,
        batch: Batch,
    ) -> Result<RunResult, StepError> {
        let route = &self.evaluations[&n_micro_batches];
        let rank = &self.module.rank;
        let frozen = guard("a layer's validation form", || RankModule::valid(&self.module.stages))
            .map_err(|cause| rank.fail(rank.site("freezing"), cause))?;
        let numbering = self.module.numbering(self.n_steps, n_micro_batches, false);
        Interpreter::new(rank, route, &frozen, &self.module.loss, (mode, numbering), batch).run()
    }
}
