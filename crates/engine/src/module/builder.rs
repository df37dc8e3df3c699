//! Cuts the layers, proves the plan and builds this rank's layers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use brigade_partition::{Cuts, LayerInfo, MethodError, Options, PartitionMethod, partition};
use brigade_schedule::{Capacity, CheckedPlan, Plan, ScheduleError, Shape, check, least_capacity, lower};
use brigade_topology::{PipeRank, Placement, ProcessTopology, Rank, Stage};
use burn::tensor::Device;

use super::init::{build_layer, check_names, claim, on_autodiff, panicked, take_turn};
use super::seeds::Seeds;
use super::summary::ModuleSummary;
use super::{LossFn, PipelineModule, ScheduleFn};
use crate::config::TrainConfig;
use crate::error::{BuildError, ConfigError};
use crate::gradients::initialize;
use crate::layer::{LayerLabel, LayerNames};
use crate::layers::{LayerSpec, resolve_ties};
use crate::random::Exclusive;
use crate::recompute::Recompute;
use crate::reduce::{
    Grid, Groups, NewValue, ParameterInfo, in_order, layer_parameters, rank_copies, replace_values,
};
use crate::skip::{SkipRoute, Skips};
use crate::stage::{PlacedLayer, RankModule, StageModule};
use crate::tie::Tie;
use crate::value::Value;
use crate::world::RankHandle;

/// Collects what a [`PipelineModule`] is made from.
pub struct PipelineModuleBuilder<I, O, T> {
    pub(super) specs: Vec<LayerSpec>,
    pub(super) loss: LossFn,
    pub(super) topology: Option<ProcessTopology>,
    pub(super) method: PartitionMethod,
    pub(super) schedule: ScheduleFn,
    pub(super) n_micro_batches: u32,
    pub(super) partition_options: Options,
    pub(super) seeds: Seeds,
    pub(super) recompute: Recompute,
    pub(super) exclusive: LayerNames,
    pub(super) device: Device,
    pub(super) skip_route: SkipRoute,
    pub(super) skip_routes: BTreeMap<String, SkipRoute>,
    pub(super) profiles: Option<Vec<LayerInfo>>,
    pub(super) types: PhantomData<fn(I, T) -> O>,
}

impl<I: Value, O: Value, T: Value> PipelineModuleBuilder<I, O, T> {
    /// Sets the grid of ranks; one pipeline over the whole world if unset.
    ///
    /// Axes of it are `pipe` and `data`, in any order; another one may be there with size 1. Each place
    /// on `data` is a replica of the pipeline, which takes its own micro-batches.
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

    /// Takes the number of micro-batches, the partition method and the interval of recompute from a
    /// configuration, where it has them.
    ///
    /// # Errors
    /// [`ConfigError::Text`] for a partition method that is written wrong.
    pub fn config(mut self, config: &TrainConfig) -> Result<Self, ConfigError> {
        if let Some(method) = &config.partition {
            self.method = method.parse().map_err(|error: MethodError| ConfigError::Text {
                path: "partition".to_owned(),
                message: error.to_string(),
            })?;
        }
        if let Some(n_layers) = config.recompute_every {
            self.recompute = Recompute::every(usize::try_from(n_layers).unwrap_or(usize::MAX));
        }
        self.n_micro_batches = config.micro_batches.unwrap_or(self.n_micro_batches);
        Ok(self)
    }

    /// Sets what the cuts have to keep to: layers bound to a stage or to each other, limits of memory,
    /// ranks of different speed, stages without a layer; nothing if unset.
    ///
    /// A stage without a layer, where [`allow_empty`](Options::allow_empty) lets there be one, hands its
    /// input on.
    #[must_use]
    pub fn partition_options(mut self, options: Options) -> Self {
        self.partition_options = options;
        self
    }

    /// Sets the number that the seeds of all layers come from; layer i is initialised from it plus i,
    /// wherever the layer lives, unless [`seed_fn`](Self::seed_fn) says otherwise.
    ///
    /// Keyed random numbers, such as those of [`nn::Dropout`](crate::nn::Dropout), come from it too. Give
    /// every rank the same.
    #[must_use]
    #[doc(alias = "seed_layers")]
    pub fn base_seed(mut self, seed: u64) -> Self {
        self.seeds.base = seed;
        self
    }

