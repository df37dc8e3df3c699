//! The messages that a peer sends to this rank, in its order, read off the peer's own row.

use brigade_topology::{PipeRank, Placement, Stage};

use crate::action::{Action, Compute, ComputeKind, MessageKind, MicroBatch, Visit};

/// A message as its receiver sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Incoming {
    pub(crate) kind: MessageKind,
    pub(crate) stage: Stage,
    pub(crate) micro_batch: MicroBatch,
}

/// A walk over the row of a peer that stops at each message to `to`.
#[derive(Debug)]
pub(crate) struct Peer<R> {
    pub(crate) rank: PipeRank,
    row: R,
    second: Option<Compute>,
}

impl<R: Iterator<Item = Action>> Peer<R> {
    pub(crate) fn new(rank: PipeRank, row: R) -> Self {
        Self { rank, row, second: None }
    }

    pub(crate) fn next_message(&mut self, placement: Placement, to: PipeRank) -> Option<Incoming> {
        loop {
            let compute = match self.second.take() {
                Some(compute) => compute,
                None => {
                    let action = self.row.next()?;
                    let mut computes = action.computes();
                    let Some(first) = computes.next() else { continue };
                    self.second = computes.next();
                    first
                }
            };
            let message = outgoing(compute);
            let receiver = |message: &Incoming| {
                Visit { stage: message.stage, micro_batch: message.micro_batch }.rank_in(placement)
            };
            if let Some(message) = message.filter(|message| receiver(message) == Ok(to)) {
                return Some(message);
            }
        }
    }
}

/// The message that follows `compute`, addressed to the neighbouring stage, which may not exist.
fn outgoing(compute: Compute) -> Option<Incoming> {
    let Compute { kind, stage, micro_batch } = compute;
    match kind {
        ComputeKind::Forward => {
            let stage = Stage(stage.0.checked_add(1)?);
            Some(Incoming { kind: MessageKind::RecvActivation, stage, micro_batch })
        }
        ComputeKind::Backward | ComputeKind::InputGrad => {
            let stage = Stage(stage.0.checked_sub(1)?);
            Some(Incoming { kind: MessageKind::RecvGrad, stage, micro_batch })
        }
        ComputeKind::WeightGrad => None,
    }
}
