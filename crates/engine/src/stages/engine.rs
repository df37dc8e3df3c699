//! From stages over named values to a pipeline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use brigade_partition::PartitionMethod;
use brigade_topology::{ProcessTopology, Stage};
use brigade_wire::{Dataflow, liveness};
use burn::optim::ModuleOptimizer;

use super::StageWrapper;
use super::wiring::{Form, Wiring};
use crate::config::TrainConfig;
use crate::engine::PipelineEngine;
use crate::error::{BuildError, EngineError, StagesError};
use crate::layers::{LayerSpec, Layers};
use crate::loss::Loss;
use crate::module::{PipelineModule, PipelineModuleBuilder};
use crate::tie::Tie;
use crate::value::Value;
use crate::world::RankHandle;

/// What is known of a model besides its stages.
///
/// # Source
/// Slapo, `ScheduleMetadata`: the arguments of the traced model and its tied weights; which values live
/// at each boundary is worked out from the stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleMetadata {
    /// Names of the model's arguments, in order.
    pub inputs: Vec<String>,
    /// Names of the model's results, in order, whichever stage gives them; the outputs of the last stage
    /// when there is none.
    pub results: Vec<String>,
    /// Sets of parameters that are one: each by its path in the module of its stage, and that stage.
    #[doc(alias = "tie_weights")]
    pub ties: Vec<Vec<(String, Stage)>>,
}

