//! Lowering of what a row places itself: loads and messages.

use brigade_topology::{PipeRank, Stage};

use super::rank::{RankLowering, done};
use crate::action::{Action, Compute, ComputeKind, MessageKind, MicroBatch};
use crate::error::LowerError;
use crate::instruction::{Instruction, LoadPart};

impl<R: Iterator<Item = Action>, F: Fn(PipeRank) -> R> RankLowering<R, F> {
    /// Appends a load that the row itself places.
    pub(super) fn planned_load(
        &mut self,
        action: Action,
        stage: Stage,
        micro_batch: MicroBatch,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        let index = self.index(action, stage, micro_batch)?;
        let (rank, position) = (self.rank, self.position);
        let Some(part) = LoadPart::of(stage, self.n_stages) else {
            return Err(LowerError::NoData { rank, position, action, n_stages: self.n_stages });
        };
        if self.has(index, done::LOADED) || self.has(index, done::FORWARD) {
            return Err(LowerError::Repeated { rank, position, action });
        }
        self.done[index] |= done::LOADED;
        let buffer = if part == LoadPart::Targets { self.hold(index) } else { self.acquire(index) };
        out.push(Instruction::LoadMicroBatch { stage, micro_batch, buffer, part });
        Ok(())
    }

    /// Appends a message that the row itself places.
    pub(super) fn planned_message(
        &mut self,
        action: Action,
        kind: MessageKind,
        stage: Stage,
        micro_batch: MicroBatch,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        let index = self.index(action, stage, micro_batch)?;
        let neighbour = match kind {
            MessageKind::SendActivation | MessageKind::RecvGrad => self.next(stage, micro_batch),
            MessageKind::RecvActivation | MessageKind::SendGrad => self.previous(stage, micro_batch),
        };
        let (rank, position) = (self.rank, self.position);
        let Some((_, peer)) = neighbour.filter(|&(_, peer)| peer != rank) else {
            return Err(LowerError::NoPeer { rank, position, action });
        };
        let (flag, needs) = match kind {
            MessageKind::RecvActivation => (done::INPUT, None),
            MessageKind::SendActivation => (done::OUTPUT_LEFT, Some((done::FORWARD, ComputeKind::Forward))),
            MessageKind::RecvGrad => (done::OUTPUT_GRAD, Some((done::FORWARD, ComputeKind::Forward))),
            MessageKind::SendGrad => (done::GRAD_LEFT, Some((done::INPUT_GRAD, ComputeKind::InputGrad))),
        };
        if self.has(index, flag) {
            return Err(LowerError::Repeated { rank, position, action });
        }
        if let Some((_, kind)) = needs.filter(|&(needed, _)| !self.has(index, needed)) {
            return Err(self.too_early(action, Compute { kind, stage, micro_batch }.into()));
        }
        if kind == MessageKind::RecvActivation {
            self.acquire(index);
        }
        let buffer = self.buffer[index];
        out.push(match kind {
            MessageKind::SendActivation => {
                Instruction::SendActivation { stage, micro_batch, buffer, to: peer }
            }
            MessageKind::RecvActivation => {
                Instruction::RecvActivation { stage, micro_batch, buffer, from: peer }
            }
            MessageKind::SendGrad => Instruction::SendGrad { stage, micro_batch, buffer, to: peer },
            MessageKind::RecvGrad => Instruction::RecvGrad { stage, micro_batch, buffer, from: peer },
        });
        self.mark(index, stage, flag);
        Ok(())
    }
}