    /// Sets the seed of each layer, by the base seed and the layer's global index.
    ///
    /// It must give the same on every rank: initial weights, and the owner's values of shared ones,
    /// come from it.
    #[must_use]
    pub fn seed_fn(mut self, function: impl Fn(u64, usize) -> u64 + Send + Sync + 'static) -> Self {
        self.seeds.function = Arc::new(function);
        self
    }

    /// Calls `hook` with a layer's seed before the layer is built, for builders that draw from a
    /// generator of their own.
    ///
    /// Burn's own random numbers are seeded before. Layers are built one at a time in the whole process,
    /// and each of them several times: on every rank to count its parameters, and by those who hold it.
    #[must_use]
    pub fn seed_hook(mut self, hook: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.seeds.hook = Some(Arc::new(hook));
        self
    }

    /// Keeps only the input of every `n_layers` layers in a forward pass and runs them again in the
    /// backward pass; 0, as if unset, keeps everything. See [`Recompute`] for a choice of layers.
    #[must_use]
    #[doc(alias = "activation_checkpoint_interval")]
    pub fn recompute_every(self, n_layers: usize) -> Self {
        self.recompute(Recompute::every(n_layers))
    }

    /// Sets which layers run again in the backward pass; none if unset. Ranks may differ in it.
    #[must_use]
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Names layers, by type, name or number, that draw from Burn's own random state when they run, such
    /// as those with a `burn::nn::Dropout` or `Tensor::random` inside; none if unset.
    ///
    /// That state is one for the process, and ranks would come to it in any order. An exclusive layer runs
    /// while no other exclusive layer of the process does, from a seed that depends on the step, the
    /// micro-batch and the layer: equal numbers at every split and when it runs again. The cost is that
    /// these layers' forward passes come one after the other on all ranks, so they should be few and
    /// small; [`nn::Dropout`](crate::nn::Dropout) costs nothing of the kind. It helps only if every layer
    /// that draws is named, and nothing else draws at the same time, such as a data source that makes
    /// random tensors. Burn's state is left at an arbitrary place. Give every rank the same.
    #[must_use]
    pub fn exclusive(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.exclusive = LayerNames::new(names);
        self
    }

