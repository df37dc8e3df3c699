//! One step of a rank's instruction stream, with the buffer that it uses and the peer that it talks to.

use std::fmt;

use brigade_topology::{PipeRank, Stage};

use crate::action::{ComputeKind, MarkerKind, MicroBatch};

/// A slot of a rank that holds what one micro-batch keeps at one stage: its input, its output until that is
/// sent, and its gradients. Numbered from 0 on each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

impl BufferId {
    /// This id as an index into a slice; past every slice where the platform cannot address it.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which parts of a micro-batch a rank loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum LoadPart {
    /// The inputs of the first stage.
    Inputs,
    /// The targets of the loss, for the last stage.
    Targets,
    /// Both: the only stage is the first and the last.
    InputsAndTargets,
}

impl LoadPart {
    /// What `stage` of `n_stages` loads, if anything.
    #[must_use]
    pub fn of(stage: Stage, n_stages: u32) -> Option<Self> {
        let last = stage.0.checked_add(1) == Some(n_stages);
        match (stage.0 == 0, last) {
            (true, true) => Some(Self::InputsAndTargets),
            (true, false) => Some(Self::Inputs),
            (false, true) => Some(Self::Targets),
            (false, false) => None,
        }
    }
}

/// One step of a rank.
///
/// `stage` is always the stage of this rank that the step belongs to, `buffer` the slot that holds the
/// micro-batch at that stage. `Display` gives DeepSpeed's names, `ForwardPass(buffer_id=0)`.
///
/// # Examples
/// ```
/// use brigade_schedule::{BufferId, Instruction, MicroBatch, Stage};
/// let step = Instruction::ForwardPass { stage: Stage(0), micro_batch: MicroBatch(3), buffer: BufferId(1) };
/// assert_eq!(step.to_string(), "ForwardPass(buffer_id=1)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Instruction {
    /// Takes a micro-batch, or a part of one, from the data.
    LoadMicroBatch {
        /// First or last stage.
        stage: Stage,
        /// The micro-batch to load.
        micro_batch: MicroBatch,
        /// Where to put it.
        buffer: BufferId,
        /// Inputs, targets or both.
        part: LoadPart,
    },
    /// Runs the stage forward on the input in the buffer.
    ForwardPass {
        /// The stage to run.
        stage: Stage,
        /// The micro-batch in the buffer.
        micro_batch: MicroBatch,
        /// Holds the input, receives the output.
        buffer: BufferId,
    },
    /// Runs the whole backward pass: the input's and the weights' gradients.
    BackwardPass {
        /// The stage to run.
        stage: Stage,
        /// The micro-batch in the buffer.
        micro_batch: MicroBatch,
        /// Holds the output's gradient (the loss, on the last stage), receives the input's.
        buffer: BufferId,
    },
    /// Runs the first half of a split backward pass: the gradient of the input.
    InputGrad {
        /// The stage to run.
        stage: Stage,
        /// The micro-batch in the buffer.
        micro_batch: MicroBatch,
        /// As for [`Instruction::BackwardPass`]; keeps what the second half needs.
        buffer: BufferId,
    },
    /// Runs the second half of a split backward pass: the gradients of the weights.
    WeightGrad {
        /// The stage to run.
        stage: Stage,
        /// The micro-batch in the buffer.
        micro_batch: MicroBatch,
        /// Holds what the first half left.
        buffer: BufferId,
    },
    /// Sends the output in the buffer to the next stage.
    SendActivation {
        /// The stage that made the output.
        stage: Stage,
        /// The micro-batch in the buffer.
        micro_batch: MicroBatch,
        /// Holds the output.
        buffer: BufferId,
        /// The rank of the next stage.
        to: PipeRank,
    },
    /// Receives the previous stage's output as this stage's input.
    RecvActivation {
        /// The stage that will use it.
        stage: Stage,
        /// The micro-batch that arrives.
        micro_batch: MicroBatch,
        /// A free slot, occupied from here on.
        buffer: BufferId,
        /// The rank of the previous stage.
        from: PipeRank,
    },
    /// Sends the gradient of this stage's input to the previous stage.
    SendGrad {
        /// The stage that made the gradient.
        stage: Stage,
        /// The micro-batch in the buffer.
        micro_batch: MicroBatch,
        /// Holds the input's gradient.
        buffer: BufferId,
        /// The rank of the previous stage.
        to: PipeRank,
    },
    /// Receives the gradient of this stage's output from the next stage.
    RecvGrad {
        /// The stage that will use it.
        stage: Stage,
        /// The micro-batch that arrives.
        micro_batch: MicroBatch,
        /// The slot that the micro-batch occupies at this stage.
        buffer: BufferId,
        /// The rank of the next stage.
        from: PipeRank,
    },
    /// Gives this stage's output to the next stage on the same rank, as its input: no message.
    HandOverActivation {
        /// The stage that made the output; the next stage takes it.
        stage: Stage,
        /// The micro-batch in both buffers.
        micro_batch: MicroBatch,
        /// Holds the output.
        buffer: BufferId,
        /// A free slot, occupied by the next stage from here on.
        to_buffer: BufferId,
    },
    /// Gives the gradient of this stage's input to the previous stage on the same rank: no message.
    HandOverGrad {
        /// The stage that made the gradient; the previous stage takes it.
        stage: Stage,
        /// The micro-batch in both buffers.
        micro_batch: MicroBatch,
        /// Holds the input's gradient.
        buffer: BufferId,
        /// The slot that the micro-batch occupies at the previous stage.
        to_buffer: BufferId,
    },
    /// Does to a stage's sharded weights, or to its gradients over replicas, what a marker of the plan says.
    Marker {
        /// What is done.
        kind: MarkerKind,
        /// The stage.
        stage: Stage,
    },
    /// Sums the gradients of a stage's weights over the two ranks of a bidirectional placement that hold it:
    /// in the order of the ranks, and on both, so that both copies go on equal. Weights that are tied to those
    /// of another stage are left to [`Instruction::ReduceTiedGrads`], which sums over every copy at once.
    ///
    /// The two ranks meet here: neither goes on before the other has come.
    ReduceCopies {
        /// The stage.
        stage: Stage,
    },
    /// Sums the gradients of weights that several stages share.
    ReduceTiedGrads,
    /// Reduces the gradients over the replicas of this stage.
    ReduceGrads,
    /// Updates the weights.
    OptimizerStep,
}

