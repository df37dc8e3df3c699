//! The pipeline module: layers cut into stages, a schedule proved sound, and this rank's own layers.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use brigade_partition::{Cuts, LayerInfo, Options, PartitionError, PartitionMethod, Report, partition};
use brigade_schedule::{
    Capacity, CheckedPlan, Plan, ScheduleError, Shape, check, forward_only_on, least_capacity, lower,
    one_f_one_b,
};
use brigade_topology::{PipeRank, Placement, ProcessTopology, Rank, Stage};
use brigade_wire::Tree;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use crate::error::{BuildError, Cause, StepError, panic_message};
use crate::gradients::{NamedTensor, initialize, named_parameters};
use crate::interpreter::Route;
use crate::layer::AnyLayer;
use crate::layers::{LayerSpec, Layers};
use crate::stage::{PlacedLayer, RankModule, StageModule};
use crate::tensor::AnyTensor;
use crate::value::Value;
use crate::world::RankHandle;

/// The loss of one micro-batch from the last layer's output and the target.
pub(crate) type LossFn =
    Arc<dyn Fn(Tree<AnyTensor>, Tree<AnyTensor>) -> Result<Tensor<1>, Cause> + Send + Sync>;

type ScheduleFn = Arc<dyn Fn(Shape) -> Result<Plan, ScheduleError> + Send + Sync>;

/// The seed that DeepSpeed starts from as well.
pub const BASE_SEED_DEFAULT: u64 = 1234;

/// Burn's random numbers come from one state for the whole process: one rank at a time may seed it,
/// build a layer and make its parameters.
static INITIALIZATION: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// The turn of one rank to build a layer; ends when it is dropped.
struct Turn;

impl Turn {
    fn take(waited: Duration, layer: usize) -> Result<Self, BuildError> {
        let (busy, ended) = &INITIALIZATION;
        let busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut busy, timeout) =
            ended.wait_timeout_while(busy, waited, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && *busy {
            return Err(BuildError::Busy { layer, waited });
        }
        *busy = true;
        Ok(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *INITIALIZATION.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        INITIALIZATION.1.notify_one();
    }
}

/// One rank's part of a model: its stages, built, and what all ranks know of the split.
///
/// # Examples
/// See [`PipelineEngine`](crate::PipelineEngine).
pub struct PipelineModule<I, O, T> {
    pub(crate) rank: RankHandle,
    pub(crate) stages: RankModule,
    pub(crate) loss: LossFn,
    pub(crate) placement: Placement,
    pub(crate) pipe_rank: PipeRank,
    /// World ranks of this pipeline, by pipeline rank.
    pub(crate) ranks: Vec<Rank>,
    pub(crate) training: Arc<CheckedPlan>,
    cuts: Cuts,
    infos: Vec<LayerInfo>,
    device: Device,
    types: PhantomData<fn(I, T) -> O>,
}

/// Collects what a [`PipelineModule`] is made from.
pub struct PipelineModuleBuilder<I, O, T> {
    specs: Vec<LayerSpec>,
    loss: LossFn,
    topology: Option<ProcessTopology>,
    method: PartitionMethod,
    schedule: ScheduleFn,
    n_micro_batches: u32,
    base_seed: u64,
    device: Device,
    types: PhantomData<fn(I, T) -> O>,
}

impl<I: Value, O: Value, T: Value> PipelineModule<I, O, T> {
    /// Starts from a list of layers and a loss: the mean of one micro-batch, as a tensor of one element.
    pub fn builder(
        layers: &Layers<I, O>,
        loss: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static,
    ) -> PipelineModuleBuilder<I, O, T> {
        let loss: LossFn = Arc::new(move |output, target| {
            let output =
                O::from_tree(output).map_err(|source| Cause::LossValue { what: "output", source })?;
            let target =
                T::from_tree(target).map_err(|source| Cause::LossValue { what: "target", source })?;
            Ok(loss(output, target))
        });
        PipelineModuleBuilder {
            specs: layers.specs().to_vec(),
            loss,
            topology: None,
            method: PartitionMethod::Parameters,
            schedule: Arc::new(one_f_one_b),
            n_micro_batches: 1,
            base_seed: BASE_SEED_DEFAULT,
            device: Device::flex(),
            types: PhantomData,
        }
    }