    /// Sets this rank's device; the embedded CPU backend if unset.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = device.inner();
        self
    }

    /// Sets what [`Layers::profile`](crate::Layers::profile) has measured, for cuts by `profile`; give
    /// every rank the same.
    #[must_use]
    pub fn profiled(mut self, layers: Vec<LayerInfo>) -> Self {
        self.profiles = Some(layers);
        self
    }

    /// Sets how named values go from the stage that stashes them to those that use them; directly if unset.
    #[must_use]
    pub fn skips(mut self, route: SkipRoute) -> Self {
        self.skip_route = route;
        self
    }

    /// Sets how one named value travels, whatever the others do.
    #[must_use]
    pub fn skip_route(mut self, name: impl Into<String>, route: SkipRoute) -> Self {
        self.skip_routes.insert(name.into(), route);
        self
    }

    /// Cuts the layers, proves the plan and builds the layers of this rank, and no others.
    ///
    /// # Errors
    /// [`BuildError`]: the layers, the topology, the schedule or the plan do not fit together.
    pub fn build(mut self, rank: &RankHandle) -> Result<PipelineModule<I, O, T>, BuildError> {
        if self.specs.is_empty() {
            return Err(BuildError::NoLayers);
        }
        check_names(&self.specs)?;
        self.specs = resolve_ties(&self.specs)?;
        let skips = Skips::new(&self.specs)?;
        let skips = skips.routed(self.skip_route, &self.skip_routes)?;
        let Located { replica, pipe_rank, grid } = self.locate(rank)?;
        let ranks = grid[replica].clone();
        let labels = self.labels();
        self.recompute.check(&labels)?;
        self.exclusive.check(&labels, "run exclusively")?;
        let n_ranks = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let plan = (self.schedule)(Shape { n_ranks, n_micro_batches: self.n_micro_batches })?;
        let placement = plan.placement();
        if placement.n_ranks() != n_ranks {
            let plan = usize::try_from(placement.n_ranks()).unwrap_or(usize::MAX);
            return Err(BuildError::PlanRanks { plan, topology: ranks.len() });
        }
        if plan.n_micro_batches() != self.n_micro_batches {
            let (plan, module) = (plan.n_micro_batches(), self.n_micro_batches);
            return Err(BuildError::PlanMicroBatches { plan, module });
        }
        let checked = prove(&plan)?;
        if checked.is_forward_only() {
            return Err(BuildError::PlanKind { wanted: "training", found: "has no backward pass" });
        }
        let (infos, parameters) = self.count(rank.deadline())?;
        let infos = measured(infos, self.profiles.as_deref())?;
        let n_stages = usize::try_from(placement.n_stages()).unwrap_or(usize::MAX);
        let cuts = partition(&self.method, &infos, n_stages, &self.partition_options)?;
        let device = self.device.clone().autodiff();
        let groups = self.group(&parameters, &cuts, &placement, grid.len())?;
        let summary = ModuleSummary::new(&self.specs, &parameters, &groups, &cuts, placement.n_stages());
        let stages = placement
            .stages_of(pipe_rank)
            .into_iter()
            .flatten()
            .map(|stage| {
                let layers = self.build_layers(cuts.stage(stage.index()), &device, rank.deadline())?;
                Ok(StageModule { stage, layers })
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        let stages = self.start_equal(RankModule { stages }, &groups, &device, rank.deadline())?;
        Ok(PipelineModule {
            rank: rank.clone(),
            stages,
            loss: self.loss,
            placement,
            replica,
            pipe_rank,
            ranks,
            grid,
            groups,
            training: Arc::new(checked),
            exclusive: self.exclusive,
            recompute: self.recompute,
            schedule: self.schedule,
            skips: Arc::new(skips.layout(&cuts)),
            cuts,
            summary,
            base_seed: self.seeds.base,
            device: self.device,
            types: PhantomData,
        })
    }

    /// This rank's place in the grid of pipelines and replicas, and the world ranks of the whole grid.
    fn locate(&self, rank: &RankHandle) -> Result<Located, BuildError> {
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
            if !["pipe", "data"].contains(&axis) && size > 1 {
                return Err(BuildError::Axis { axis: axis.to_owned(), size });
            }
        }
        // The ranks of a pipeline in ascending order are its pipeline ranks, whatever the order of the
        // axes; so are the first ranks of the replicas. An axis that is not there has one place.
        let along = |axis: &str, from: Rank| {
            let ranks = topology.axis_comm_list_of(axis, from);
            ranks.map_or(vec![from], |ranks| ranks.iter().collect())
        };
        let grid: Grid = along("data", Rank(0)).into_iter().map(|first| along("pipe", first)).collect();
        let place = grid.iter().enumerate().find_map(|(replica, ranks)| {
            let pipe_rank = ranks.iter().position(|&other| other == rank.rank())?;
            Some((replica, pipe_rank))
        });
        let (replica, pipe_rank) = place.unwrap_or((0, 0));
        Ok(Located { replica, pipe_rank: PipeRank(u32::try_from(pipe_rank).unwrap_or(u32::MAX)), grid })
    }

    /// Finds the copies of every parameter: the ties of the layers, and who holds the stages.
    fn group(
        &self,
        parameters: &[Vec<ParameterInfo>],
        cuts: &Cuts,
        placement: &Placement,
        n_replicas: usize,
    ) -> Result<Groups, BuildError> {
        let ties: Vec<&[Tie]> = self.specs.iter().map(LayerSpec::ties).collect();
        let stages: Vec<Stage> = (0..placement.n_stages())
            .map(Stage)
            .flat_map(|stage| cuts.stage(stage.index()).map(move |_| stage))
            .collect();
        Groups::new(&ties, parameters, &stages, placement, n_replicas)
    }

    /// Looks at the parameters of every layer; Burn makes none of them for that.
    fn count(&self, deadline: Duration) -> Result<(Vec<LayerInfo>, Vec<Vec<ParameterInfo>>), BuildError> {
        let mut owners = BTreeMap::new();
        let device = self.device.clone().autodiff();
        let count = |(index, spec): (usize, &LayerSpec)| {
            let _turn = take_turn(deadline, index)?;
            let built = build_layer(spec, index, &device, &self.seeds)?;
            claim(&mut owners, &built, index)?;
            let parameters = layer_parameters(built);
            let trainable = parameters.iter().filter(|parameter| parameter.is_trainable);
            let n_trainable = trainable.map(ParameterInfo::n_elements).fold(0, u64::saturating_add);
            Ok((LayerInfo::new(spec.type_name(), n_trainable), parameters))
        };
        self.specs.iter().enumerate().map(count).collect()
    }

    fn labels(&self) -> Vec<LayerLabel> {
        self.specs.iter().enumerate().map(|(index, spec)| spec.label(index)).collect()
    }

    pub(super) fn build_layers(
        &self,
        range: Range<usize>,
        device: &Device,
        deadline: Duration,
    ) -> Result<Vec<PlacedLayer>, BuildError> {
        range.map(|index| self.build_layer(index, device, deadline)).collect()
    }

    /// Builds one layer from its own seed and makes its parameters.
    fn build_layer(
        &self,
        index: usize,
        device: &Device,
        deadline: Duration,
    ) -> Result<PlacedLayer, BuildError> {
        let spec = &self.specs[index];
        let turn = take_turn(deadline, index)?;
        let layer = build_layer(spec, index, device, &self.seeds)?;
        let layer = catch_unwind(AssertUnwindSafe(|| {
            initialize(&layer);
            on_autodiff(layer)
        }))
        .map_err(|payload| panicked(spec, index, payload.as_ref()))?;
        drop(turn);
        let label = spec.label(index);
        let exclusive = self.exclusive.has(&label).then(|| Exclusive { device: device.clone(), deadline });
        Ok(PlacedLayer { label, layer, exclusive, skip: spec.skip().cloned() })
    }

    /// Gives every copy of a shared parameter the values of the layer that owns it, which is built here
    /// for that from its own seed where another rank has it. An owner that is frozen freezes its copies.
    fn start_equal(
        &self,
        module: RankModule,
        groups: &Groups,
        device: &Device,
        deadline: Duration,
    ) -> Result<RankModule, BuildError> {
        let copies = rank_copies(&module);
        let mut owned: BTreeMap<usize, Vec<NewValue>> = BTreeMap::new();
        let mut values = BTreeMap::new();
        for group in groups.iter() {
            let owner = group.place();
            for each in &group.uses[1..] {
                let Some(copy) = copies.get(&each.place) else { continue };
                if let Entry::Vacant(entry) = owned.entry(owner.layer) {
                    entry.insert(in_order(&self.build_layer(owner.layer, device, deadline)?.layer));
                }
                let value = owned.get(&owner.layer).and_then(|layer| layer.get(owner.parameter));
                values.extend(value.map(|value| (copy.id.val(), value.clone())));
            }
        }
        replace_values(module, values).map_err(BuildError::Copy)
    }
}

