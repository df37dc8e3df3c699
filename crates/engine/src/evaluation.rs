//! What an evaluation is asked for, and what it gives.

use crate::data::Merge;
use crate::report::EvalReport;

/// What to do in an evaluation besides the loss; give every rank the same.
///
/// # Examples
/// ```
/// use brigade_engine::{EvalOptions, Merge, OutputsOn};
///
/// let options = EvalOptions::new()
///     .micro_batches(4)
///     .outputs_merged(Merge::Concatenate)
///     .outputs_on(OutputsOn::LastStage);
/// assert_eq!(options.n_micro_batches, Some(4));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvalOptions {
    /// Micro-batches of each replica; as many as in training if unset.
    pub n_micro_batches: Option<u32>,
    /// In which form outputs are kept; not at all if unset.
    pub outputs: Option<Outputs>,
    /// Which ranks get them.
    pub on: OutputsOn,
}

/// The form of the outputs of several micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outputs {
    /// One for each micro-batch.
    List,
    /// One for all of them.
    Merged(Merge),
}

/// Which ranks get the outputs of an evaluation. The loss is the same on all of them in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputsOn {
    /// All, with the outputs of all replicas.
    #[default]
    EveryRank,
    /// Those that hold the last stage, each with what it has computed itself: nothing travels.
    LastStage,
}

impl Outputs {
    pub(crate) fn merge(self) -> Option<Merge> {
        match self {
            Self::List => None,
            Self::Merged(how) => Some(how),
        }
    }
}

impl EvalOptions {
    /// The loss on as many micro-batches as in training, without outputs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of micro-batches of each replica.
    #[must_use]
    pub fn micro_batches(mut self, n_micro_batches: u32) -> Self {
        self.n_micro_batches = Some(n_micro_batches);
        self
    }

    /// Keeps the outputs, one for each micro-batch.
    #[must_use]
    pub fn outputs_as_list(mut self) -> Self {
        self.outputs = Some(Outputs::List);
        self
    }

    /// Keeps the outputs, put together to one.
    #[must_use]
    pub fn outputs_merged(mut self, how: Merge) -> Self {
        self.outputs = Some(Outputs::Merged(how));
        self
    }

    /// Sets which ranks get outputs.
    #[must_use]
    pub fn outputs_on(mut self, on: OutputsOn) -> Self {
        self.on = on;
        self
    }
}

/// The loss of an evaluation, and the outputs that were asked for.
#[derive(Clone, Debug)]
pub struct Evaluation<O> {
    /// Loss and metrics, equal on every rank.
    pub report: EvalReport,
    /// Empty when none were asked for, or not on this rank; a list of one when they are merged.
    pub outputs: Vec<O>,
}
