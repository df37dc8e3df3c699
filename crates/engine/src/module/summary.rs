//! How many parameters a model has, and where: the same on every rank.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

use brigade_partition::Cuts;
use brigade_topology::Stage;
use serde::{Deserialize, Serialize};

use crate::layers::LayerSpec;
use crate::reduce::{Groups, ParameterInfo, Place};

/// Numbers of parameters.
///
/// # Units
/// Parameters are counted in numbers, not tensors; memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterCount {
    /// Those that a step changes.
    pub n_trainable: u64,
    /// Those that keep their values: frozen ones, and running statistics.
    pub n_frozen: u64,
    /// Memory of both, without gradients and optimizer state.
    pub bytes: u64,
}

impl ParameterCount {
    /// All parameters.
    #[must_use]
    pub fn n_parameters(self) -> u64 {
        self.n_trainable.saturating_add(self.n_frozen)
    }

    /// One parameter; a copy is trained or frozen as its owner is.
    fn of(info: &ParameterInfo, owner: &ParameterInfo) -> Self {
        let n = info.n_elements();
        let (n_trainable, n_frozen) = if owner.is_trainable { (n, 0) } else { (0, n) };
        Self { n_trainable, n_frozen, bytes: n.saturating_mul(info.element_bytes) }
    }
}

impl AddAssign for ParameterCount {
    fn add_assign(&mut self, other: Self) {
        self.n_trainable = self.n_trainable.saturating_add(other.n_trainable);
        self.n_frozen = self.n_frozen.saturating_add(other.n_frozen);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl Sum for ParameterCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut total, count| {
            total += count;
            total
        })
    }
}

/// The parameters of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSummary {
    /// Global index.
    pub layer: usize,
    /// Its name, if the list gives it one.
    pub name: Option<String>,
    /// Name of its type.
    pub type_name: String,
    /// The stage that holds it.
    pub stage: Stage,
    /// All of its parameters.
    pub parameters: ParameterCount,
    /// Those that it owns: without the copies of a parameter that an earlier layer owns.
    pub unique: ParameterCount,
}

/// The parameters of one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSummary {
    /// The stage.
    pub stage: Stage,
    /// Number of its layers.
    pub n_layers: usize,
    /// All of its parameters: what a rank that holds it keeps in memory.
    pub parameters: ParameterCount,
    /// Those that it owns: without the copies of a parameter that an earlier layer owns.
    pub unique: ParameterCount,
}

/// The parameters of a model, by layer and by stage.
///
/// A parameter that several layers share counts in the layer that owns it as unique, and in every layer
/// as a parameter. Replicas of the pipeline count once. Shown as a table of the stages, and with `{:#}`
/// as one of the layers.
///
/// # Examples
/// ```
/// use brigade_engine::{EngineError, Layers, PipelineModule, World};
/// use burn::nn::LinearConfig;
/// use burn::tensor::Tensor;
///
/// let summaries = World::local(2)?.run(|rank| {
///     let layers = (0..4).fold(Layers::<Tensor<2>, Tensor<2>>::new(), |layers, _| {
///         layers.with(|d| LinearConfig::new(3, 3).init(d), |linear, x| linear.forward(x))
///     });
///     let module = PipelineModule::builder(&layers, |y, t: Tensor<2>| (y - t).mean()).build(&rank)?;
///     Ok::<_, EngineError>(module.summary().clone())
/// })?;
/// assert_eq!(summaries[0], summaries[1]);
/// assert_eq!(summaries[0].total.n_trainable, 4 * (3 * 3 + 3));
/// assert_eq!(
///     summaries[0].to_string(),
///     "\
/// stage  layers  parameters  trainable  frozen  unique  bytes
///     0       2          24         24       0      24     96
///     1       2          24         24       0      24     96
/// total       4          48         48       0      48    192
/// "
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSummary {
    /// Every layer, in order.
    pub layers: Vec<LayerSummary>,
    /// Every stage, in order.
    pub stages: Vec<StageSummary>,
    /// All parameters, the copies of shared ones included.
    pub total: ParameterCount,
    /// All parameters, a shared one once.
    pub unique: ParameterCount,
}

impl ModuleSummary {
    pub(super) fn new(
        specs: &[LayerSpec],
        parameters: &[Vec<ParameterInfo>],
        groups: &Groups,
        cuts: &Cuts,
        n_stages: u32,
    ) -> Self {
        let mut layers: Vec<LayerSummary> = Vec::with_capacity(specs.len());
        let mut stages = Vec::new();
        for stage in (0..n_stages).map(Stage) {
            let range = cuts.stage(stage.index());
            stages.push(StageSummary {
                stage,
                n_layers: range.len(),
                parameters: ParameterCount::default(),
                unique: ParameterCount::default(),
            });
            layers.extend(range.map(|layer| LayerSummary {
                layer,
                name: specs[layer].name().map(str::to_owned),
                type_name: specs[layer].type_name().to_owned(),
                stage,
                parameters: ParameterCount::default(),
                unique: ParameterCount::default(),
            }));
        }
        for group in groups.iter() {
            for (number, each) in group.uses.iter().enumerate() {
                let Place { layer, parameter } = each.place;
                let count = ParameterCount::of(&parameters[layer][parameter], &group.info);
                let stage = &mut stages[layers[layer].stage.index()];
                layers[layer].parameters += count;
                stage.parameters += count;
                if number == 0 {
                    layers[layer].unique += count;
                    stage.unique += count;
                }
            }
        }
        let total = stages.iter().map(|stage| stage.parameters).sum();
        let unique = stages.iter().map(|stage| stage.unique).sum();
        Self { layers, stages, total, unique }
    }
}

/// The columns after the first ones; all are numbers.
fn numbers(parameters: ParameterCount, unique: ParameterCount) -> [String; 5] {
    [
        parameters.n_parameters(),
        parameters.n_trainable,
        parameters.n_frozen,
        unique.n_parameters(),
        parameters.bytes,
    ]
    .map(|number| number.to_string())
}

const NUMBERS: [&str; 5] = ["parameters", "trainable", "frozen", "unique", "bytes"];

impl fmt::Display for ModuleSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
        let total = numbers(self.total, self.unique);
        if f.alternate() {
            let mut rows = vec![[words(&["layer", "name", "type", "stage"]), words(&NUMBERS)].concat()];
            for layer in &self.layers {
                let name = layer.name.clone().unwrap_or_default();
                let first = [layer.layer.to_string(), name, layer.type_name.clone(), layer.stage.to_string()];
                rows.push([&first[..], &numbers(layer.parameters, layer.unique)[..]].concat());
            }
            rows.push([&words(&["total", "", "", ""])[..], &total[..]].concat());
            table(f, &rows, 1..3)
        } else {
            let mut rows = vec![[words(&["stage", "layers"]), words(&NUMBERS)].concat()];
            for stage in &self.stages {
                let first = [stage.stage.to_string(), stage.n_layers.to_string()];
                rows.push([&first[..], &numbers(stage.parameters, stage.unique)[..]].concat());
            }
            let first = ["total".to_owned(), self.layers.len().to_string()];
            rows.push([&first[..], &total[..]].concat());
            table(f, &rows, 0..0)
        }
    }
}

/// Writes rows with columns of equal width, `texts` to the left and numbers to the right.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>], texts: std::ops::Range<usize>) -> fmt::Result {
    let n_columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    for row in rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            if texts.contains(&column) {
                write!(f, "{gap}{cell:<width$}")?;
            } else {
                write!(f, "{gap}{cell:>width$}")?;
            }
        }
        writeln!(f)?;
    }
    Ok(())
}
