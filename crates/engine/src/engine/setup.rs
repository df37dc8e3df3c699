//! Making an engine: the optimizer, its groups of parameters, and the precision of the passes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use super::source::TargetLinks;
use super::{PipelineEngine, check_learning_rate, make_reducer};
use crate::config::TrainConfig;
use crate::config::precision::{LossScaleState, Scaler, cast_parameters};
use crate::error::{BuildError, ConfigError, EngineError, StateError};
use crate::gradients::NamedTensor;
use crate::layer::layer_name;
use crate::module::PipelineModule;
use crate::optimizer::{Base, Described, Groups, ParameterState, Updater, assign, describe, freeze};
use crate::reduce::{Group, NewValue, Place, replace_values};
use crate::stage::RankModule;
use crate::tensor::AnyTensor;
use crate::value::Value;

/// What an engine counts: with the weights and the optimizer's state, all that a run goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingState {
    /// Steps so far.
    pub n_steps: u64,
    /// Steps whose update was not skipped: where the learning-rate schedule stands.
    pub n_updates: u64,
    /// Where the loss scale stands, if there is one.
    pub loss_scale: Option<LossScaleState>,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Joins the pipeline with this rank's module and an optimizer for its parameters: any of Burn's, or an
    /// [`OptimizerConfig`](crate::OptimizerConfig).
    ///
    /// # Errors
    /// [`BuildError::LearningRate`] for one that is negative or not finite; [`ConfigError`] for what else is
    /// wrong in the configuration, and for an optimizer in it beside the given one;
    /// [`Cause::LinkDiffers`](crate::Cause::LinkDiffers) when the ranks have built different plans.
    pub fn new(
        module: PipelineModule<I, O, T>,
        optimizer: impl Into<ModuleOptimizer>,
        config: TrainConfig,
    ) -> Result<Self, EngineError> {
        if config.optimizer.is_some() {
            let reason = "the program gives an optimizer itself: take one of the two away".to_owned();
            return Err(ConfigError::Unsupported { path: "optimizer".to_owned(), reason }.into());
        }
        Self::start(module, Base::Value(optimizer.into()), &config)
    }

    /// Joins the pipeline with this rank's module and the optimizer of the configuration.
    ///
    /// # Errors
    /// As for [`new`](Self::new); [`ConfigError::Value`] when the configuration has no optimizer.
    ///
    /// # Examples
    /// ```
    /// use brigade_engine::nn::Linear;
    /// use brigade_engine::{
    ///     AdamWSettings, EngineError, Layers, OptimizerConfig, ParameterGroup, PipelineEngine, PipelineModule,
    ///     TrainConfig, World,
    /// };
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// # #[derive(burn::module::Module, Debug)]
    /// # struct Dense {
    /// #     linear: Linear,
    /// # }
    /// # impl brigade_engine::Layer for Dense {
    /// #     type Input = Tensor<2>;
    /// #     type Output = Tensor<2>;
    /// #     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
    /// #         self.linear.forward(x)
    /// #     }
    /// # }
    /// World::local(2)?.run(|rank| {
    ///     let layers = Layers::new()
    ///         .repeat(4, |_, d| Dense { linear: Linear::new(&LinearConfig::new(3, 3), d) });
    ///     let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
    ///     let module = PipelineModule::builder(&layers, mean_square).build(&rank)?;
    ///     let mut config = TrainConfig::new(0.01);
    ///     let adamw = AdamWSettings { weight_decay: 0.1, ..AdamWSettings::default() };
    ///     config.optimizer = Some(OptimizerConfig::AdamW(adamw));
    ///     config.parameter_groups = vec![ParameterGroup::no_decay()];
    ///     let mut engine = PipelineEngine::from_config(module, config)?;
    ///     let x = Tensor::<2>::ones([5, 3], &Device::flex());
    ///     let report = engine.train_batch(&mut [(x.clone(), x)].into_iter())?.expect("one batch");
    ///     assert_eq!((report.step, report.skipped, report.learning_rate), (1, false, 0.01));
    ///     Ok::<_, EngineError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_config(module: PipelineModule<I, O, T>, config: TrainConfig) -> Result<Self, EngineError> {
        let Some(optimizer) = config.optimizer.clone() else {
            let (path, found) = ("optimizer".to_owned(), "absent".to_owned());
            return Err(ConfigError::Value { path, found, expected: "an optimizer".to_owned() }.into());
        };
        Self::start(module, Base::Config(optimizer), &config)
    }

    fn start(
        mut module: PipelineModule<I, O, T>,
        base: Base,
        config: &TrainConfig,
    ) -> Result<Self, EngineError> {
        check_learning_rate(config.learning_rate)?;
        config.check()?;
        let training = module.route(Arc::clone(&module.training))?;
        let (normaliser, data_on) = (config.normaliser, config.data_on);
        let targets = TargetLinks::new(&module, data_on)
            .map_err(|cause| module.rank.fail(module.rank.site("engine set-up"), cause))?;
        let identity = format!(
            "engine {}, {}, {}, mean over {normaliser:?}",
            training.serial,
            digest(config),
            module.identity()
        );
        // The same on every rank, and so are the errors.
        Groups::new(&config.parameter_groups)?.check_all(&all_parameters(&module))?;
        let parameters = own_parameters(&module);
        let assigned = assign(base, &config.parameter_groups, config.learning_rate, &parameters)?;
        module.stages =
            freeze(mem::replace(&mut module.stages, RankModule { stages: Vec::new() }), &assigned.frozen);
        // After freezing: a frozen parameter takes no part in the end of a batch.
        let reducer = make_reducer(&module, config.optimizer_sharding)?;
        let mut engine = Self {
            module,
            updater: Updater::new(assigned),
            learning_rate: config.learning_rate,
            schedule: config.schedule.clone(),
            precision: config.precision,
            scaler: Scaler::new(config.precision, config.loss_scale),
            cast: None,
            n_steps: 0,
            n_updates: 0,
            training,
            trainings: BTreeMap::new(),
            reducer,
            evaluations: BTreeMap::new(),
            normaliser,
            data_on,
            targets,
            batch_fn: None,
            accumulated: None,
            observer: None,
            clipping: config.gradient_clipping,
            identity,
        };
        engine.recast();
        Ok(engine)
    }

    /// Gives the passes the weights of the last update, in their precision.
    pub(super) fn recast(&mut self) {
        self.cast = self.precision.cast().map(|dtype| cast_parameters(&self.module.stages, dtype));
    }

    /// The stages as the passes run them.
    pub(super) fn compute_stages(&self) -> &RankModule {
        self.cast.as_ref().unwrap_or(&self.module.stages)
    }

    /// Sets parameters by their global names; those of other ranks are passed over, so every rank may be
    /// given all. Layers that share a parameter must be given the same values.
    ///
    /// # Errors
    /// [`StateError::Shape`] for values of another shape or element type; then nothing is set.
    pub fn set_parameters(&mut self, values: &BTreeMap<String, TensorData>) -> Result<(), StateError> {
        let mut new = BTreeMap::new();
        for (id, NamedTensor { name, data: old }) in
            ids(&self.module.stages).into_iter().zip(self.module.parameters())
        {
            let Some(value) = values.get(&name) else { continue };
            let describe = |data: &TensorData| format!("{:?} {:?}", data.dtype(), data.shape().as_slice());
            if value.shape() != old.shape() || value.dtype() != old.dtype() {
                let (expected, found) = (describe(&old), describe(value));
                return Err(StateError::Shape { name, expected, found });
            }
            let tensor = AnyTensor::from_data(value.clone(), &self.module.device())
                .map_err(|error| StateError::Record { problem: error.to_string() })?;
            new.insert(id.val(), NewValue { value: tensor, is_trained: None });
        }
        let stages = self.module.stages.clone();
        self.module.stages =
            replace_values(stages, new).map_err(|error| StateError::Record { problem: error.to_string() })?;
        self.recast();
        Ok(())
    }

    /// What the optimizer remembers of each parameter that this rank updates, by its global name.
    ///
    /// # Errors
    /// [`StateError`] when Burn's record of it cannot be read.
    pub fn optimizer_state(&self) -> Result<BTreeMap<String, ParameterState>, StateError> {
        self.updater.state(&describe(&self.module.stages))
    }

    /// Goes on from what an optimizer of the same kind remembered, on any number of ranks: the parameters of
    /// other ranks are passed over, and those without a state begin anew.
    ///
    /// # Errors
    /// [`StateError`] when Burn cannot take it.
    pub fn set_optimizer_state(
        &mut self,
        states: BTreeMap<String, ParameterState>,
    ) -> Result<(), StateError> {
        self.updater.set_state(states, &describe(&self.module.stages))
    }

    /// Where the training stands; equal on every rank.
    #[must_use]
    pub fn training_state(&self) -> TrainingState {
        TrainingState {
            n_steps: self.n_steps,
            n_updates: self.n_updates,
            loss_scale: self.scaler.as_ref().map(|scaler| scaler.state),
        }
    }

    /// Goes on from where another run stood; give every rank the same. Weights and the optimizer's state are
    /// not part of it.
    ///
    /// # Errors
    /// [`BuildError::LossScaleState`] when only one of the two runs has a loss scale.
    pub fn set_training_state(&mut self, state: TrainingState) -> Result<(), BuildError> {
        match (&mut self.scaler, state.loss_scale) {
            (Some(scaler), Some(saved)) => scaler.state = saved,
            (None, None) => {}
            (here, saved) => {
                return Err(BuildError::LossScaleState { here: here.is_some(), there: saved.is_some() });
            }
        }
        (self.n_steps, self.n_updates) = (state.n_steps, state.n_updates);
        Ok(())
    }
}

