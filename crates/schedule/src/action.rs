//! One cell of a plan: a computation, a message or a marker, with its stage and micro-batch.

use std::fmt;

use brigade_topology::{Direction, PipeRank, Placement, PlacementError, Stage};

/// Index of one equal piece of the batch of an optimizer step, from 0.
///
/// # Examples
/// ```
/// use brigade_schedule::MicroBatch;
/// assert_eq!(MicroBatch(3).to_string(), "3");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct MicroBatch(pub u32);

impl MicroBatch {
    /// The way that this micro-batch takes through a bidirectional placement: down if its number is even, up if
    /// it is odd.
    ///
    /// Parity needs no count of micro-batches, gives each direction half of them whatever their number, and
    /// starts both directions with the first micro-batches of a batch.
    ///
    /// # Examples
    /// ```
    /// use brigade_schedule::{Direction, MicroBatch};
    /// assert_eq!(MicroBatch(0).direction(), Direction::Down);
    /// assert_eq!(MicroBatch(1).direction(), Direction::Up);
    /// ```
    #[must_use]
    pub const fn direction(self) -> Direction {
        if self.0.is_multiple_of(2) { Direction::Down } else { Direction::Up }
    }
}

impl fmt::Display for MicroBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a stage computes for a micro-batch.
///
/// A backward pass is either whole (`Backward`) or split into `InputGrad`, which lets the previous stage go
/// on, and `WeightGrad`, which may run at any later time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum ComputeKind {
    /// `F`: the forward pass.
    Forward,
    /// `B`: the full backward pass.
    Backward,
    /// `I`: the gradient with respect to the stage's input.
    InputGrad,
    /// `W`: the gradient with respect to the stage's weights.
    WeightGrad,
}

impl ComputeKind {
    /// The letter of this kind in the text form.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::InputGrad => 'I',
            Self::WeightGrad => 'W',
        }
    }
}

/// One computation: what, of which stage, for which micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Compute {
    /// What is computed.
    pub kind: ComputeKind,
    /// The stage that computes.
    pub stage: Stage,
    /// The micro-batch that it computes for.
    pub micro_batch: MicroBatch,
}

impl Compute {
    /// The forward pass of `stage` for `micro_batch`.
    #[must_use]
    pub const fn forward(stage: Stage, micro_batch: MicroBatch) -> Self {
        Self { kind: ComputeKind::Forward, stage, micro_batch }
    }

    /// The full backward pass of `stage` for `micro_batch`.
    #[must_use]
    pub const fn backward(stage: Stage, micro_batch: MicroBatch) -> Self {
        Self { kind: ComputeKind::Backward, stage, micro_batch }
    }

    /// The input gradient of `stage` for `micro_batch`.
    #[must_use]
    pub const fn input_grad(stage: Stage, micro_batch: MicroBatch) -> Self {
        Self { kind: ComputeKind::InputGrad, stage, micro_batch }
    }

    /// Stage and micro-batch of this computation.
    #[must_use]
    pub const fn visit(self) -> Visit {
        Visit { stage: self.stage, micro_batch: self.micro_batch }
    }

    /// The weight gradient of `stage` for `micro_batch`.
    #[must_use]
    pub const fn weight_grad(stage: Stage, micro_batch: MicroBatch) -> Self {
        Self { kind: ComputeKind::WeightGrad, stage, micro_batch }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage.0, self.kind.letter(), self.micro_batch)
    }
}

/// A micro-batch at a stage, without saying what is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Visit {
    /// The stage.
    pub stage: Stage,
    /// The micro-batch.
    pub micro_batch: MicroBatch,
}

impl Visit {
    /// The rank that runs this visit: that of the stage, where a stage lives on one rank; in a bidirectional
    /// placement the holder of the stage that lies in the micro-batch's [direction](MicroBatch::direction).
    ///
    /// # Errors
    /// [`PlacementError::StageOutOfRange`] for a stage that the placement does not have.
    ///
    /// # Examples
    /// ```
    /// use brigade_schedule::{MicroBatch, PipeRank, Placement, Stage, Visit};
    /// let both = Placement::bidirectional(4)?;
    /// let visit = |micro_batch| Visit { stage: Stage(1), micro_batch: MicroBatch(micro_batch) };
    /// assert_eq!((visit(4).rank_in(both)?, visit(5).rank_in(both)?), (PipeRank(1), PipeRank(2)));
    /// assert_eq!(visit(5).rank_in(Placement::linear(4)?)?, PipeRank(1));
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn rank_in(self, placement: Placement) -> Result<PipeRank, PlacementError> {
        placement.rank_towards(self.stage, self.micro_batch.direction())
    }
}

/// Direction and content of a message, seen from the stage that sends or receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum MessageKind {
    /// `SEND_F`: this stage's output goes to the next stage.
    SendActivation,
    /// `RECV_F`: this stage's input comes from the previous stage.
    RecvActivation,
    /// `SEND_B`: the gradient of this stage's input goes to the previous stage.
    SendGrad,
    /// `RECV_B`: the gradient of this stage's output comes from the next stage.
    RecvGrad,
}

