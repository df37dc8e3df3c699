//! The pipeline engine: whole training and evaluation steps on every rank.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use brigade_schedule::{Costs, StageCosts, Timeline, replay};
use brigade_wire::Tree;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::clipping::GradientClipping;
use crate::error::{BuildError, Cause, EngineError, Site, StepError, guard};
use crate::gradients::{NamedTensor, named_gradients};
use crate::hub::Contribution;
use crate::interpreter::{Batch, Interpreter, Mode, Route, RunResult};
use crate::module::PipelineModule;
use crate::report::{EvalReport, StepReport, StepTimes, encode};
use crate::stage::RankModule;
use crate::tensor::AnyTensor;
use crate::timing::Timing;
use crate::value::Value;

type GradientObserver = Box<dyn FnMut(&[NamedTensor]) + Send>;

/// The most plans for evaluation that an engine keeps, one for each number of micro-batches: a program
/// that evaluates on ever other numbers must not gather plans for ever.
const EVALUATION_PLANS_MAX: usize = 16;

/// How to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Learning rate of the first step; see [`PipelineEngine::set_learning_rate`].
    pub learning_rate: f64,
}

/// Trains and evaluates one rank's part of a pipeline; every rank makes the same calls.
///
/// # Examples
/// ```
/// use brigade_engine::{EngineError, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig, World};
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
///
/// #[derive(Module, Debug)]
/// struct Dense {
///     linear: Linear,
/// }
/// impl Layer for Dense {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         self.linear.forward(x)
///     }
/// }
///
/// let losses = World::local(2)?.run(|rank| {
///     let layers = Layers::new().repeat(4, |_, d| Dense { linear: LinearConfig::new(3, 3).init(d) });
///     let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
///     let module = PipelineModule::builder(&layers, mean_square).micro_batches(2).build(&rank)?;
///     let config = TrainConfig { learning_rate: 0.1 };
///     let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
///     let mut data = (0..4).map(|i| {
///         let x = Tensor::<2>::full([5, 3], i, &Device::flex());
///         (x.clone(), x)
///     });
///     let mut losses = Vec::new();
///     while let Some(report) = engine.train_batch(&mut data)? {
///         losses.push(report.loss);
///     }
///     Ok::<_, EngineError>(losses)
/// })?;
/// assert_eq!(losses[0].len(), 2);
/// assert_eq!(losses[0], losses[1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PipelineEngine<I, O, T> {
    module: PipelineModule<I, O, T>,
    optimizer: ModuleOptimizer,
    learning_rate: f64,
    n_steps: u64,
    training: Route,
    evaluations: BTreeMap<u32, Route>,
    observer: Option<GradientObserver>,
    clipping: Option<GradientClipping>,
    /// What every rank must have in common, compared at each call.
    identity: String,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Joins the pipeline with this rank's module and an optimizer for its parameters.
    ///
    /// # Errors
    /// [`BuildError::LearningRate`] for one that is negative or not finite; [`Cause::LinkDiffers`] when
    /// the ranks have built different plans.
    pub fn new(
        module: PipelineModule<I, O, T>,
        optimizer: ModuleOptimizer,
        config: TrainConfig,
    ) -> Result<Self, EngineError> {
        check_learning_rate(config.learning_rate)?;
        let training = module.route(Arc::clone(&module.training))?;
        let identity = format!("engine {}, {}", training.serial, module.identity());
        Ok(Self {
            module,
            optimizer,
            learning_rate: config.learning_rate,
            n_steps: 0,
            training,
            evaluations: BTreeMap::new(),
            observer: None,
            clipping: None,
            identity,
        })
    }

    /// The module, with the weights of the last step.
    #[must_use]
    pub fn module(&self) -> &PipelineModule<I, O, T> {
        &self.module
    }

    /// Learning rate of the next step.
    #[must_use]
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// Sets the learning rate from the next step on; give every rank the same.
    ///
    /// # Errors
    /// [`BuildError::LearningRate`] for one that is negative or not finite.
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<(), BuildError> {
        check_learning_rate(learning_rate)?;
        self.learning_rate = learning_rate;
        Ok(())
    }

    /// Bounds the gradients of every step from the next one on, or no longer; give every rank the same.
    ///
    /// # Errors
    /// [`BuildError::Clipping`] for a bound that is not above 0.
    pub fn set_gradient_clipping(&mut self, clipping: Option<GradientClipping>) -> Result<(), BuildError> {
        if let Some(clipping) = clipping {
            clipping.check()?;
        }
        self.clipping = clipping;
        Ok(())
    }

    /// Shows `observer` this rank's gradients, summed and scaled, before they are clipped and used.
    ///
    /// They are copied to the host for it.
    pub fn observe_gradients(&mut self, observer: impl FnMut(&[NamedTensor]) + Send + 'static) {
        self.observer = Some(Box::new(observer));
    }

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
        let name = format!("train_batch at learning rate {}{clipping}", self.learning_rate);
        let Some(batch) = self.fetch(&name, n_micro_batches, data, Feed::Pairs)? else {
            return Ok(None);
        };
        let started = Instant::now();
        let mode = Mode::Train { loss_weight: 1.0 / f64::from(n_micro_batches) };
        let module = &self.module;
        let run = Interpreter::new(&module.rank, &self.training, &module.stages, &module.loss, mode, batch);
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

    /// Computes the loss on `n_micro_batches` micro-batches without training.
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

    /// Computes the outputs for `n_micro_batches` inputs, in order, on every rank.
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
        let outputs = all.iter().enumerate().flat_map(|(peer, c)| c.messages.iter().map(move |m| (peer, m)));
        outputs
            .map(|(peer, message)| {
                let peer = self.module.ranks[peer];
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

    /// Replays the training plan with the mean times of a step: what the plan alone would have given.
    ///
    /// # Errors
    /// [`Cause::Replay`] when the times cannot be replayed.
    pub fn replay(&self, times: &StepTimes) -> Result<Timeline, Cause> {
        let optimizer = times.ranks.iter().map(|rank| rank.optimizer).max().unwrap_or_default();
        let stages = times.stages.iter().map(|stage| StageCosts {
            forward_s: stage.forward.mean_s(),
            input_grad_s: stage.backward.mean_s(),
            weight_grad_s: stage.weight_grad.mean_s(),
            ..StageCosts::default()
        });
        let costs = Costs {
            stages: stages.collect(),
            optimizer_s: optimizer.as_secs_f64(),
            ..Costs::uniform(0, StageCosts::default())
        };
        replay(&self.module.training, &costs).map_err(Cause::Replay)
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
        Interpreter::new(rank, route, &frozen, &self.module.loss, mode, batch).run()
    }

    /// Fetches this rank's share of a batch and agrees with the others on what there is.
    fn fetch<U: Value>(
        &self,
        call: &str,
        n_micro_batches: u32,
        data: &mut impl Iterator<Item = (I, U)>,
        feed: Feed,
    ) -> Result<Option<Batch>, StepError> {
        let rank = &self.module.rank;
        let site = || rank.site(&format!("{call}, fetching the data"));
        let wanted = usize::try_from(n_micro_batches).unwrap_or(usize::MAX);
        let (first, last) = (self.module.holds_first(), self.module.holds_last() && feed == Feed::Pairs);
        let mut batch = Batch::default();
        let mut found = 0;
        while (first || last) && found < wanted {
            let next = guard("the data source", || data.next()).map_err(|cause| rank.fail(site(), cause))?;
            let Some((input, target)) = next else { break };
            if first {
                batch.inputs.push(Some(self.erase(input, &site)?));
            }
            if last {
                batch.targets.push(Some(self.erase(target, &site)?));
            }
            found += 1;
        }
        let feeds = u64::from(first || last);
        let words = vec![feeds, u64::try_from(found).unwrap_or(u64::MAX)];
        let call = format!("{call} with {n_micro_batches} micro-batches on {}", self.identity);
        let all = rank.exchange(Contribution { call, words, messages: Vec::new() }, site)?;
        let counts: Vec<(usize, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, contribution)| contribution.words.first() == Some(&1))
            .map(|(peer, c)| (peer, c.words.get(1).and_then(|&n| usize::try_from(n).ok()).unwrap_or(0)))
            .collect();
        let lowest = counts.iter().min_by_key(|(_, found)| *found).copied().unwrap_or((0, 0));
        let highest = counts.iter().max_by_key(|(_, found)| *found).copied().unwrap_or((0, 0));
        if lowest.1 == wanted {
            return Ok(Some(batch));
        }
        if highest.1 == 0 {
            return Ok(None);
        }
        // Every rank reports the same failure: that of the rank whose data ended first.
        let at = Site { rank: self.module.ranks[lowest.0], ..site() };
        let cause = if lowest.1 == highest.1 {
            Cause::DataEnded { wanted, found: lowest.1 }
        } else {
            let other = self.module.ranks[highest.0];
            Cause::DataDiffers { other, there: highest.1, here: lowest.1 }
        };
        Err(rank.fail(at, cause))
    }

    fn erase<U: Value>(&self, value: U, site: &impl Fn() -> Site) -> Result<Tree<AnyTensor>, StepError> {
        let cause = |source| Cause::DataValue { what: "input or target", source };
        value.into_tree().map_err(|source| self.module.rank.fail(site(), cause(source)))
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
    fn share_losses(
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

/// What a call takes from its data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Feed {
    Pairs,
    Inputs,
}

impl<I, O, T> fmt::Debug for PipelineEngine<I, O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineEngine")
            .field("module", &self.module)
            .field("learning_rate", &self.learning_rate)
            .field("n_steps", &self.n_steps)
            .finish_non_exhaustive()
    }
}

fn check_learning_rate(value: f64) -> Result<(), BuildError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(BuildError::LearningRate { value }) }
}

/// The value of a tensor of one element, exactly.
fn to_f64(loss: Tensor<1>) -> f64 {
    loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

/// The mean, summed in micro-batch order.
fn mean(losses: &[f64]) -> f64 {
    let n: f64 = losses.iter().map(|_| 1.0).sum();
    losses.iter().sum::<f64>() / n
}