    /// The cuts between stages.
    #[must_use]
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Layers and parameters of each stage.
    ///
    /// # Errors
    /// [`PartitionError`] when the parameters are too many to add up.
    pub fn split(&self) -> Result<Report, PartitionError> {
        let weights: Vec<u64> = self.infos.iter().map(|info| info.parameters).collect();
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

    /// Number of parameters of the whole model.
    #[must_use]
    pub fn n_parameters(&self) -> u64 {
        self.infos.iter().map(|info| info.parameters).sum()
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

    /// A forward-only plan over the same stages.
    pub(crate) fn evaluation_plan(&self, n_micro_batches: u32) -> Result<CheckedPlan, BuildError> {
        prove(&forward_only_on(self.placement, n_micro_batches)?)
    }

    /// This rank's ends of the links of a plan.
    pub(crate) fn route(&self, plan: Arc<CheckedPlan>) -> Result<Route, StepError> {
        Route::new(&self.rank, plan, self.pipe_rank, self.ranks.clone())
            .map_err(|cause| self.rank.fail(self.rank.site("engine set-up"), cause))
    }

    /// The split and the plan, short enough for a message.
    pub(crate) fn identity(&self) -> String {
        let mut plan = DefaultHasher::new();
        for rank in (0..self.placement.n_ranks()).map(PipeRank) {
            self.training.instructions(rank).hash(&mut plan);
        }
        format!(
            "{} layers cut at {:?}, plan {:016x}",
            self.infos.len(),
            self.cuts.boundaries(),
            plan.finish()
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

impl<I: Value, O: Value, T: Value> PipelineModuleBuilder<I, O, T> {
    /// Sets the grid of ranks; one pipeline over the whole world if unset.
    #[must_use]
    pub fn topology(mut self, topology: ProcessTopology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// Sets how the layers are cut into stages; by parameters if unset.
    #[must_use]
    #[doc(alias = "partition_method")]
    pub fn partition(mut self, method: PartitionMethod) -> Self {
        self.method = method;
        self
    }

    /// Sets the schedule of training steps, any function that makes a plan; 1F1B if unset.
    ///
    /// The plan also says where the stages live and how many there are.
    #[must_use]
    pub fn schedule(
        mut self,
        schedule: impl Fn(Shape) -> Result<Plan, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        self.schedule = Arc::new(schedule);
        self
    }

    /// Sets the number of micro-batches of one training batch; 1 if unset.
    #[must_use]
    #[doc(alias = "gradient_accumulation_steps")]
    pub fn micro_batches(mut self, n_micro_batches: u32) -> Self {
        self.n_micro_batches = n_micro_batches;
        self
    }

    /// Sets the seed of layer 0; layer i is initialised from this seed plus i, wherever it lives.
    #[must_use]
    pub fn base_seed(mut self, seed: u64) -> Self {
        self.base_seed = seed;
        self
    }

    /// Sets this rank's device; the embedded CPU backend if unset.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = device.inner();
        self
    }

    /// Cuts the layers, proves the plan and builds the layers of this rank, and no others.
    ///
    /// # Errors
    /// [`BuildError`]: the layers, the topology, the schedule or the plan do not fit together.
    pub fn build(self, rank: &RankHandle) -> Result<PipelineModule<I, O, T>, BuildError> {
        if self.specs.is_empty() {
            return Err(BuildError::NoLayers);
        }
        let (pipe_rank, ranks) = self.locate(rank)?;
        let n_ranks = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let plan = (self.schedule)(Shape { n_ranks, n_micro_batches: self.n_micro_batches })?;
        let placement = plan.placement();
        if placement.n_ranks() != n_ranks {
            let plan = usize::try_from(placement.n_ranks()).unwrap_or(usize::MAX);
            return Err(BuildError::PlanRanks { plan, topology: ranks.len() });
        }
        let checked = prove(&plan)?;
        if checked.is_forward_only() {
            return Err(BuildError::PlanKind { wanted: "training", found: "has no backward pass" });
        }
        let infos = self.count(rank.deadline())?;
        let n_stages = usize::try_from(placement.n_stages()).unwrap_or(usize::MAX);
        let cuts = partition(&self.method, &infos, n_stages, &Options::default())?;
        let device = self.device.clone().autodiff();
        let stages = placement
            .stages_of(pipe_rank)
            .into_iter()
            .flatten()
            .map(|stage| {
                let layers = self.build_layers(cuts.stage(stage.index()), &device, rank.deadline())?;
                Ok(StageModule { stage, layers })
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        Ok(PipelineModule {
            rank: rank.clone(),
            stages: RankModule { stages },
            loss: self.loss,
            placement,
            pipe_rank,
            ranks,
            training: Arc::new(checked),
            cuts,
            infos,
            device: self.device,
            types: PhantomData,
        })
    }

    /// This rank's place in its pipeline, and the world ranks of that pipeline.
    fn locate(&self, rank: &RankHandle) -> Result<(PipeRank, Vec<Rank>), BuildError> {
        let world = rank.world_size();
        let topology = match &self.topology {
            Some(topology) => topology.clone(),
            None => ProcessTopology::pipe_data(u64::try_from(world).unwrap_or(u64::MAX), 1)?,
        };
        if usize::try_from(topology.world_size()) != Ok(world) {
            return Err(BuildError::WorldSize {
                topology: topology.to_string(),
                ranks: topology.world_size(),
                world,
            });
        }
        for (axis, size) in topology.axes() {
            if axis != "pipe" && size > 1 {
                return Err(BuildError::Axis { axis: axis.to_owned(), size });
            }
        }
        // With one axis larger than 1, a rank is its own coordinate on it.
        let pipe_rank = PipeRank(u32::try_from(rank.rank().0).unwrap_or(u32::MAX));
        let ranks = (0..topology.world_size()).map(Rank).collect();
        Ok((pipe_rank, ranks))
    }

    /// Counts the parameters of every layer; Burn makes none of them for that.
    fn count(&self, deadline: Duration) -> Result<Vec<LayerInfo>, BuildError> {
        let mut owners = BTreeMap::new();
        let device = self.device.clone().autodiff();
        let count = |(index, spec): (usize, &LayerSpec)| {
            let _turn = Turn::take(deadline, index)?;
            device.seed(self.seed(index));
            let built = build_layer(spec, index, &device)?;
            claim(&mut owners, &built, index)?;
            let parameters = u64::try_from(built.num_params()).unwrap_or(u64::MAX);
            Ok(LayerInfo::new(spec.type_name(), parameters))
        };
        self.specs.iter().enumerate().map(count).collect()
    }

    fn seed(&self, layer: usize) -> u64 {
        self.base_seed.wrapping_add(u64::try_from(layer).unwrap_or(u64::MAX))
    }

    fn build_layers(
        &self,
        range: Range<usize>,
        device: &Device,
        deadline: Duration,
    ) -> Result<Vec<PlacedLayer>, BuildError> {
        let first = range.start;
        let build = |(offset, spec): (usize, &LayerSpec)| {
            let index = first.saturating_add(offset);
            let turn = Turn::take(deadline, index)?;
            device.seed(self.seed(index));
            let layer = build_layer(spec, index, device)?;
            let layer = catch_unwind(AssertUnwindSafe(|| {
                initialize(&layer);
                on_autodiff(layer)
            }))
            .map_err(|payload| panicked(spec, index, payload.as_ref()))?;
            drop(turn);
            Ok(PlacedLayer { index, type_name: spec.type_name(), layer })
        };
        self.specs[range].iter().enumerate().map(build).collect()
    }
}

impl<I, O, T> fmt::Debug for PipelineModuleBuilder<I, O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineModuleBuilder")
            .field("n_layers", &self.specs.len())
            .field("topology", &self.topology)
            .field("method", &self.method)
            .field("n_micro_batches", &self.n_micro_batches)
            .finish_non_exhaustive()
    }
}

/// Proves a plan over links that hold as many messages as the plan ever has micro-batches in flight, or
/// more where it needs them: then a sender waits only when its receiver is that far behind, and a link's
/// memory stays bounded.
fn prove(plan: &Plan) -> Result<CheckedPlan, BuildError> {
    let program = lower(plan)?;
    let least = least_capacity(&program)?;
    let checked = check(program, least)?;
    let ranks = (0..checked.placement().n_ranks()).map(PipeRank);
    let in_flight = ranks.map(|rank| checked.in_flight(rank)).max().unwrap_or(1);
    if in_flight <= least.0 {
        Ok(checked)
    } else {
        Ok(check(checked.program().clone(), Capacity(in_flight))?)
    }
}

/// A layer that its builder made without autodiff would learn nothing and say nothing: it is put into
/// training, which leaves frozen parameters frozen.
fn on_autodiff(layer: AnyLayer) -> AnyLayer {
    struct Plain(bool);
    impl ModuleVisitor for Plain {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= !param.lazy_device().is_autodiff();
        }
    }
    let mut plain = Plain(false);
    layer.visit(&mut plain);
    if plain.0 { layer.train() } else { layer }
}

/// Refuses a parameter that two layers have: it would be one weight in a stage and two across stages.
fn claim(owners: &mut BTreeMap<u64, usize>, built: &AnyLayer, layer: usize) -> Result<(), BuildError> {
    struct Ids(Vec<u64>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id.val());
        }
    }
    let mut ids = Ids(Vec::new());
    built.visit(&mut ids);
    match ids.0.into_iter().map(|id| *owners.entry(id).or_insert(layer)).find(|&owner| owner != layer) {
        Some(first) => Err(BuildError::SharedParameter { first, layer }),
        None => Ok(()),
    }
}

fn build_layer(spec: &LayerSpec, index: usize, device: &Device) -> Result<AnyLayer, BuildError> {
    let layer = catch_unwind(AssertUnwindSafe(|| spec.build(device)))
        .map_err(|payload| panicked(spec, index, payload.as_ref()))?;
    match layer.unsupported_rank() {
        Some(rank) => Err(BuildError::ParameterRank { layer: index, type_name: spec.type_name(), rank }),
        None => Ok(layer),
    }
}

fn panicked(spec: &LayerSpec, layer: usize, payload: &(dyn std::any::Any + Send)) -> BuildError {
    BuildError::LayerPanicked { layer, type_name: spec.type_name(), message: panic_message(payload) }
}
