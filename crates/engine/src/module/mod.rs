//! The pipeline module: layers cut into stages, a schedule proved sound, and this rank's own layers.

mod builder;
mod init;
mod profile;
mod seeds;
mod summary;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use brigade_partition::{Cuts, Options, PartitionError, PartitionMethod, Report};
use brigade_schedule::{CheckedPlan, Plan, ScheduleError, Shape, forward_only_on, one_f_one_b};
use brigade_topology::{PipeRank, Placement, Rank, Stage};
use brigade_wire::Tree;
use burn::tensor::Device;

use self::builder::prove;
use self::seeds::Seeds;
use crate::error::{BuildError, Cause, StepError};
use crate::gradients::{NamedTensor, named_parameters};
use crate::layer::LayerNames;
use crate::layers::Layers;
use crate::loss::Loss;
use crate::random::Numbering;
use crate::recompute::Recompute;
use crate::reduce::{Grid, Groups};
use crate::route::Route;
use crate::skip::{SkipLayout, SkipRoute};
use crate::stage::RankModule;
use crate::tensor::AnyTensor;
use crate::value::Value;
use crate::world::RankHandle;

pub use self::builder::PipelineModuleBuilder;
pub use self::profile::ProfileOptions;
pub use self::seeds::BASE_SEED_DEFAULT;
pub use self::summary::{LayerSummary, ModuleSummary, ParameterCount, StageSummary};

/// The loss of one micro-batch from the last layer's output and the target.
pub(crate) type LossFn = Arc<dyn Fn(Tree<AnyTensor>, Tree<AnyTensor>) -> Result<Loss, Cause> + Send + Sync>;

type ScheduleFn = Arc<dyn Fn(Shape) -> Result<Plan, ScheduleError> + Send + Sync>;

/// One rank's part of a model: its stages, built, and what all ranks know of the split.
///
/// # Examples
/// See [`PipelineEngine`](crate::PipelineEngine).
pub struct PipelineModule<I, O, T> {
    pub(crate) rank: RankHandle,
    pub(crate) stages: RankModule,
    pub(crate) loss: LossFn,
    pub(crate) placement: Placement,
    /// Which of the replicas of the pipeline this rank belongs to.
    pub(crate) replica: usize,
    pub(crate) pipe_rank: PipeRank,
    /// World ranks of this pipeline, by pipeline rank.
    pub(crate) ranks: Vec<Rank>,
    /// World ranks of all pipelines.
    pub(crate) grid: Grid,
    /// Every parameter of the model, with the places that hold it.
    pub(crate) groups: Groups,
    pub(crate) training: Arc<CheckedPlan>,
    pub(crate) recompute: Recompute,
    exclusive: LayerNames,
    schedule: ScheduleFn,
    skips: Arc<SkipLayout>,
    cuts: Cuts,
    summary: ModuleSummary,
    /// Seed of the layers, and of keyed random numbers.
    base_seed: u64,
    device: Device,
    types: PhantomData<fn(I, T) -> O>,
}

impl<I: Value, O: Value, T: Value> PipelineModule<I, O, T> {
    /// Starts from a list of layers and a loss: the mean of one micro-batch, as a tensor of one element.
    ///
    /// It may return more: see [`Loss`].
    pub fn builder<L: Into<Loss>>(
        layers: &Layers<I, O>,
        loss: impl Fn(O, T) -> L + Send + Sync + 'static,
    ) -> PipelineModuleBuilder<I, O, T> {
        let loss: LossFn = Arc::new(move |output, target| {
            let output = O::from_tree(output.map(AnyTensor::widened))
                .map_err(|source| Cause::LossValue { what: "output", source })?;
            let target =
                T::from_tree(target).map_err(|source| Cause::LossValue { what: "target", source })?;
            Ok(loss(output, target).into())
        });
        PipelineModuleBuilder {
            specs: layers.specs().to_vec(),
            loss,
            topology: None,
            method: PartitionMethod::Parameters,
            schedule: Arc::new(one_f_one_b),
            n_micro_batches: 1,
            partition_options: Options::default(),
            seeds: Seeds::default(),
            recompute: Recompute::default(),
            exclusive: LayerNames::default(),
            device: Device::flex(),
            skip_route: SkipRoute::default(),
            skip_routes: BTreeMap::new(),
            profiles: None,
            types: PhantomData,
        }
    }

    /// The cuts between stages.
    #[must_use]
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Layers and parameters of each stage, each copy of a shared parameter included.
    ///
    /// # Errors
    /// [`PartitionError`] when the parameters are too many to add up.
    pub fn split(&self) -> Result<Report, PartitionError> {
        let weights: Vec<u64> =
            self.summary.layers.iter().map(|layer| layer.parameters.n_parameters()).collect();
        Report::new(&self.cuts, &weights)
    }

    /// Where the stages live.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The training plan, proved sound.
    #[must_use]
    pub fn plan(&self) -> &CheckedPlan {
        &self.training
    }

