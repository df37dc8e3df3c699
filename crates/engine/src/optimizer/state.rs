//! The optimizer's state, parameter by parameter and by name, so that it can move between ranks and files.

use std::collections::BTreeMap;
use std::fmt::Display;

use burn::module::ParamId;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::burn_pack::{Reader, Scalar, Tensor, Writer};
use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use super::groups::Described;
use crate::error::StateError;

/// The number of dimensions of a parameter, which Burn keeps among the numbers of its state.
const RANK_KEY: &str = "__rank";

/// A number of an optimizer's state, such as how many steps it has made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateNumber {
    /// A signed whole number.
    Int(i64),
    /// An unsigned whole number.
    UInt(u64),
    /// A floating-point number.
    Float(f64),
    /// A yes or no.
    Bool(bool),
}

/// What an optimizer remembers of one parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterState {
    /// Tensors by the optimizer's own names, such as `momentum.moment_1`.
    pub tensors: BTreeMap<String, TensorData>,
    /// Numbers by the optimizer's own names, such as `momentum.time`.
    pub numbers: BTreeMap<String, StateNumber>,
}

impl From<Scalar> for StateNumber {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Int(n) => Self::Int(n),
            Scalar::UInt(n) => Self::UInt(n),
            Scalar::Float(x) => Self::Float(x),
            Scalar::Bool(b) => Self::Bool(b),
        }
    }
}

impl From<StateNumber> for Scalar {
    fn from(number: StateNumber) -> Self {
        match number {
            StateNumber::Int(n) => Self::Int(n),
            StateNumber::UInt(n) => Self::UInt(n),
            StateNumber::Float(x) => Self::Float(x),
            StateNumber::Bool(b) => Self::Bool(b),
        }
    }
}

/// A failure of Burn's record.
fn record(error: impl Display) -> StateError {
    StateError::Record { problem: error.to_string() }
}

/// The state of every given parameter that has one, by name.
pub(super) fn save(
    optimizer: &ModuleOptimizer,
    parameters: &[(Described, ParamId)],
) -> Result<BTreeMap<String, ParameterState>, StateError> {
    let name = |(described, id): &(Described, ParamId)| (id.val().to_string(), described.name.clone());
    let names: BTreeMap<String, String> = parameters.iter().map(name).collect();
    // Burn names what belongs to a parameter `id.field`.
    let place = |full: &str| {
        let (id, field) = full.split_once('.')?;
        Some((names.get(id)?.clone(), field.to_owned()))
    };
    let mut states: BTreeMap<String, ParameterState> = BTreeMap::new();
    let reader = Reader::from_bytes(optimizer.to_record().into_bytes().map_err(record)?).map_err(record)?;
    for (full, number) in reader.scalars().clone() {
        if let Some((name, field)) = place(&full).filter(|(_, field)| field != RANK_KEY) {
            states.entry(name).or_default().numbers.insert(field, number.into());
        }
    }
    for tensor in reader.into_tensors().map_err(record)? {
        let (full, dtype, shape, _, bytes) = tensor.into_parts().map_err(record)?;
        if let Some((name, field)) = place(&full) {
            let data = TensorData::try_from_bytes(bytes, shape, dtype).map_err(record)?;
            states.entry(name).or_default().tensors.insert(field, data);
        }
    }
    Ok(states)
}

/// The optimizer with the saved state of the given parameters; those of other names are passed over, and
/// parameters without one begin anew.
pub(super) fn load(
    optimizer: &ModuleOptimizer,
    states: BTreeMap<String, ParameterState>,
    parameters: &[(Described, ParamId)],
) -> Result<ModuleOptimizer, StateError> {
    let here: BTreeMap<&str, &(Described, ParamId)> =
        parameters.iter().map(|parameter| (parameter.0.name.as_str(), parameter)).collect();
    let (mut tensors, mut numbers, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for (name, state) in states {
        let Some((described, id)) = here.get(name.as_str()) else { continue };
        let id = id.val();
        for (field, data) in state.tensors {
            let (bytes, shape, dtype) = data.into_parts();
            tensors.push(Tensor::new(format!("{id}.{field}"), dtype, shape, Some(id), bytes));
        }
        numbers.extend(
            state.numbers.into_iter().map(|(field, number)| (format!("{id}.{field}"), number.into())),
        );
        numbers.push((format!("{id}.{RANK_KEY}"), Scalar::from(described.dimensions)));
        paths.push((id.to_string(), name));
    }
    let writer = Writer::new(tensors);
    let writer = numbers.iter().fold(writer, |writer, (key, number)| writer.with_scalar(key, *number));
    let writer = paths.iter().fold(writer, |writer, (id, name)| writer.with_metadata(id, name));
    let record_of = OptimizerRecord::from_bytes(writer.into_bytes().map_err(record)?).map_err(record)?;
    Ok(optimizer.clone().load_record(record_of))
}