impl Instruction {
    /// The step that computes `kind`.
    #[must_use]
    pub const fn compute(kind: ComputeKind, stage: Stage, micro_batch: MicroBatch, buffer: BufferId) -> Self {
        match kind {
            ComputeKind::Forward => Self::ForwardPass { stage, micro_batch, buffer },
            ComputeKind::Backward => Self::BackwardPass { stage, micro_batch, buffer },
            ComputeKind::InputGrad => Self::InputGrad { stage, micro_batch, buffer },
            ComputeKind::WeightGrad => Self::WeightGrad { stage, micro_batch, buffer },
        }
    }

    /// DeepSpeed's name of this step; `InputGradPass`, `WeightGradPass`, `HandOverActivation`, `HandOverGrad`,
    /// `ReduceCopies` and the names of markers are ours.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::LoadMicroBatch { .. } => "LoadMicroBatch",
            Self::ForwardPass { .. } => "ForwardPass",
            Self::BackwardPass { .. } => "BackwardPass",
            Self::InputGrad { .. } => "InputGradPass",
            Self::WeightGrad { .. } => "WeightGradPass",
            Self::SendActivation { .. } => "SendActivation",
            Self::RecvActivation { .. } => "RecvActivation",
            Self::SendGrad { .. } => "SendGrad",
            Self::RecvGrad { .. } => "RecvGrad",
            Self::HandOverActivation { .. } => "HandOverActivation",
            Self::HandOverGrad { .. } => "HandOverGrad",
            Self::Marker { kind: MarkerKind::Unshard, .. } => "Unshard",
            Self::Marker { kind: MarkerKind::Reshard, .. } => "Reshard",
            Self::Marker { kind: MarkerKind::ReduceGrad, .. } => "ReduceGrad",
            Self::Marker { kind: MarkerKind::WaitReduceGrad, .. } => "WaitReduceGrad",
            Self::ReduceCopies { .. } => "ReduceCopies",
            Self::ReduceTiedGrads => "ReduceTiedGrads",
            Self::ReduceGrads => "ReduceGrads",
            Self::OptimizerStep => "OptimizerStep",
        }
    }

    /// The stage, micro-batch and buffer of this step; `None` for the steps that are of no micro-batch.
    #[must_use]
    pub const fn visit(&self) -> Option<(Stage, MicroBatch, BufferId)> {
        match *self {
            Self::LoadMicroBatch { stage, micro_batch, buffer, .. }
            | Self::ForwardPass { stage, micro_batch, buffer }
            | Self::BackwardPass { stage, micro_batch, buffer }
            | Self::InputGrad { stage, micro_batch, buffer }
            | Self::WeightGrad { stage, micro_batch, buffer }
            | Self::SendActivation { stage, micro_batch, buffer, .. }
            | Self::RecvActivation { stage, micro_batch, buffer, .. }
            | Self::SendGrad { stage, micro_batch, buffer, .. }
            | Self::RecvGrad { stage, micro_batch, buffer, .. }
            | Self::HandOverActivation { stage, micro_batch, buffer, .. }
            | Self::HandOverGrad { stage, micro_batch, buffer, .. } => Some((stage, micro_batch, buffer)),
            Self::Marker { .. }
            | Self::ReduceCopies { .. }
            | Self::ReduceTiedGrads
            | Self::ReduceGrads
            | Self::OptimizerStep => None,
        }
    }

    /// The stage of this step; `None` for the steps that all ranks take together at the end of a batch.
    #[must_use]
    pub const fn stage(&self) -> Option<Stage> {
        match (*self, self.visit()) {
            (Self::Marker { stage, .. } | Self::ReduceCopies { stage }, _) | (_, Some((stage, ..))) => {
                Some(stage)
            }
            _ => None,
        }
    }

    /// What this step computes, if it computes.
    #[must_use]
    pub const fn compute_kind(&self) -> Option<ComputeKind> {
        match self {
            Self::ForwardPass { .. } => Some(ComputeKind::Forward),
            Self::BackwardPass { .. } => Some(ComputeKind::Backward),
            Self::InputGrad { .. } => Some(ComputeKind::InputGrad),
            Self::WeightGrad { .. } => Some(ComputeKind::WeightGrad),
            _ => None,
        }
    }

    /// The rank that this step sends to.
    #[must_use]
    pub const fn sends_to(&self) -> Option<PipeRank> {
        match *self {
            Self::SendActivation { to, .. } | Self::SendGrad { to, .. } => Some(to),
            _ => None,
        }
    }

    /// The rank that this step receives from.
    #[must_use]
    pub const fn receives_from(&self) -> Option<PipeRank> {
        match *self {
            Self::RecvActivation { from, .. } | Self::RecvGrad { from, .. } => Some(from),
            _ => None,
        }
    }

    /// Whether all ranks take this step together, at the end of a batch.
    #[must_use]
    pub const fn is_collective(&self) -> bool {
        matches!(self, Self::ReduceTiedGrads | Self::ReduceGrads | Self::OptimizerStep)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.visit()) {
            (
                Self::HandOverActivation { to_buffer, .. } | Self::HandOverGrad { to_buffer, .. },
                Some((.., buffer)),
            ) => {
                write!(f, "{}(buffer_id={buffer}, to_buffer_id={to_buffer})", self.name())
            }
            (_, Some((.., buffer))) => write!(f, "{}(buffer_id={buffer})", self.name()),
            (Self::Marker { stage, .. } | Self::ReduceCopies { stage }, None) => {
                write!(f, "{}(stage={stage})", self.name())
            }
            (_, None) => write!(f, "{}()", self.name()),
        }
    }
}