    /// Number of micro-batches of a training batch.
    #[must_use]
    pub fn n_micro_batches(&self) -> u32 {
        self.training.n_micro_batches()
    }

    /// The stages of this rank.
    pub fn stages(&self) -> impl Iterator<Item = Stage> + '_ {
        self.stages.stages.iter().map(|module| module.stage)
    }

    /// Number of parameters of the whole model; one that several layers share counts once.
    #[must_use]
    pub fn n_parameters(&self) -> u64 {
        self.summary.unique.n_parameters()
    }

    /// Parameters of every layer and stage, trained and frozen, with and without copies; the same on
    /// every rank.
    ///
    /// The layers of other ranks are not made for it. The bytes of a parameter that its builder leaves to
    /// be made later, as all of Burn's layers do, are those of the device's own float type.
    #[must_use]
    pub fn summary(&self) -> &ModuleSummary {
        &self.summary
    }

    /// Number of replicas of the pipeline, each with its own data.
    #[must_use]
    #[doc(alias = "get_data_parallel_world_size")]
    pub fn n_replicas(&self) -> usize {
        self.grid.len()
    }

    /// Which of the replicas this rank belongs to, from 0.
    #[must_use]
    #[doc(alias = "get_data_parallel_rank")]
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// This rank's float parameters, named as at any other number of stages.
    #[must_use]
    pub fn parameters(&self) -> Vec<NamedTensor> {
        named_parameters(&self.stages)
    }

    /// The device of this rank, without autodiff.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// What keyed random numbers of one run of `n_micro_batches` in each replica depend on.
    pub(crate) fn numbering(&self, step: u64, n_micro_batches: u32, is_training: bool) -> Numbering {
        let n_layers = u64::try_from(self.summary.layers.len()).unwrap_or(u64::MAX);
        let replica = u64::try_from(self.replica).unwrap_or(u64::MAX);
        let first_micro_batch = replica.saturating_mul(n_micro_batches.into());
        Numbering { seed: self.base_seed, step, first_micro_batch, n_layers, is_training }
    }

    /// A forward-only plan over the same stages.
    pub(crate) fn evaluation_plan(&self, n_micro_batches: u32) -> Result<CheckedPlan, BuildError> {
        prove(&forward_only_on(self.placement, n_micro_batches)?)
    }

    /// The plan of a training batch of another number of micro-batches, over the same stages.
    pub(crate) fn training_plan(&self, n_micro_batches: u32) -> Result<CheckedPlan, BuildError> {
        let plan = (self.schedule)(Shape { n_ranks: self.placement.n_ranks(), n_micro_batches })?;
        if plan.placement() != self.placement {
            let found = "places the stages otherwise than for a full batch";
            return Err(BuildError::PlanKind { wanted: "training", found });
        }
        let checked = prove(&plan)?;
        if checked.n_micro_batches() != n_micro_batches {
            let found = "is for another number of micro-batches";
            return Err(BuildError::PlanKind { wanted: "training", found });
        }
        Ok(checked)
    }

    /// The ranks of this pipeline that hold a stage.
    pub(crate) fn holders(&self, stage: Stage) -> Vec<Rank> {
        let holders = self.placement.holders_of(stage).into_iter().flatten();
        holders.filter_map(|holder| self.ranks.get(holder.index()).copied()).collect()
    }

    /// This rank's ends of the links of a plan.
    pub(crate) fn route(&self, plan: Arc<CheckedPlan>) -> Result<Route, StepError> {
        Route::new(&self.rank, plan, self.pipe_rank, self.ranks.clone(), Arc::clone(&self.skips))
            .map_err(|cause| self.rank.fail(self.rank.site("engine set-up"), cause))
    }

    /// The split and the plan, short enough for a message.
    pub(crate) fn identity(&self) -> String {
        let mut plan = DefaultHasher::new();
        for rank in (0..self.placement.n_ranks()).map(PipeRank) {
            self.training.instructions(rank).hash(&mut plan);
        }
        self.skips.hash(&mut plan);
        let exclusive = match self.exclusive.is_empty() {
            true => String::new(),
            false => format!(", exclusive {:?}", self.exclusive),
        };
        format!(
            "{} layers cut at {:?}, plan {:016x}, {} replica(s), seed {}{exclusive}",
            self.summary.layers.len(),
            self.cuts.boundaries(),
            plan.finish(),
            self.n_replicas(),
            self.base_seed
        )
    }

    pub(crate) fn holds_first(&self) -> bool {
        self.stages().any(|stage| stage.0 == 0)
    }

    pub(crate) fn holds_last(&self) -> bool {
        self.stages().any(|stage| stage.0.saturating_add(1) == self.placement.n_stages())
    }
}

impl<I, O, T> fmt::Debug for PipelineModule<I, O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineModule")
            .field("pipe_rank", &self.pipe_rank)
            .field("cuts", &self.cuts)
            .finish_non_exhaustive()
    }
}