impl ScheduleMetadata {
    /// A model with these arguments, whose results are the outputs of its last stage.
    pub fn new<N: Into<String>>(inputs: impl IntoIterator<Item = N>) -> Self {
        Self { inputs: inputs.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Ties parameters: each by its path in the module of its stage, and that stage.
    #[must_use]
    pub fn tie<N: Into<String>>(mut self, parameters: impl IntoIterator<Item = (N, u32)>) -> Self {
        let parameters = parameters.into_iter().map(|(path, stage)| (path.into(), Stage(stage)));
        self.ties.push(parameters.collect());
        self
    }
}

/// Starts a pipeline from its stages.
///
/// The model takes an `I` and gives an `O`: [`NamedValues`](crate::NamedValues), or the values by
/// position, one by itself and others as a tuple. Each stage is a layer of the list, named after it, so
/// that a pipeline with as many stages gets one each, and one with fewer gets several each. Everything
/// else, such as the topology and the schedule, is set on the builder.
///
/// # Errors
/// [`BuildError::Stages`]: a value that nothing gives or that two stages give, or a tie of a stage that
/// does not exist.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `deepspeed_pipe_engine`.
///
/// # Examples
/// ```
/// use brigade_engine::{EngineError, ScheduleMetadata, StageWrapper, World, pipeline_module};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Tensor;
///
/// let stages = [
///     StageWrapper::lazy("first", |d| LinearConfig::new(4, 4).init(d))
///         .inputs(["x"])
///         .outputs(["h"])
///         .positional(|linear: &Linear, x: Tensor<2>| linear.forward(x)),
///     // The first stage hands `x` on; so would any stage between the two.
///     StageWrapper::lazy("second", |d| LinearConfig::new(4, 2).init(d))
///         .inputs(["h", "x"])
///         .outputs(["y"])
///         .positional(|linear: &Linear, (h, x): (Tensor<2>, Tensor<2>)| linear.forward(h + x)),
/// ];
/// let n_layers = World::local(2)?.run(move |rank| {
///     let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
///     let metadata = ScheduleMetadata::new(["x"]);
///     let module = pipeline_module::<Tensor<2>, _, _, _>(&stages, &metadata, loss)?.build(&rank)?;
///     Ok::<_, EngineError>(module.cuts().boundaries().to_vec())
/// })?;
/// assert_eq!(n_layers[0], [0, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "deepspeed_pipe_engine")]
pub fn pipeline_module<I: Value, O: Value, T: Value, L: Into<Loss>>(
    stages: &[StageWrapper],
    metadata: &ScheduleMetadata,
    loss: impl Fn(O, T) -> L + Send + Sync + 'static,
) -> Result<PipelineModuleBuilder<I, O, T>, BuildError> {
    let Some(last) = stages.last() else {
        return Err(BuildError::NoLayers);
    };
    let results = if metadata.results.is_empty() { &last.signature().outputs } else { &metadata.results };
    let dataflow = Dataflow {
        inputs: metadata.inputs.clone(),
        broadcast: Vec::new(),
        stages: stages.iter().map(|stage| stage.signature().clone()).collect(),
        results: results.clone(),
    };
    let live = liveness(&dataflow).map_err(StagesError::Liveness)?;
    let ties = ties(stages.len(), &metadata.ties)?;
    let forms = (Form::of::<I>(), Form::of::<O>());
    let layer = |(index, stage): (usize, &StageWrapper)| {
        let wiring = Wiring::new(index, stage.signature(), &live, &metadata.inputs, forms);
        let ties = ties.get(&index).into_iter().flatten().cloned();
        ties.fold(stage.layer(wiring), LayerSpec::with_tie)
    };
    // Their types are trees, which fit any neighbour.
    let layers = Layers::from_specs(stages.iter().enumerate().map(layer).collect());
    Ok(PipelineModule::builder(&layers, loss).partition(PartitionMethod::Uniform))
}

/// What [`pipeline_engine`] is told besides the model.
pub struct PipelineEngineOptions {
    /// The grid of ranks.
    pub topology: ProcessTopology,
    /// Number of micro-batches of one training batch.
    #[doc(alias = "gradient_accumulation_steps")]
    pub n_micro_batches: u32,
    /// Updates the parameters.
    pub optimizer: ModuleOptimizer,
    /// How to train.
    pub config: TrainConfig,
}

impl fmt::Debug for PipelineEngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineEngineOptions")
            .field("topology", &self.topology)
            .field("n_micro_batches", &self.n_micro_batches)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Builds an engine from the stages of a model, under 1F1B.
///
/// [`pipeline_module`] and [`PipelineEngine::new`] do the same with every choice in between.
///
/// # Errors
/// Those of both.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `deepspeed_pipe_engine`.
///
/// # Examples
/// ```
/// use brigade_engine::stages::PipelineEngineOptions;
/// use brigade_engine::topology::ProcessTopology;
/// use brigade_engine::{EngineError, ScheduleMetadata, StageWrapper, TrainConfig, World, pipeline_engine};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let stage = |name: &str, from: &str, to: &str| {
///     StageWrapper::lazy(name, |d| LinearConfig::new(2, 2).init(d))
///         .inputs([from])
///         .outputs([to])
///         .positional(|linear: &Linear, x: Tensor<2>| linear.forward(x))
/// };
/// let stages = [stage("first", "x", "h"), stage("second", "h", "y")];
/// // Both weights are one parameter.
/// let metadata = ScheduleMetadata::new(["x"]).tie([("weight", 0), ("weight", 1)]);
/// let losses = World::local(2)?.run(move |rank| {
///     let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
///     let options = PipelineEngineOptions {
///         topology: ProcessTopology::pipe_data(2, 1).expect("a small grid"),
///         n_micro_batches: 2,
///         optimizer: SgdConfig::new().init(),
///         config: TrainConfig::new(0.1),
///     };
///     let mut engine = pipeline_engine(&rank, &stages, &metadata, loss, options)?;
///     let mut data = (0..4).map(|i| {
///         let x = Tensor::<2>::full([3, 2], i, &Device::flex());
///         (x.clone(), x)
///     });
///     let mut losses = Vec::new();
///     while let Some(report) = engine.train_batch(&mut data)? {
///         losses.push(report.loss);
///     }
///     Ok::<_, EngineError>(losses)
/// })?;
/// assert_eq!(losses[0].len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "deepspeed_pipe_engine")]
pub fn pipeline_engine<I: Value, O: Value, T: Value, L: Into<Loss>>(
    rank: &RankHandle,
    stages: &[StageWrapper],
    metadata: &ScheduleMetadata,
    loss: impl Fn(O, T) -> L + Send + Sync + 'static,
    options: PipelineEngineOptions,
) -> Result<PipelineEngine<I, O, T>, EngineError> {
    let PipelineEngineOptions { topology, n_micro_batches, optimizer, config } = options;
    let builder = pipeline_module(stages, metadata, loss)?;
    let module = builder.topology(topology).micro_batches(n_micro_batches).build(rank)?;
    PipelineEngine::new(module, optimizer, config)
}

/// The ties of each stage; a set is called after the first of its parameters in order of the stages.
fn ties(n_stages: usize, sets: &[Vec<(String, Stage)>]) -> Result<BTreeMap<usize, Vec<Tie>>, StagesError> {
    let mut ties: BTreeMap<usize, Vec<Tie>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for (number, set) in sets.iter().enumerate() {
        let mut sorted: Vec<&(String, Stage)> = set.iter().collect();
        sorted.sort_by_key(|(path, stage)| (*stage, path));
        let Some((first, owner)) = sorted.first() else {
            return Err(StagesError::EmptyTie { number });
        };
        let key = format!("stage {owner}: {first}");
        if let Some([one, other]) = sorted.array_windows().find(|[one, other]| one.1 == other.1) {
            let (first, second, stage) = (one.0.clone(), other.0.clone(), one.1);
            return Err(StagesError::SameStage { first, second, stage });
        }
        for (path, stage) in &sorted {
            if !known.insert((*stage, path)) {
                return Err(StagesError::TwoSets { path: path.clone(), stage: *stage });
            }
            if stage.index() >= n_stages {
                return Err(StagesError::NoSuchStage { path: path.clone(), stage: *stage, n_stages });
            }
            ties.entry(stage.index()).or_default().push(Tie::new(key.clone(), [path.as_str()]));
        }
    }
    Ok(ties)
}