/// A rank's place in the grid of pipelines and replicas.
struct Located {
    replica: usize,
    pipe_rank: PipeRank,
    grid: Grid,
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

/// The layers with what was measured of them.
fn measured(infos: Vec<LayerInfo>, profiles: Option<&[LayerInfo]>) -> Result<Vec<LayerInfo>, BuildError> {
    let Some(profiles) = profiles else { return Ok(infos) };
    if infos.len() != profiles.len() {
        let problem = format!("it has {} layers, they are of {}", infos.len(), profiles.len());
        return Err(BuildError::Profile { problem });
    }
    let with = |(layer, (info, profiled)): (usize, (LayerInfo, &LayerInfo))| {
        if (&info.type_name, info.parameters) != (&profiled.type_name, profiled.parameters) {
            let describe = |info: &LayerInfo| format!("{} of {} parameters", info.type_name, info.parameters);
            let (here, there) = (describe(&info), describe(profiled));
            return Err(BuildError::Profile {
                problem: format!("layer {layer} is {here}, measured was {there}"),
            });
        }
        Ok(LayerInfo { profile: profiled.profile, ..info })
    };
    infos.into_iter().zip(profiles).enumerate().map(with).collect()
}

/// Proves a plan over links that hold as many messages as the plan ever has micro-batches in flight, or
/// more where it needs them: then a sender waits only when its receiver is that far behind, and a link's
/// memory stays bounded.
pub(super) fn prove(plan: &Plan) -> Result<CheckedPlan, BuildError> {
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
