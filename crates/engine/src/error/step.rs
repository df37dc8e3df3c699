//! What can go wrong in a step, and where.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use brigade_schedule::{CostError, MicroBatch};
use brigade_topology::{Rank, Stage};
use brigade_wire::UnflattenError;

use crate::data::{MergeError, SplitError};

use super::{BuildError, TensorError, ValueError, panic_message};
use crate::layer::LayerLabel;

/// Where in the pipeline something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The rank.
    pub rank: Rank,
    /// The stage, when an instruction of one was running.
    pub stage: Option<Stage>,
    /// The micro-batch, when an instruction of one was running.
    pub micro_batch: Option<MicroBatch>,
    /// The instruction as text, or the name of the phase of the step.
    pub instruction: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(stage) = self.stage {
            write!(f, ", stage {stage}")?;
        }
        if let Some(micro_batch) = self.micro_batch {
            write!(f, ", micro-batch {micro_batch}")?;
        }
        write!(f, ", {}", self.instruction)
    }
}

/// The first failure of a step: the same on every rank, whichever of them failed.
#[derive(Clone, Debug)]
pub struct StepError(Arc<(Site, Cause)>);

impl StepError {
    pub(crate) fn new(site: Site, cause: Cause) -> Self {
        Self(Arc::new((site, cause)))
    }

    /// Where it happened.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.0.0
    }

    /// What happened.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.1
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.site(), self.cause())
    }
}

impl std::error::Error for StepError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.cause())
    }
}

