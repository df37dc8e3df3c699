//! The pipeline engine: whole training and evaluation steps on every rank.

mod data;
mod evaluate;
mod setup;
mod share;
mod source;
mod step;
mod train;

use std::collections::BTreeMap;
use std::fmt;

use brigade_schedule::{Costs, StageCosts, Timeline, replay};

use crate::clipping::GradientClipping;
use crate::config::precision::{Precision, Scaler};
use crate::error::{BuildError, Cause, EngineError, StepError, guard};
use crate::gradients::NamedTensor;
use crate::module::PipelineModule;
use crate::normaliser::Normaliser;
use crate::optimizer::{LearningRateSchedule, Updater};
use crate::reduce::{OptimizerSharding, Reducer};
use crate::report::StepTimes;
use crate::route::Route;
use crate::stage::RankModule;
use crate::timing::Spent;
use crate::value::Value;

use self::source::TargetLinks;
use self::train::Accumulated;

pub use self::setup::TrainingState;
pub use self::source::DataOn;

type GradientObserver = Box<dyn FnMut(&[NamedTensor]) + Send>;

type BatchFn<I, T> = Box<dyn FnMut(I, T) -> (I, T) + Send>;

/// The most further plans that an engine keeps for training, and for evaluation, one for each number of
/// micro-batches: a program that comes with ever other numbers must not gather plans for ever.
const PLANS_MAX: usize = 16;

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
///     let config = TrainConfig::new(0.1);
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
    updater: Updater,
    /// The configured rate, which the schedule begins with.
    learning_rate: f64,
    schedule: LearningRateSchedule,
    precision: Precision,
    scaler: Option<Scaler>,
    /// The stages cast to the precision of the passes, if that is not f32.
    cast: Option<RankModule>,
    n_steps: u64,
    /// Steps whose update was not skipped.
    n_updates: u64,
    training: Route,
    /// Plans for batches of fewer micro-batches.
    trainings: BTreeMap<u32, Route>,
    reducer: Reducer,
    evaluations: BTreeMap<u32, Route>,
    normaliser: Normaliser,
    data_on: DataOn,
    targets: TargetLinks,
    batch_fn: Option<BatchFn<I, T>>,
    accumulated: Option<Accumulated>,
    observer: Option<GradientObserver>,
    clipping: Option<GradientClipping>,
    /// What every rank must have in common, compared at each call.
    identity: String,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// The module, with the weights of the last step.
    #[must_use]
    pub fn module(&self) -> &PipelineModule<I, O, T> {
        &self.module
    }

    /// Number of steps that have been made: keyed random numbers of the next one depend on it.
    #[must_use]
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// Says how many steps have been made, for a run that goes on from saved weights; give every rank
    /// the same. Stands for a run without skipped steps; otherwise see
    /// [`set_training_state`](Self::set_training_state).
    pub fn set_n_steps(&mut self, n_steps: u64) {
        (self.n_steps, self.n_updates) = (n_steps, n_steps);
    }

    /// Learning rate of the next step, but for groups of parameters that have their own.
    #[must_use]
    pub fn learning_rate(&self) -> f64 {
        self.schedule.rate(self.learning_rate, self.n_updates)
    }

    /// Sets the learning rate from the next step on, in place of the schedule; give every rank the same.
    ///
    /// # Errors
    /// [`BuildError::LearningRate`] for one that is negative or not finite.
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<(), BuildError> {
        check_learning_rate(learning_rate)?;
        self.learning_rate = learning_rate;
        self.schedule = LearningRateSchedule::Constant;
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

    /// Applies `function` to every pair of input and target that training and evaluation take from their
    /// data, on the ranks that take it, or no longer.
    ///
    /// A function that changes the types stands as well at the data itself: `data.map(function)`.
    pub fn set_batch_fn(&mut self, function: Option<impl FnMut(I, T) -> (I, T) + Send + 'static>) {
        self.batch_fn = function.map(|function| -> BatchFn<I, T> { Box::new(function) });
    }

    /// Says who keeps the optimizer's states where the pipeline has replicas; give every rank the same.
    ///
    /// # Errors
    /// [`BuildError::ShardingLate`] after the first step; [`Cause::LinkDiffers`] as for
    /// [`PipelineEngine::new`].
    pub fn set_optimizer_sharding(&mut self, sharding: OptimizerSharding) -> Result<(), EngineError> {
        if self.n_steps > 0 {
            return Err(BuildError::ShardingLate { steps: self.n_steps }.into());
        }
        self.reducer = make_reducer(&self.module, sharding)?;
        self.identity.push_str(&format!(", optimizer {sharding:?}"));
        Ok(())
    }

    /// Bytes of the optimizer's states on this rank, in the form in which Burn saves them.
    ///
    /// # Errors
    /// [`Cause::Panicked`] when the optimizer does.
    ///
    /// # Units
    /// Bytes, a few hundred for the form itself.
    pub fn optimizer_state_bytes(&self) -> Result<usize, StepError> {
        let rank = &self.module.rank;
        let bytes = guard("the optimizer", || self.updater.to_bytes().map(|bytes| bytes.len()));
        let bytes = bytes.and_then(|bytes| {
            bytes.map_err(|e| Cause::Panicked { what: "saving the optimizer", message: e.to_string() })
        });
        bytes.map_err(|cause| rank.fail(rank.site("optimizer_state_bytes"), cause))
    }

    /// Compares all copies of every parameter: those of layers that share it, of ranks that hold one
    /// stage, and of replicas. Every rank must call it.
    ///
    /// They are equal bit for bit after every step; a layer that is built otherwise on each rank, or a
    /// program that changes the weights of one, is found here.
    ///
    /// # Errors
    /// [`Cause::CopiesDiffer`], on every rank.
    #[doc(alias = "assert_replicas_equal")]
    pub fn check_copies(&self) -> Result<(), StepError> {
        self.reducer.check(&self.module.stages, &self.module.groups)
    }

    /// Shows `observer` the gradients that this rank uses, summed over all copies and scaled, before
    /// they are clipped. A parameter that layers share has one, under the name of its owner.
    ///
    /// They are copied to the host for it.
    pub fn observe_gradients(&mut self, observer: impl FnMut(&[NamedTensor]) + Send + 'static) {
        self.observer = Some(Box::new(observer));
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
            // Not every backward pass has one: their mean over all backward passes.
            recompute_s: Spent { count: stage.backward.count, ..stage.recompute }.mean_s(),
            ..StageCosts::default()
        });
        let costs = Costs {
            stages: stages.collect(),
            optimizer_s: optimizer.as_secs_f64(),
            ..Costs::uniform(0, StageCosts::default())
        };
        replay(&self.module.training, &costs).map_err(Cause::Replay)
    }
}

impl<I, O, T> fmt::Debug for PipelineEngine<I, O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineEngine")
            .field("module", &self.module)
            .field("n_updates", &self.n_updates)
            .field("n_steps", &self.n_steps)
            .finish_non_exhaustive()
    }
}

fn make_reducer<I: Value, O: Value, T: Value>(
    module: &PipelineModule<I, O, T>,
    sharding: OptimizerSharding,
) -> Result<Reducer, StepError> {
    let rank = &module.rank;
    Reducer::new(rank, &module.stages, &module.groups, &module.grid, sharding)
        .map_err(|cause| rank.fail(rank.site("engine set-up"), cause))
}

fn check_learning_rate(value: f64) -> Result<(), BuildError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(BuildError::LearningRate { value }) }
}
