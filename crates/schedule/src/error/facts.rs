//! What the errors of the checker speak of: messages, needs, and what a rank waits for.

use std::fmt;

use brigade_topology::{PipeRank, Stage};

use crate::action::MicroBatch;
use crate::instruction::Instruction;

/// A message as both of its ends know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Envelope {
    /// The input of stage `to`.
    Activation {
        /// The stage that takes it.
        to: Stage,
        /// The micro-batch that it belongs to.
        micro_batch: MicroBatch,
    },
    /// The gradient of the output of stage `to`.
    Grad {
        /// The stage that takes it.
        to: Stage,
        /// The micro-batch that it belongs to.
        micro_batch: MicroBatch,
    },
}

impl fmt::Display for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activation { to, micro_batch } => {
                write!(f, "activation of micro-batch {micro_batch} for stage {to}")
            }
            Self::Grad { to, micro_batch } => {
                write!(f, "gradient of micro-batch {micro_batch} for stage {to}")
            }
        }
    }
}

/// What a rank waits for when nothing goes on any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The rank that waits.
    pub rank: PipeRank,
    /// Index of the instruction in its stream.
    pub position: usize,
    /// The send or receive that does not end.
    pub instruction: Instruction,
    /// The rank at its other end.
    pub waits_for: PipeRank,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, position, instruction, waits_for } = self;
        write!(f, "rank {rank} at {position}: {} waits for rank {waits_for}", Described(instruction))
    }
}

/// An instruction with stage and micro-batch, for messages.
pub(super) struct Described<'a>(pub(super) &'a Instruction);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.visit() {
            Some((stage, micro_batch, buffer)) => {
                write!(f, "{} of stage {stage}, micro-batch {micro_batch}, buffer {buffer}", self.0.name())
            }
            None => write!(f, "{}", self.0),
        }
    }
}

/// Something that an instruction needs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// The stage's input: loaded, received or handed over.
    Input,
    /// The targets of the loss, on the last stage.
    Targets,
    /// The forward pass.
    Forward,
    /// The gradient of the stage's output: received or handed over.
    OutputGrad,
    /// The gradient of the stage's input: a backward pass or its first half.
    InputGrad,
    /// The stage's weights gathered, where the plan gathers them at all.
    Unshard,
    /// The start of the reduction of the stage's gradients.
    ReduceGrad,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "the input",
            Self::Targets => "the targets",
            Self::Forward => "the forward pass",
            Self::OutputGrad => "the gradient of the output",
            Self::InputGrad => "the gradient of the input",
            Self::Unshard => "the stage's weights gathered",
            Self::ReduceGrad => "the reduction of the stage's gradients begun",
        })
    }
}

/// Something that is still to be done to a micro-batch at a stage when its rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Missing {
    /// The forward pass.
    Forward,
    /// The backward pass, or its first half.
    Backward,
    /// The second half of a split backward pass.
    WeightGrad,
    /// Handing the output to the next stage.
    Output,
    /// Handing the gradient to the previous stage.
    Grad,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "a forward pass",
            Self::Backward => "a backward pass",
            Self::WeightGrad => "a weight gradient",
            Self::Output => "a send of its output",
            Self::Grad => "a send of its input's gradient",
        })
    }
}
