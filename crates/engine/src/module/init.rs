//! Building one layer: its turn at Burn's random state, and what is checked of it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use super::seeds::Seeds;
use crate::any_layer::AnyLayer;
use crate::error::{BuildError, panic_message};
use crate::layers::LayerSpec;
use crate::random::Turn;

/// Waits until this rank may seed Burn's random state, build a layer and make its parameters.
pub(super) fn take_turn(waited: Duration, layer: usize) -> Result<Turn, BuildError> {
    Turn::take(waited).ok_or(BuildError::Busy { layer, waited })
}

/// A layer that its builder made without autodiff would learn nothing and say nothing: it is put into
/// training, which leaves frozen parameters frozen.
pub(super) fn on_autodiff(layer: AnyLayer) -> AnyLayer {
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
pub(super) fn claim(
    owners: &mut BTreeMap<u64, usize>,
    built: &AnyLayer,
    layer: usize,
) -> Result<(), BuildError> {
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

/// Seeds the layer and builds it; its parameters may wait to be made.
pub(super) fn build_layer(
    spec: &LayerSpec,
    index: usize,
    device: &Device,
    seeds: &Seeds,
) -> Result<AnyLayer, BuildError> {
    let build = || {
        seeds.start(device, index);
        spec.build(device)
    };
    let layer =
        catch_unwind(AssertUnwindSafe(build)).map_err(|payload| panicked(spec, index, payload.as_ref()))?;
    match layer.unsupported_rank() {
        Some(rank) => Err(BuildError::ParameterRank { layer: spec.label(index), rank }),
        None => Ok(layer),
    }
}

pub(super) fn panicked(spec: &LayerSpec, index: usize, payload: &(dyn std::any::Any + Send)) -> BuildError {
    BuildError::LayerPanicked { layer: spec.label(index), message: panic_message(payload) }
}

/// Refuses a name that two layers have.
pub(super) fn check_names(specs: &[LayerSpec]) -> Result<(), BuildError> {
    let mut known = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        let Some(name) = spec.name() else { continue };
        if let Some(first) = known.insert(name, index) {
            return Err(BuildError::LayerName { first, second: index, name: name.to_owned() });
        }
        let number = name.strip_prefix("layer_").unwrap_or(name);
        if number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BuildError::NotAName { layer: index, name: name.to_owned() });
        }
    }
    Ok(())
}
