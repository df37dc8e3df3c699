//! The layers of one stage, and of all stages of a rank, as Burn modules.

use std::panic::{AssertUnwindSafe, catch_unwind};

use brigade_topology::Stage;
use brigade_wire::Tree;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;

use crate::any_layer::{AnyLayer, ForwardError};
use crate::error::{Cause, panic_message};
use crate::layer::{LayerLabel, layer_name};
use crate::random::{Exclusive, PassContext};
use crate::skip::{SkipOp, SkipStore};
use crate::tensor::AnyTensor;

/// A built layer with its place in the whole model.
#[derive(Clone, Debug)]
pub(crate) struct PlacedLayer {
    pub(crate) label: LayerLabel,
    pub(crate) layer: AnyLayer,
    /// How it runs alone in the process, if it must.
    pub(crate) exclusive: Option<Exclusive>,
    /// What it does with a named value, in place of a forward pass of the layer.
    pub(crate) skip: Option<SkipOp>,
}

impl PlacedLayer {
    /// `layer_007`: the same at any number of stages.
    fn name(&self) -> String {
        layer_name(self.label.index)
    }

    fn container(&self) -> String {
        format!("Struct:{}", self.label.type_name)
    }

    /// The same place with another form of the layer.
    pub(crate) fn with_layer(&self, layer: AnyLayer) -> Self {
        let Self { label, exclusive, skip, .. } = self;
        Self { label: label.clone(), layer, exclusive: exclusive.clone(), skip: skip.clone() }
    }

    fn forward(
        &self,
        input: Tree<AnyTensor>,
        pass: PassContext,
        skips: &mut SkipStore<'_>,
    ) -> Result<Tree<AnyTensor>, Cause> {
        let layer = self.label.clone();
        let pass = pass.layer(u64::try_from(layer.index).unwrap_or(u64::MAX));
        let forward = || match &self.skip {
            Some(op) => op.forward(layer.index, input, skips),
            None => self.layer.forward(input),
        };
        // A panic ends the training on every rank; what it left half done is not used again.
        let run = || pass.during(forward);
        let run = || match &self.exclusive {
            Some(exclusive) => exclusive.during(pass, run).ok_or(exclusive.deadline),
            None => Ok(run()),
        };
        let result = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(waited)) => return Err(Cause::Busy { layer, waited }),
            Err(payload) => Err(payload),
        };
        match result {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(ForwardError::Input(source))) => Err(Cause::LayerValue { layer, end: "input", source }),
            Ok(Err(ForwardError::Output(source))) => Err(Cause::LayerValue { layer, end: "output", source }),
            Ok(Err(ForwardError::Layer(source))) => {
                let message = source.to_string();
                Err(Cause::LayerFailed { layer, source: source.into(), message })
            }
            Err(payload) => {
                let message = panic_message(payload.as_ref());
                Err(Cause::LayerPanicked { layer, message })
            }
        }
    }
}

/// Runs layers one after the other as parts of `pass`.
pub(crate) fn forward_layers<'a>(
    layers: impl IntoIterator<Item = &'a PlacedLayer>,
    input: Tree<AnyTensor>,
    pass: PassContext,
    skips: &mut SkipStore<'_>,
) -> Result<Tree<AnyTensor>, Cause> {
    layers.into_iter().try_fold(input, |value, layer| layer.forward(value, pass, skips))
}

/// A contiguous slice of the model's layers.
#[derive(Clone, Debug)]
pub(crate) struct StageModule {
    pub(crate) stage: Stage,
    pub(crate) layers: Vec<PlacedLayer>,
}

impl StageModule {
    fn map_layers(self, mut f: impl FnMut(AnyLayer) -> AnyLayer) -> Self {
        let layers =
            self.layers.into_iter().map(|placed| PlacedLayer { layer: f(placed.layer), ..placed }).collect();
        Self { stage: self.stage, layers }
    }
}

impl Module for StageModule {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for placed in &self.layers {
            let (name, container) = (placed.name(), placed.container());
            visitor.enter_module(&name, &container);
            placed.layer.visit(visitor);
            visitor.exit_module(&name, &container);
        }
    }
    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let layers = self.layers.into_iter().map(|placed| {
            let (name, container) = (placed.name(), placed.container());
            mapper.enter_module(&name, &container);
            let layer = placed.layer.map(mapper);
            mapper.exit_module(&name, &container);
            PlacedLayer { layer, ..placed }
        });
        Self { stage: self.stage, layers: layers.collect() }
    }
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.layers.iter().fold(devices, |devices, placed| placed.layer.collect_devices(devices))
    }
    fn fork(self, device: &Device) -> Self {
        self.map_layers(|layer| layer.fork(device))
    }
    fn to_device(self, device: &Device) -> Self {
        self.map_layers(|layer| layer.to_device(device))
    }
    fn train(self) -> Self {
        self.map_layers(Module::train)
    }
    fn valid(&self) -> Self {
        self.clone().map_layers(|layer| layer.valid())
    }
    fn materialize(self) -> Self {
        self.map_layers(Module::materialize)
    }
}

/// Every stage of one rank, in the order of the placement.
#[derive(Clone, Debug)]
pub(crate) struct RankModule {
    pub(crate) stages: Vec<StageModule>,
}

impl RankModule {
    pub(crate) fn stage(&self, stage: Stage) -> Option<&StageModule> {
        self.stages.iter().find(|module| module.stage == stage)
    }

    fn map_stages(self, f: impl FnMut(StageModule) -> StageModule) -> Self {
        Self { stages: self.stages.into_iter().map(f).collect() }
    }
}

impl Module for RankModule {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for stage in &self.stages {
            stage.visit(visitor);
        }
    }
    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.map_stages(|stage| stage.map(mapper))
    }
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.stages.iter().fold(devices, |devices, stage| stage.collect_devices(devices))
    }
    fn fork(self, device: &Device) -> Self {
        self.map_stages(|stage| stage.fork(device))
    }
    fn to_device(self, device: &Device) -> Self {
        self.map_stages(|stage| stage.to_device(device))
    }
    fn train(self) -> Self {
        self.map_stages(Module::train)
    }
    fn valid(&self) -> Self {
        Self { stages: self.stages.iter().map(Module::valid).collect() }
    }
    fn materialize(self) -> Self {
        self.map_stages(Module::materialize)
    }
}