/// The ids of a rank's parameters, in the order of its layers and fields.
fn ids(stages: &RankModule) -> Vec<ParamId> {
    describe(stages).into_iter().map(|(_, id)| id).collect()
}

/// Short enough for a message, and different for different configurations.
fn digest(config: &TrainConfig) -> String {
    let mut hasher = DefaultHasher::new();
    format!("{config:?}").hash(&mut hasher);
    format!("configuration {:016x}", hasher.finish())
}

/// The parameters of the whole model, each once, by the names of the layers that own them.
fn all_parameters<I: Value, O: Value, T: Value>(module: &PipelineModule<I, O, T>) -> Vec<Described> {
    module.groups.iter().map(described).collect()
}

fn described(group: &Group) -> Described {
    let name = format!("{}.{}", layer_name(group.place().layer), group.info.path);
    Described { name, dimensions: group.info.shape.len() }
}

/// The parameters of this rank; a copy of a shared one under the name of its owner, whose group it is in.
fn own_parameters<I: Value, O: Value, T: Value>(
    module: &PipelineModule<I, O, T>,
) -> Vec<(Described, ParamId)> {
    let groups = module.groups.iter();
    let uses = groups.flat_map(|group| group.uses.iter().map(move |each| (each.place, group)));
    let groups: BTreeMap<Place, &Group> = uses.collect();
    let placed = module.stages.stages.iter().flat_map(|stage| &stage.layers);
    let parameters = placed.flat_map(|placed| {
        let numbered = describe(&placed.layer).into_iter().enumerate();
        numbered.map(|(parameter, (own, id))| (Place { layer: placed.label.index, parameter }, own, id))
    });
    let by_owner =
        parameters.map(|(place, own, id)| (groups.get(&place).map_or(own, |group| described(group)), id));
    by_owner.collect()
}
