//! What crosses a stage boundary: self-describing, without any autodiff graph.

use std::fmt;

use brigade_schedule::{Instruction, MicroBatch};
use brigade_topology::Stage;
use brigade_wire::{Leaf, Metadata, Tree, UnflattenError, flatten, unflatten};

use crate::tensor::{AnyTensor, LeafRole};

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// Activations, to the next stage.
    Forward,
    /// Gradients, to the stage before.
    Backward,
    /// Gradients of parameters, to the rank that adds them up.
    Gradients,
    /// Their sums, to the ranks that update the parameters.
    Totals,
    /// New values of parameters, to the ranks that hold copies.
    Values,
    /// The targets of a batch, to the last stage.
    Targets,
    /// What the loss function returned beside the loss, to every rank.
    Metrics,
}

/// What a message is: the stage that produced it, the micro-batch and the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) stage: Stage,
    pub(crate) micro_batch: MicroBatch,
    pub(crate) direction: Direction,
}

impl Tag {
    /// The tag of a message at the end of a batch, which belongs to no stage and no micro-batch.
    pub(crate) fn parcel(direction: Direction) -> Self {
        Self { stage: Stage(0), micro_batch: MicroBatch(0), direction }
    }

    /// What the message of a receive must be: activations come from the stage before, gradients from the
    /// next.
    pub(crate) fn expected(instruction: &Instruction) -> Option<Self> {
        match *instruction {
            Instruction::RecvActivation { stage, micro_batch, .. } => {
                let stage = Stage(stage.0.checked_sub(1)?);
                Some(Self { stage, micro_batch, direction: Direction::Forward })
            }
            Instruction::RecvGrad { stage, micro_batch, .. } => {
                let stage = Stage(stage.0.checked_add(1)?);
                Some(Self { stage, micro_batch, direction: Direction::Backward })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.direction {
            Direction::Forward => "activations",
            Direction::Backward => "gradients",
            Direction::Gradients => return f.write_str("gradients of parameters"),
            Direction::Totals => return f.write_str("summed gradients of parameters"),
            Direction::Targets => return f.write_str("the targets of a batch"),
            Direction::Metrics => return f.write_str("metrics"),
            Direction::Values => return f.write_str("new values of parameters"),
        };
        write!(f, "{what} of stage {}, micro-batch {}", self.stage, self.micro_batch)
    }
}

/// A tensor on its way, and whether its sender wants a gradient back.
#[derive(Clone, Debug)]
pub(crate) struct BoundaryTensor {
    pub(crate) tensor: AnyTensor,
    pub(crate) role: LeafRole,
}

/// One message: structure and data of one boundary for one micro-batch.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) tag: Tag,
    metadata: Metadata,
    leaves: Vec<Leaf<BoundaryTensor>>,
}

impl Message {
    /// Flattens a stage's output; returns beside the message the tracked tensors in message order,
    /// which stay on this rank for the backward.
    pub(crate) fn activations(tag: Tag, output: Tree<AnyTensor>) -> (Self, Vec<AnyTensor>) {
        let mut tracked = Vec::new();
        let tree = output.map(|tensor: AnyTensor| {
            let role = if tensor.is_tracked() {
                tracked.push(tensor.clone());
                LeafRole::GradientWanted
            } else {
                LeafRole::Constant
            };
            BoundaryTensor { tensor: tensor.detached(), role }
        });
        let (metadata, leaves) = flatten(tree);
        (Self { tag, metadata, leaves }, tracked)
    }

    /// One gradient, or an explicit none, for each tensor of an activation message that wanted one.
    pub(crate) fn gradients(tag: Tag, gradients: Vec<Option<AnyTensor>>) -> Self {
        let items = gradients
            .into_iter()
            .map(|gradient| match gradient {
                Some(tensor) => {
                    Tree::Tensor(BoundaryTensor { tensor: tensor.detached(), role: LeafRole::Constant })
                }
                None => Tree::None,
            })
            .collect();
        let (metadata, leaves) = flatten(Tree::List(items));
        Self { tag, metadata, leaves }
    }

    /// Rebuilds the tree, each tensor with what its sender wants.
    pub(crate) fn into_tree(self) -> Result<Tree<BoundaryTensor>, UnflattenError> {
        unflatten(&self.metadata, self.leaves)
    }

    /// The gradients in order; `None` in place of the list when the message is of another structure.
    pub(crate) fn into_gradients(self) -> Result<Option<Vec<Option<AnyTensor>>>, UnflattenError> {
        let Tree::List(items) = self.into_tree()? else {
            return Ok(None);
        };
        let gradients = items.into_iter().map(|item| match item {
            Tree::Tensor(boundary) => Some(Some(boundary.tensor)),
            Tree::None => Some(None),
            _ => None,
        });
        Ok(gradients.collect())
    }
}
