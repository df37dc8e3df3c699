//! Losses and outputs without training.

use std::sync::Arc;

use brigade_topology::Rank;
use brigade_wire::Tree;
use burn::module::Module;

use super::data::{Agreed, Feed, Form, Request};
use super::{PLANS_MAX, PipelineEngine};
use crate::data::{DataItem, merge};
use crate::error::{Cause, StepError, guard};
use crate::evaluation::{EvalOptions, Evaluation, OutputsOn};
use crate::hub::Contribution;
use crate::interpreter::{Batch, Interpreter, Mode, RunResult};
use crate::message::Message;
use crate::report::{EvalReport, Note};
use crate::stage::RankModule;
use crate::tensor::AnyTensor;
use crate::value::Value;

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Computes the loss on `n_micro_batches` micro-batches of each replica without training.
    ///
    /// Layers run as in Burn's validation: no dropout, no gradients; parameters stay as they are. The
    /// loss is put together by the rule of training steps. `None` when the data has ended. See
    /// [`PipelineEngine::evaluate`] for outputs and the number of micro-batches of training.
    ///
    /// # Errors
    /// As for [`PipelineEngine::train_batch`]; also [`Cause::Plan`] for 0 micro-batches.
    pub fn eval_batch<B: Into<DataItem<I, T>>>(
        &mut self,
        data: &mut impl Iterator<Item = B>,
        n_micro_batches: u32,
    ) -> Result<Option<EvalReport>, StepError> {
        let options = EvalOptions::new().micro_batches(n_micro_batches);
        Ok(self.evaluate(data, options)?.map(|evaluation| evaluation.report))
    }

    /// Computes the loss on some micro-batches without training and, if asked, keeps the outputs.
    ///
    /// As many micro-batches as a training batch has unless the options say otherwise.
    ///
    /// # Errors
    /// As for [`PipelineEngine::eval_batch`]; [`Cause::Merge`] when outputs cannot be put together.
    pub fn evaluate<B: Into<DataItem<I, T>>>(
        &mut self,
        data: &mut impl Iterator<Item = B>,
        options: EvalOptions,
    ) -> Result<Option<Evaluation<O>>, StepError> {
        self.evaluation("evaluate", data, Form::MicroBatch, options)
    }

    /// The same on one whole batch, the next item of `batches`, which the engine splits.
    ///
    /// # Errors
    /// As for [`PipelineEngine::evaluate`] and [`PipelineEngine::train_batch_split`].
    pub fn evaluate_split<B: Into<DataItem<I, T>>>(
        &mut self,
        batches: &mut impl Iterator<Item = B>,
        options: EvalOptions,
    ) -> Result<Option<Evaluation<O>>, StepError> {
        self.evaluation("evaluate_split", batches, Form::WholeBatch, options)
    }

    fn evaluation<B: Into<DataItem<I, T>>>(
        &mut self,
        call: &str,
        data: &mut impl Iterator<Item = B>,
        form: Form,
        options: EvalOptions,
    ) -> Result<Option<Evaluation<O>>, StepError> {
        let wanted = options.n_micro_batches.unwrap_or(self.module.n_micro_batches());
        self.prepare(wanted)?;
        let name = format!("{call} for {:?} outputs on {:?}", options.outputs, options.on);
        let request = Request { call: &name, n_micro_batches: wanted, feed: Feed::Pairs, form };
        let Some(Agreed { batch, n_micro_batches, counts }) = self.fetch_pairs(request, data)? else {
            return Ok(None);
        };
        self.prepare(n_micro_batches)?;
        let mode = if options.outputs.is_some() { Mode::EvaluateAndPredict } else { Mode::Evaluate };
        let run = self.run_forward(n_micro_batches, mode, batch)?;
        let (losses, _) = self.share(call, run.losses, &counts, None)?;
        self.counted(&losses)?;
        let summary = self.summary(losses)?;
        let report = EvalReport {
            loss: summary.loss,
            micro_batch_losses: summary.micro_batch_losses,
            metrics: summary.metrics,
            note: Note::of(wanted, n_micro_batches),
        };
        Ok(Some(Evaluation { report, outputs: self.outputs(call, run.outputs, options)? }))
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
        let options = EvalOptions::new().micro_batches(n_micro_batches).outputs_as_list();
        self.predict(data, options)
    }

    /// Computes outputs without targets or losses, and puts them together as the options say.
    ///
    /// They are a list of one for each micro-batch, or a list of one when they are merged. It is empty on
    /// the ranks that the options leave out. A function set by [`PipelineEngine::set_batch_fn`] takes
    /// pairs and is not used here.
    ///
    /// # Errors
    /// As for [`PipelineEngine::evaluate`].
    pub fn predict(
        &mut self,
        data: &mut impl Iterator<Item = I>,
        options: EvalOptions,
    ) -> Result<Option<Vec<O>>, StepError> {
        let n_micro_batches = options.n_micro_batches.unwrap_or(self.module.n_micro_batches());
        self.prepare(n_micro_batches)?;
        let name = format!("predict_batch of {:?} outputs on {:?}", options.outputs, options.on);
        let request = Request { call: &name, n_micro_batches, feed: Feed::Inputs, form: Form::MicroBatch };
        let mut items = data.map(|input| DataItem::new(input, ()));
        let Some(Agreed { batch, .. }) = self.fetch(request, &mut items)? else { return Ok(None) };
        let run = self.run_forward(n_micro_batches, Mode::Predict, batch)?;
        self.outputs("predict_batch", run.outputs, options).map(Some)
    }

    /// Brings outputs to the ranks that want them, in the order of the micro-batches in each replica.
    fn outputs(
        &self,
        call: &str,
        found: Vec<Option<Message>>,
        options: EvalOptions,
    ) -> Result<Vec<O>, StepError> {
        let Some(how) = options.outputs else { return Ok(Vec::new()) };
        let rank = &self.module.rank;
        let site = || rank.site("sharing the outputs");
        let here: Vec<Message> = found.into_iter().flatten().collect();
        let outputs: Vec<(Rank, Message)> = match options.on {
            OutputsOn::LastStage => here.into_iter().map(|message| (rank.rank(), message)).collect(),
            OutputsOn::EveryRank => {
                let call =
                    Contribution { call: format!("{call}, outputs"), words: Vec::new(), messages: here };
                let all = rank.exchange(call, site)?;
                let mut outputs = Vec::new();
                for ranks in &self.module.grid {
                    let first = outputs.len();
                    outputs.extend(ranks.iter().flat_map(|&peer| {
                        let messages = all.get(peer.index()).into_iter().flat_map(|c| &c.messages);
                        messages.map(move |message| (peer, message.clone()))
                    }));
                    // Several ranks may hold the last stage.
                    outputs[first..].sort_by_key(|(_, message)| message.tag.micro_batch);
                }
                outputs
            }
        };
        let trees = outputs.into_iter().map(|(peer, message)| {
            let tree =
                message.into_tree().map_err(|source| rank.fail(site(), Cause::Message { peer, source }))?;
            // Before means over them are taken.
            Ok(tree.map(|boundary| boundary.tensor.widened()))
        });
        let mut trees = trees.collect::<Result<Vec<Tree<AnyTensor>>, StepError>>()?;
        if let Some(how) = how.merge()
            && !trees.is_empty()
        {
            let merged = guard("putting outputs together", || merge(trees, how));
            let merged = merged.and_then(|merged| merged.map_err(Cause::Merge));
            trees = vec![merged.map_err(|cause| rank.fail(site(), cause))?];
        }
        let value = |tree| {
            O::from_tree(tree)
                .map_err(|source| rank.fail(site(), Cause::DataValue { what: "output", source }))
        };
        trees.into_iter().map(value).collect()
    }

    /// Makes and proves the plan of an evaluation, before any data is taken for it.
    fn prepare(&mut self, n_micro_batches: u32) -> Result<(), StepError> {
        let rank = &self.module.rank;
        if !self.evaluations.contains_key(&n_micro_batches) {
            let plan = self.module.evaluation_plan(n_micro_batches).map_err(|source| {
                rank.fail(rank.site("planning"), Cause::Plan { n_micro_batches, source: Arc::new(source) })
            })?;
            let route = self.module.route(Arc::new(plan))?;
            while self.evaluations.len() >= PLANS_MAX {
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
        mut batch: Batch,
    ) -> Result<RunResult, StepError> {
        self.precision.cast_inputs(&mut batch);
        let route = &self.evaluations[&n_micro_batches];
        let rank = &self.module.rank;
        let frozen = guard("a layer's validation form", || RankModule::valid(self.compute_stages()))
            .map_err(|cause| rank.fail(rank.site("freezing"), cause))?;
        let numbering = self.module.numbering(self.n_steps, n_micro_batches, false);
        Interpreter::new(rank, route, &frozen, &self.module.loss, (mode, numbering), batch).run()
    }
}