impl MessageKind {
    /// The word of this kind in the text form.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::SendActivation => "SEND_F",
            Self::RecvActivation => "RECV_F",
            Self::SendGrad => "SEND_B",
            Self::RecvGrad => "RECV_B",
        }
    }
}

/// A note to the run-time about a stage's weights or gradients where they are sharded or reduced over replicas; no
/// named schedule has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum MarkerKind {
    /// `UNSHARD`: gather the stage's sharded weights.
    Unshard,
    /// `RESHARD`: let go of the gathered weights.
    Reshard,
    /// `REDUCE_GRAD`: start the reduction of the stage's gradients over the replicas.
    ReduceGrad,
    /// `WAIT_REDUCE_GRAD`: wait for that reduction.
    WaitReduceGrad,
}

impl MarkerKind {
    /// The word of this kind in the text form.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unshard => "UNSHARD",
            Self::Reshard => "RESHARD",
            Self::ReduceGrad => "REDUCE_GRAD",
            Self::WaitReduceGrad => "WAIT_REDUCE_GRAD",
        }
    }
}

/// One cell of a plan.
///
/// The text form is that of `torch.distributed.pipelining`: `0F1`, `2I3`, `1SEND_F0`, `0UNSHARD`,
/// `(0F1;1B0)OVERLAP_F_B`. PyTorch has no words for loads and the end of a batch; ours are `0LOAD1`,
/// `0REDUCE_COPIES`, `REDUCE_TIED_GRADS`, `REDUCE_GRADS` and `OPTIMIZER_STEP`.
///
/// # Examples
/// ```
/// use brigade_schedule::{Action, Compute, MicroBatch, Stage};
/// let action: Action = "2I3".parse()?;
/// assert_eq!(action, Action::Compute(Compute::input_grad(Stage(2), MicroBatch(3))));
/// assert_eq!("(0F1;1B0)OVERLAP_F_B".parse::<Action>()?.to_string(), "(0F1;1B0)OVERLAP_F_B");
/// # Ok::<(), brigade_schedule::ActionParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Action {
    /// One computation.
    Compute(Compute),
    /// A forward and a full backward pass that the run-time may interleave as it likes; the forward pass is
    /// named first and starts first.
    Overlap {
        /// The visit that goes forward.
        forward: Visit,
        /// The visit that goes backward.
        backward: Visit,
    },
    /// A message, placed by hand: a plan without any leaves the placing to `lower`.
    Message {
        /// What is sent or received.
        kind: MessageKind,
        /// The stage that sends or receives, on this rank.
        stage: Stage,
        /// The micro-batch that the message belongs to.
        micro_batch: MicroBatch,
    },
    /// `WAIT_SEND_F`, `WAIT_SEND_B`: wait until a send has left. Sends of an instruction stream have left
    /// when they return, so `lower` drops it.
    WaitSend {
        /// `SendActivation` or `SendGrad`.
        kind: SendKind,
        /// The stage that sent.
        stage: Stage,
        /// The micro-batch that was sent.
        micro_batch: MicroBatch,
    },
    /// A note about a stage.
    Marker {
        /// The note.
        kind: MarkerKind,
        /// The stage that it is about.
        stage: Stage,
    },
    /// `0LOAD3`: takes a micro-batch from the data, placed by hand: a plan without any leaves the placing to
    /// `lower`. The first stage loads the inputs, the last one the targets.
    Load {
        /// First or last stage.
        stage: Stage,
        /// The micro-batch.
        micro_batch: MicroBatch,
    },
    /// `0REDUCE_COPIES`: sums the gradients of a stage over the two ranks that hold it.
    ///
    /// A plan that places this or one of the next three steps itself places all of them; else `lower` adds them.
    ReduceCopies {
        /// The stage.
        stage: Stage,
    },
    /// `REDUCE_TIED_GRADS`: sums the gradients of weights that several stages share.
    ReduceTiedGrads,
    /// `REDUCE_GRADS`: reduces the gradients of all stages over the replicas.
    ReduceGrads,
    /// `OPTIMIZER_STEP`: updates the weights.
    OptimizerStep,
}

/// Which of the two sends of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum SendKind {
    /// The activation, to the next stage.
    Activation,
    /// The gradient, to the previous stage.
    Grad,
}

impl Action {
    /// The one or two computations of this action, in order.
    pub fn computes(&self) -> impl Iterator<Item = Compute> + use<> {
        let (first, second) = match *self {
            Self::Compute(compute) => (Some(compute), None),
            Self::Overlap { forward, backward } => (
                Some(Compute::forward(forward.stage, forward.micro_batch)),
                Some(Compute::backward(backward.stage, backward.micro_batch)),
            ),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Whether this is one of the steps at the end of a batch, which `lower` adds to a plan that has none.
    #[must_use]
    pub const fn ends_batch(&self) -> bool {
        matches!(
            self,
            Self::ReduceCopies { .. } | Self::ReduceTiedGrads | Self::ReduceGrads | Self::OptimizerStep
        )
    }
}

impl From<Compute> for Action {
    fn from(compute: Compute) -> Self {
        Self::Compute(compute)
    }
}
