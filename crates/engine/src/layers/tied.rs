//! Layers that share parameters: one builder for several uses, and where each use gets its module.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

use super::Layers;
use super::spec::{BuildModule, LayerSpec, build_module, infallible};
use crate::error::TieError;
use crate::layer::{Layer, LayerError};
use crate::tie::Tie;
use crate::value::Value;

/// A module that stands at several places of a list, with a forward function for each, and shares
/// parameters between them.
///
/// See [`Tie`] for what becomes of the parameters. [`Layers::tied`] and [`Layers::tied_with`] are the
/// short form for a list that is written down; this one also goes into lists made at run time.
///
/// # Examples
/// ```
/// use brigade_engine::{Layers, TiedLayerSpec};
/// use burn::nn::{Embedding, EmbeddingConfig};
/// use burn::tensor::{Int, Tensor};
///
/// let embedding = TiedLayerSpec::new("embedding", ["weight"], |d| EmbeddingConfig::new(7, 4).init(d));
/// let layers = Layers::new()
///     .then(embedding.with(|e: &Embedding, ids: Tensor<2, Int>| e.forward(ids)))
///     .then(embedding.with(|e: &Embedding, x: Tensor<3>| x.matmul(e.weight.val().transpose().unsqueeze())));
/// assert_eq!(layers.specs()[1].ties()[0].key, "embedding");
/// ```
pub struct TiedLayerSpec<M> {
    tie: Tie,
    build: BuildModule,
    module: PhantomData<fn() -> M>,
}

impl<M: Module + 'static> TiedLayerSpec<M> {
    /// Describes a module whose parameters at the paths `attributes`, such as `weight` or
    /// `inner.weight`, are one at all its places; all of its parameters when there is no path.
    pub fn new<A: Into<String>>(
        key: impl Into<String>,
        attributes: impl IntoIterator<Item = A>,
        build: impl Fn(&Device) -> M + Send + Sync + 'static,
    ) -> Self {
        Self { tie: Tie::new(key, attributes), build: build_module(build), module: PhantomData }
    }

    /// One place of it, with the module's own forward function.
    #[must_use]
    pub fn layer(&self) -> Layers<M::Input, M::Output>
    where
        M: Layer,
    {
        self.try_with(M::try_forward)
    }

    /// One place of it, with another forward function.
    pub fn with<I: Value, O: Value>(
        &self,
        forward: impl Fn(&M, I) -> O + Send + Sync + 'static,
    ) -> Layers<I, O> {
        self.try_with(infallible(forward))
    }

    /// The same for a forward function that can fail; its error stops every rank.
    pub fn try_with<I: Value, O: Value, E: Into<LayerError>>(
        &self,
        forward: impl Fn(&M, I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Layers<I, O> {
        Layers::of(LayerSpec::over(Arc::clone(&self.build), forward).with_tie(self.tie.clone()))
    }
}

impl<M> Clone for TiedLayerSpec<M> {
    fn clone(&self) -> Self {
        Self { tie: self.tie.clone(), build: Arc::clone(&self.build), module: PhantomData }
    }
}

impl<M> fmt::Debug for TiedLayerSpec<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TiedLayerSpec").field("tie", &self.tie).finish_non_exhaustive()
    }
}

/// Gives every layer that has only a key the builder and the attributes of the one layer that has them.
pub(crate) fn resolve_ties(specs: &[LayerSpec]) -> Result<Vec<LayerSpec>, TieError> {
    let mut builders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        for tie in spec.ties().iter().filter(|_| spec.has_builder()) {
            let known = builders.entry(&tie.key).or_default();
            if known.first().is_none_or(|&first| !specs[first].shares_builder(spec)) {
                known.push(index);
            }
        }
    }
    let resolve = |(index, spec): (usize, &LayerSpec)| {
        let Some(tie) = spec.ties().first().filter(|_| !spec.has_builder()) else {
            return Ok(spec.clone());
        };
        let layer = spec.label(index);
        let key = tie.key.clone();
        match builders.get(key.as_str()).map(Vec::as_slice) {
            None | Some([]) => {
                let known = builders.keys().map(|&key| key.to_owned()).collect();
                Err(TieError::UnknownKey { layer, key, known })
            }
            Some(&[first]) => {
                let builder = &specs[first];
                if builder.module() == spec.module() {
                    return Ok(spec.built_like(builder));
                }
                let (builder, built, wanted) =
                    (builder.label(first), builder.module().name, spec.module().name);
                Err(TieError::ModuleType { layer, wanted, builder, built })
            }
            Some(several) => {
                let builders = several.iter().map(|&index| specs[index].label(index)).collect();
                Err(TieError::TwoBuilders { layer, key, builders })
            }
        }
    };
    specs.iter().enumerate().map(resolve).collect()
}