/// What stopped a step.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// A layer returned an error.
    #[error("{layer} failed: {message}")]
    LayerFailed {
        /// The layer.
        layer: LayerLabel,
        /// The layer's own error.
        source: Arc<dyn std::error::Error + Send + Sync>,
        /// The same as text.
        message: String,
    },
    /// A layer panicked in its forward.
    #[error("{layer} panicked: {message}")]
    LayerPanicked {
        /// The layer.
        layer: LayerLabel,
        /// The panic's message.
        message: String,
    },
    /// A layer was given a value of another type, or gave one that cannot be carried.
    #[error("{layer} and the value at its {end} do not fit: {source}")]
    LayerValue {
        /// The layer.
        layer: LayerLabel,
        /// `input` or `output`.
        end: &'static str,
        /// What does not fit.
        source: ValueError,
    },
    /// A user's function panicked.
    #[error("{what} panicked: {message}")]
    Panicked {
        /// Which function: the loss, the data source, the backward pass, the optimizer, an observer.
        what: &'static str,
        /// The panic's message.
        message: String,
    },
    /// The loss function's inputs do not fit.
    #[error("the {what} does not fit the loss function: {source}")]
    LossValue {
        /// `output` or `target`.
        what: &'static str,
        /// What does not fit.
        source: ValueError,
    },
    /// A value from the data, or for the caller, is not of its type.
    #[error("the {what} cannot be carried: {source}")]
    DataValue {
        /// `input or target`, or `output`.
        what: &'static str,
        /// What does not fit.
        source: ValueError,
    },
    /// The loss is not one number.
    #[error("the loss has {elements} elements: reduce it to one, for instance by a mean")]
    LossShape {
        /// Number of elements.
        elements: usize,
    },
    /// The normaliser needs a weight that the loss function did not return.
    #[error(
        "the loss function returned no weight, which the normaliser is to use: return `Loss::new(..).weight(..)`"
    )]
    NoWeight,
    /// A weight that is negative or no number.
    #[error("the loss function returned the weight {weight}: give a finite number of at least 0")]
    LossWeight {
        /// The weight.
        weight: f64,
    },
    /// No micro-batch of a step or an evaluation counts.
    #[error(
        "all weights of the batch are 0, so that its mean is over nothing: leave such batches out of the data"
    )]
    NothingCounts,
    /// A metric is not one number.
    #[error("metric `{name}` has {elements} elements: reduce it to one, for instance by a mean")]
    MetricShape {
        /// Its name.
        name: String,
        /// Number of elements.
        elements: usize,
    },
    /// The loss function gave two metrics one name.
    #[error("the loss function returned two metrics `{name}`: give each its own name")]
    MetricTwice {
        /// The name.
        name: String,
    },
    /// A metric is put together one way in one micro-batch and otherwise in another.
    #[error("metric `{name}` is a mean, a sum or a list in one micro-batch and another of them in the next")]
    MetricDiffers {
        /// Its name.
        name: String,
    },
    /// The data ended inside a batch.
    #[error(
        "the data ended inside a batch: {found} of {wanted} micro-batches; give whole batches or drop the rest"
    )]
    DataEnded {
        /// Micro-batches that a batch needs.
        wanted: usize,
        /// Micro-batches that there were.
        found: usize,
    },
    /// The ranks that feed the pipeline were given different amounts of data.
    #[error(
        "rank {other} has {there} micro-batches for this batch, this rank {here}: give every rank as many"
    )]
    DataDiffers {
        /// The other rank.
        other: Rank,
        /// Its number of micro-batches.
        there: usize,
        /// This rank's number of micro-batches.
        here: usize,
    },
    /// Two ranks of a pipeline were given micro-batches with other ids.
    #[error(
        "item {item} of the data is {} on rank {other} and {} on this rank: read the same samples in the same order on both",
        show_id(*there), show_id(*here)
    )]
    IdsDiffer {
        /// Number of the item in this call.
        item: usize,
        /// The other rank.
        other: Rank,
        /// Its id.
        there: Option<u64>,
        /// This rank's id.
        here: Option<u64>,
    },
    /// Two ranks of a pipeline were given micro-batches of other sizes.
    #[error(
        "item {item} of the data has {there} samples on rank {other} and {here} on this rank: read the same samples on both"
    )]
    SamplesDiffer {
        /// Number of the item in this call.
        item: usize,
        /// The other rank.
        other: Rank,
        /// Samples on that rank.
        there: u64,
        /// Samples on this rank.
        here: u64,
    },
    /// A mean over samples needs their number.
    #[error(
        "neither input nor target holds a tensor with samples, over which the normaliser is to take the mean"
    )]
    NoSamples,
    /// A batch cannot be cut into micro-batches.
    #[error("the batch cannot be split: {0}")]
    Split(SplitError),
    /// Outputs cannot be put together.
    #[error("the outputs cannot be put together: {0}")]
    Merge(MergeError),
    /// The ranks called different functions, or with different numbers.
    #[error("this rank called {here}, rank {other} called {there}: every rank must make the same calls")]
    CallsDiffer {
        /// What this rank called.
        here: String,
        /// Another rank.
        other: Rank,
        /// What that rank called.
        there: String,
    },
    /// A message is not the one that the plan has at this place.
    #[error("expected {expected} from rank {peer}, received {found}: the ranks run different plans")]
    UnexpectedMessage {
        /// The sender.
        peer: Rank,
        /// What the plan says.
        expected: String,
        /// What came.
        found: String,
    },
    /// The structure of a message does not fit its tensors.
    #[error("a message from rank {peer} cannot be rebuilt: {source}")]
    Message {
        /// The sender.
        peer: Rank,
        /// What is wrong.
        source: UnflattenError,
    },
    /// A gradient does not fit its tensor.
    #[error("gradients do not fit the outputs of this stage: {0}")]
    Gradient(TensorError),
    /// An exclusive layer did not get its turn.
    #[error(
        "{layer} waited {waited:?} for the exclusive layers of other ranks: name fewer, or set a longer deadline"
    )]
    Busy {
        /// Which layer.
        layer: LayerLabel,
        /// How long it waited.
        waited: Duration,
    },
    /// Layers that ran again for the backward pass gave something else than the first time.
    #[error(
        "{layers} gave other outputs when they ran again: let them depend on their input only, or keep them out of recomputation"
    )]
    RecomputeDiffers {
        /// The layers that ran again together, from first to last.
        layers: String,
    },
    /// A stage gave back another number of gradients than it was asked for.
    #[error("rank {peer} sent {found} gradients for {expected} tensors")]
    GradientCount {
        /// The sender.
        peer: Rank,
        /// Number of tensors sent to it.
        expected: usize,
        /// Number of gradients that it sent.
        found: usize,
    },
    /// A peer ended its program while this rank waits for it.
    #[error(
        "rank {peer} has ended, this rank still waits for it to {what}: let every rank run the same steps"
    )]
    PeerEnded {
        /// The peer.
        peer: Rank,
        /// What this rank waits for.
        what: &'static str,
    },
    /// The rank's own program has ended.
    #[error("the program of this rank has ended: use its handle and its engine within `World::run` only")]
    ProgramEnded,
    /// A wait took longer than the deadline.
    #[error("nothing came from {peer} within {waited:?}: look at what it does, or set a longer deadline")]
    Deadline {
        /// Whom this rank waited for.
        peer: String,
        /// How long.
        waited: Duration,
    },
    /// A rank's program returned an error of its own or panicked.
    #[error("the program of this rank stopped: {message}")]
    ProgramStopped {
        /// Its error or panic message.
        message: String,
    },
    /// Two ranks built different things under one name.
    #[error(
        "the link from rank {from} to rank {to} was asked for {here} messages on one end, {there} on the other"
    )]
    LinkDiffers {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// Capacity that this rank asked for.
        here: usize,
        /// Capacity that the other rank asked for.
        there: usize,
    },
    /// Two copies of a parameter have different values.
    #[error(
        "`{parameter}` has other values on rank {rank} than on rank {other}: build layers from the given seed alone, and change weights on every rank alike"
    )]
    CopiesDiffer {
        /// Name of the parameter.
        parameter: String,
        /// The rank that differs.
        rank: Rank,
        /// The first rank that holds it.
        other: Rank,
    },
    /// A plan for this number of micro-batches cannot be made.
    #[error("no plan for {n_micro_batches} micro-batches: {source}")]
    Plan {
        /// Number of micro-batches.
        n_micro_batches: u32,
        /// What is wrong.
        source: Arc<BuildError>,
    },
    /// Gradients overflow at the least loss scale.
    #[error(
        "gradients overflow at the least loss scale, {scale}: the training diverges, or a layer needs more range than the precision has"
    )]
    LossScale {
        /// The scale.
        scale: f64,
    },
    /// The measured times cannot be replayed.
    #[error("the plan cannot be replayed with the measured times: {0}")]
    Replay(CostError),
}

fn show_id(id: Option<u64>) -> String {
    id.map_or("without an id".to_owned(), |id| format!("{id:#x}"))
}

/// Runs a user's function, whose panic becomes a cause that names it.
///
/// What a panic leaves half done is not used again: the failure ends the step on every rank.
pub(crate) fn guard<R>(what: &'static str, function: impl FnOnce() -> R) -> Result<R, Cause> {
    catch_unwind(AssertUnwindSafe(function))
        .map_err(|payload| Cause::Panicked { what, message: panic_message(payload.as_ref()) })
}
