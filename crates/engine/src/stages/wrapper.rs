//! A stage of named inputs and outputs around any module.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use brigade_wire::{StageSignature, Tree};
use burn::module::Module;
use burn::tensor::Device;

use super::NamedValues;
use super::wiring::Wiring;
use crate::error::StageError;
use crate::gradients::initialize;
use crate::layers::LayerSpec;
use crate::tensor::AnyTensor;
use crate::value::Value;

type BuildFn<M> = Arc<dyn Fn(&Device) -> M + Send + Sync>;

/// One stage of a model: a module, the names of what it takes and gives, and a function over them.
///
/// Values that only later stages use pass through it: the wrapper works out which from the names of all
/// stages. [`pipeline_module`](crate::pipeline_module) has an example.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `DeepSpeedPipeStageWrapper`.
#[doc(alias = "DeepSpeedPipeStageWrapper")]
#[derive(Clone)]
pub struct StageWrapper {
    name: String,
    signature: StageSignature,
    layer: Arc<dyn Fn(Wiring) -> LayerSpec + Send + Sync>,
}

impl StageWrapper {
    /// Starts from a name and a builder of the stage's module, which only its owner calls.
    pub fn lazy<M: Module + 'static>(
        name: impl Into<String>,
        build: impl Fn(&Device) -> M + Send + Sync + 'static,
    ) -> StageWrapperBuilder<M> {
        StageWrapperBuilder {
            name: name.into(),
            build: Arc::new(build),
            signature: StageSignature::default(),
            module: PhantomData,
        }
    }

    /// Starts from a name and a module that exists, with the values that it has.
    ///
    /// Its owner trains a copy of it, whose tensors are copied when they are first updated.
    pub fn ready<M: Module + Sync + 'static>(name: impl Into<String>, module: M) -> StageWrapperBuilder<M> {
        initialize(&module);
        Self::lazy(name, move |device| module.clone().fork(device))
    }

    /// The name of the stage.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of what it takes and gives.
    #[must_use]
    pub fn signature(&self) -> &StageSignature {
        &self.signature
    }

    pub(super) fn layer(&self, wiring: Wiring) -> LayerSpec {
        (self.layer)(wiring).named(self.name.as_str())
    }
}

impl fmt::Debug for StageWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageWrapper")
            .field("name", &self.name)
            .field("signature", &self.signature)
            .finish_non_exhaustive()
    }
}

/// Collects what a [`StageWrapper`] is made from.
pub struct StageWrapperBuilder<M> {
    name: String,
    build: BuildFn<M>,
    signature: StageSignature,
    module: PhantomData<fn() -> M>,
}

impl<M: Module + 'static> StageWrapperBuilder<M> {
    /// Sets the names of the arguments, in the order in which a function by position takes them.
    #[must_use]
    pub fn inputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.signature.inputs = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the names of the outputs; each is new to the model.
    #[must_use]
    pub fn outputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.signature.outputs = names.into_iter().map(Into::into).collect();
        self
    }

    /// Ends with a function that takes and gives values by name.
    pub fn named(
        self,
        forward: impl Fn(&M, NamedValues) -> Result<NamedValues, StageError> + Send + Sync + 'static,
    ) -> StageWrapper {
        let forward = Arc::new(forward);
        self.finish(move |wiring, module, input| wiring.run_named(input, |values| forward(module, values)))
    }

    /// Ends with a function over the arguments by position: one value by itself, others as a tuple.
    pub fn positional<A: Value, B: Value>(
        self,
        forward: impl Fn(&M, A) -> B + Send + Sync + 'static,
    ) -> StageWrapper {
        self.finish(move |wiring, module, input| {
            wiring.run_positional(input, |arguments| forward(module, arguments))
        })
    }

    fn finish(
        self,
        run: impl Fn(&Wiring, &M, Tree<AnyTensor>) -> Result<Tree<AnyTensor>, StageError> + Send + Sync + 'static,
    ) -> StageWrapper {
        let Self { name, build, signature, .. } = self;
        let run = Arc::new(run);
        let layer = move |wiring: Wiring| {
            let (build, run) = (Arc::clone(&build), Arc::clone(&run));
            LayerSpec::try_with(
                move |device| build(device),
                move |module: &M, input: Tree<AnyTensor>| run(&wiring, module, input),
            )
        };
        StageWrapper { name, signature, layer: Arc::new(layer) }
    }
}

impl<M> fmt::Debug for StageWrapperBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageWrapperBuilder")
            .field("name", &self.name)
            .field("signature", &self.signature)
            .finish_non_exhaustive()
    }
}
