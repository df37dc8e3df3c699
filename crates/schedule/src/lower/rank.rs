//! Lowering of one rank's row.

use std::collections::VecDeque;

use brigade_topology::{PipeRank, Placement, Stage};

use super::peer::{Incoming, Peer};
use crate::action::{Action, Compute, ComputeKind, MessageKind, MicroBatch, Visit};
use crate::error::LowerError;
use crate::instruction::{BufferId, Instruction, LoadPart};

/// What stands in the rows of a plan already, so that lowering does not add it on any rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Planned {
    pub(crate) messages: bool,
    pub(crate) loads: bool,
    pub(crate) ends: bool,
}

/// What has happened to a micro-batch at a stage.
pub(super) mod done {
    pub(in crate::lower) const INPUT: u16 = 1;
    pub(in crate::lower) const FORWARD: u16 = 1 << 1;
    pub(in crate::lower) const OUTPUT_LEFT: u16 = 1 << 2;
    pub(in crate::lower) const OUTPUT_GRAD: u16 = 1 << 3;
    pub(in crate::lower) const INPUT_GRAD: u16 = 1 << 4;
    pub(in crate::lower) const WEIGHT_GRAD: u16 = 1 << 5;
    pub(in crate::lower) const GRAD_LEFT: u16 = 1 << 6;
    pub(in crate::lower) const RELEASED: u16 = 1 << 7;
    pub(in crate::lower) const LOADED: u16 = 1 << 8;
    pub(in crate::lower) const HELD: u16 = 1 << 9;
}

/// State of one rank while its row is lowered, cell by cell.
#[derive(Debug)]
pub(crate) struct RankLowering<R, F> {
    placement: Placement,
    pub(super) n_stages: u32,
    n_micro_batches: u32,
    pub(super) rank: PipeRank,
    forward_only: bool,
    planned: Planned,
    row_of: F,
    peers: Vec<Peer<R>>,
    /// Flags of `done`, and the buffer, of each local stage and micro-batch.
    pub(super) done: Vec<u16>,
    pub(super) buffer: Vec<BufferId>,
    free: VecDeque<BufferId>,
    n_buffers: u32,
    pub(super) position: usize,
}

impl<R: Iterator<Item = Action>, F: Fn(PipeRank) -> R> RankLowering<R, F> {
    pub(crate) fn new(
        placement: Placement,
        n_micro_batches: u32,
        rank: PipeRank,
        forward_only: bool,
        planned: Planned,
        row_of: F,
    ) -> Self {
        // Each micro-batch comes to a rank as often as the rank's stages follow each other on its way.
        let n_rounds = placement.n_stages() / placement.n_ranks().max(1);
        let n_local = u64::from(n_rounds).saturating_mul(u64::from(n_micro_batches));
        let n_local = usize::try_from(n_local).unwrap_or(usize::MAX);
        let n_buffers = if forward_only { u32::try_from(n_local.min(2)).unwrap_or(2) } else { 0 };
        Self {
            placement,
            n_stages: placement.n_stages(),
            n_micro_batches,
            rank,
            forward_only,
            planned,
            row_of,
            peers: Vec::new(),
            done: vec![0; n_local],
            buffer: vec![BufferId(0); n_local],
            free: (0..n_buffers).map(BufferId).collect(),
            n_buffers,
            position: 0,
        }
    }

    /// Appends the instructions of the next cell of the row.
    pub(crate) fn push(&mut self, action: Action, out: &mut Vec<Instruction>) -> Result<(), LowerError> {
        match action {
            Action::Compute(_) | Action::Overlap { .. } => {
                for compute in action.computes() {
                    self.prepare(action, compute, out)?;
                }
                for compute in action.computes() {
                    self.run(action, compute, out)?;
                }
            }
            Action::Message { kind, stage, micro_batch } => {
                self.planned_message(action, kind, stage, micro_batch, out)?;
            }
            Action::WaitSend { .. } => {}
            Action::Marker { kind, stage } => {
                self.local(action, stage)?;
                out.push(Instruction::Marker { kind, stage });
            }
            Action::Load { stage, micro_batch } => self.planned_load(action, stage, micro_batch, out)?,
            Action::ReduceCopies { stage } => {
                self.local(action, stage)?;
                out.push(Instruction::ReduceCopies { stage });
            }
            Action::ReduceTiedGrads => out.push(Instruction::ReduceTiedGrads),
            Action::ReduceGrads => out.push(Instruction::ReduceGrads),
            Action::OptimizerStep => out.push(Instruction::OptimizerStep),
        }
        self.position = self.position.saturating_add(1);
        Ok(())
    }

    /// Appends the steps at the end of a batch.
    pub(crate) fn finish(&self, out: &mut Vec<Instruction>) {
        if !self.forward_only && !self.planned.ends {
            let stages = self.placement.stages_of(self.rank).into_iter().flatten();
            let on_two_ranks =
                |&stage: &Stage| self.placement.holders_of(stage).into_iter().flatten().count() > 1;
            out.extend(stages.filter(on_two_ranks).map(|stage| Instruction::ReduceCopies { stage }));
            out.extend([Instruction::ReduceTiedGrads, Instruction::ReduceGrads, Instruction::OptimizerStep]);
        }
    }

    /// Index of a micro-batch at a stage, when both exist and the stage is on this rank.
    pub(super) fn index(
        &self,
        action: Action,
        stage: Stage,
        micro_batch: MicroBatch,
    ) -> Result<usize, LowerError> {
        let (rank, position) = (self.rank, self.position);
        let Ok(owner) = (Visit { stage, micro_batch }).rank_in(self.placement) else {
            let n_stages = self.n_stages;
            return Err(LowerError::NoSuchStage { rank, position, action, stage, n_stages });
        };
        if owner != rank {
            return Err(LowerError::WrongRank { rank, position, action, owner });
        }
        if micro_batch.0 >= self.n_micro_batches {
            let n_micro_batches = self.n_micro_batches;
            return Err(LowerError::NoSuchMicroBatch {
                rank,
                position,
                action,
                micro_batch,
                n_micro_batches,
            });
        }
        Ok(self.known_index(stage, micro_batch))
    }

    /// [`Self::index`] of a stage of this rank and a micro-batch of the plan.
    fn known_index(&self, stage: Stage, micro_batch: MicroBatch) -> usize {
        let local = u64::from(stage.0 / self.placement.n_ranks());
        let index = local * u64::from(self.n_micro_batches) + u64::from(micro_batch.0);
        usize::try_from(index).unwrap_or(usize::MAX)
    }

    pub(super) fn has(&self, index: usize, flag: u16) -> bool {
        self.done[index] & flag == flag
    }

    /// The buffer of a visit, which holds its input from here on.
    pub(super) fn acquire(&mut self, index: usize) -> BufferId {
        self.done[index] |= done::INPUT;
        self.hold(index)
    }

    /// The buffer of a visit, a free one if it has none.
    pub(super) fn hold(&mut self, index: usize) -> BufferId {
        if self.has(index, done::HELD) {
            return self.buffer[index];
        }
        let buffer = self.free.pop_front().unwrap_or_else(|| {
            let fresh = BufferId(self.n_buffers);
            self.n_buffers = self.n_buffers.saturating_add(1);
            fresh
        });
        self.buffer[index] = buffer;
        self.done[index] |= done::HELD;
        buffer
    }

    /// Tests that a stage is on this rank.
    fn local(&self, action: Action, stage: Stage) -> Result<(), LowerError> {
        let (rank, position) = (self.rank, self.position);
        let Ok(mut holders) = self.placement.holders_of(stage) else {
            let n_stages = self.n_stages;
            return Err(LowerError::NoSuchStage { rank, position, action, stage, n_stages });
        };
        let first = holders.next().unwrap_or(rank);
        if first == rank || holders.any(|holder| holder == rank) {
            return Ok(());
        }
        Err(LowerError::WrongRank { rank, position, action, owner: first })
    }

    pub(super) fn mark(&mut self, index: usize, stage: Stage, flag: u16) {
        self.done[index] |= flag;
        let output_left = self.is_last(stage) || self.has(index, done::OUTPUT_LEFT);
        let grad_left = stage.0 == 0 || self.has(index, done::GRAD_LEFT);
        let finished = if self.forward_only {
            self.has(index, done::FORWARD) && output_left
        } else {
            self.has(index, done::INPUT_GRAD | done::WEIGHT_GRAD) && output_left && grad_left
        };
        if finished && !self.has(index, done::RELEASED) {
            self.done[index] |= done::RELEASED;
            self.free.push_back(self.buffer[index]);
        }
    }

    fn is_last(&self, stage: Stage) -> bool {
        stage.0.checked_add(1) == Some(self.n_stages)
    }

    pub(super) fn next(&self, stage: Stage, micro_batch: MicroBatch) -> Option<(Stage, PipeRank)> {
        let next = Stage(stage.0.checked_add(1)?);
        Visit { stage: next, micro_batch }.rank_in(self.placement).ok().map(|rank| (next, rank))
    }

    pub(super) fn previous(&self, stage: Stage, micro_batch: MicroBatch) -> Option<(Stage, PipeRank)> {
        let previous = Stage(stage.0.checked_sub(1)?);
        Visit { stage: previous, micro_batch }.rank_in(self.placement).ok().map(|rank| (previous, rank))
    }

    /// Tests that `compute` may run here and now, and appends the receives, loads and hand-overs it needs.
    fn prepare(
        &mut self,
        action: Action,
        compute: Compute,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        let Compute { kind, stage, micro_batch } = compute;
        let index = self.index(action, stage, micro_batch)?;
        let (rank, position) = (self.rank, self.position);
        let repeated = match kind {
            ComputeKind::Forward => self.has(index, done::FORWARD),
            ComputeKind::Backward => self.done[index] & (done::INPUT_GRAD | done::WEIGHT_GRAD) != 0,
            ComputeKind::InputGrad => self.has(index, done::INPUT_GRAD),
            ComputeKind::WeightGrad => self.has(index, done::WEIGHT_GRAD),
        };
        if repeated {
            return Err(LowerError::Repeated { rank, position, action });
        }
        let needed = match kind {
            ComputeKind::Forward => None,
            ComputeKind::Backward | ComputeKind::InputGrad => {
                (!self.has(index, done::FORWARD)).then(|| Compute::forward(stage, micro_batch))
            }
            ComputeKind::WeightGrad => {
                (!self.has(index, done::INPUT_GRAD)).then(|| Compute::input_grad(stage, micro_batch))
            }
        };
        // The forward pass of a pair comes before its backward pass within the cell itself.
        let in_pair = |needed: &Compute| action.computes().next() == Some(*needed);
        if let Some(needs) = needed.filter(|needed| !in_pair(needed)) {
            return Err(LowerError::TooEarly { rank, position, action, needs: needs.into() });
        }
        match kind {
            ComputeKind::Forward => self.bring_input(action, index, stage, micro_batch, out),
            ComputeKind::Backward | ComputeKind::InputGrad => {
                self.bring_grad(action, index, stage, micro_batch, out)
            }
            ComputeKind::WeightGrad => Ok(()),
        }
    }

    fn bring_input(
        &mut self,
        action: Action,
        index: usize,
        stage: Stage,
        micro_batch: MicroBatch,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        if self.planned.loads
            && LoadPart::of(stage, self.n_stages).is_some()
            && !self.has(index, done::LOADED)
        {
            return Err(self.too_early(action, Action::Load { stage, micro_batch }));
        }
        if !self.has(index, done::INPUT) {
            match self.previous(stage, micro_batch) {
                None => {
                    self.acquire(index);
                }
                Some((previous, from)) if from == self.rank => {
                    let source = self.known_index(previous, micro_batch);
                    if !self.has(source, done::FORWARD) {
                        let needs = Compute::forward(previous, micro_batch).into();
                        return Err(self.too_early(action, needs));
                    }
                    let buffer = self.buffer[source];
                    let to_buffer = self.acquire(index);
                    out.push(Instruction::HandOverActivation {
                        stage: previous,
                        micro_batch,
                        buffer,
                        to_buffer,
                    });
                    self.mark(source, previous, done::OUTPUT_LEFT);
                }
                Some((previous, from)) => {
                    let producer = Compute::forward(previous, micro_batch);
                    let wanted = Incoming { kind: MessageKind::RecvActivation, stage, micro_batch };
                    self.receive_up_to(action, wanted, producer, from, out)?;
                }
            }
        }
        if let Some(part) = LoadPart::of(stage, self.n_stages).filter(|_| !self.planned.loads) {
            let buffer = self.buffer[index];
            out.push(Instruction::LoadMicroBatch { stage, micro_batch, buffer, part });
        }
        Ok(())
    }

    fn bring_grad(
        &mut self,
        action: Action,
        index: usize,
        stage: Stage,
        micro_batch: MicroBatch,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        let Some((next, from)) = self.next(stage, micro_batch) else { return Ok(()) };
        if self.has(index, done::OUTPUT_GRAD) {
            return Ok(());
        }
        let producer = Compute::input_grad(next, micro_batch);
        if from == self.rank {
            return Err(self.too_early(action, producer.into()));
        }
        let wanted = Incoming { kind: MessageKind::RecvGrad, stage, micro_batch };
        self.receive_up_to(action, wanted, producer, from, out)
    }

    pub(super) fn too_early(&self, action: Action, needs: Action) -> LowerError {
        LowerError::TooEarly { rank: self.rank, position: self.position, action, needs }
    }

    /// Receives everything that `from` sends up to and including `wanted`, in its order.
    fn receive_up_to(
        &mut self,
        action: Action,
        wanted: Incoming,
        producer: Compute,
        from: PipeRank,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        if self.planned.messages {
            let Incoming { kind, stage, micro_batch } = wanted;
            return Err(self.too_early(action, Action::Message { kind, stage, micro_batch }));
        }
        let peer = match self.peers.iter().position(|peer| peer.rank == from) {
            Some(peer) => peer,
            None => {
                self.peers.push(Peer::new(from, (self.row_of)(from)));
                self.peers.len() - 1
            }
        };
        loop {
            let Some(message) = self.peers[peer].next_message(self.placement, self.rank) else {
                let (rank, position) = (self.rank, self.position);
                return Err(LowerError::NeverSent { rank, position, action, producer, from });
            };
            // A faulty cell of the peer is reported when the peer's own row is lowered.
            if message.micro_batch.0 < self.n_micro_batches {
                self.receive(message, from, out);
            }
            if message == wanted {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, message: Incoming, from: PipeRank, out: &mut Vec<Instruction>) {
        let Incoming { kind, stage, micro_batch } = message;
        let index = self.known_index(stage, micro_batch);
        if kind == MessageKind::RecvActivation {
            if !self.has(index, done::INPUT) {
                let buffer = self.acquire(index);
                out.push(Instruction::RecvActivation { stage, micro_batch, buffer, from });
            }
        } else if !self.has(index, done::OUTPUT_GRAD) {
            self.done[index] |= done::OUTPUT_GRAD;
            let buffer = self.buffer[index];
            out.push(Instruction::RecvGrad { stage, micro_batch, buffer, from });
        }
    }

    /// Appends `compute` and what leaves this stage by it.
    fn run(
        &mut self,
        action: Action,
        compute: Compute,
        out: &mut Vec<Instruction>,
    ) -> Result<(), LowerError> {
        let Compute { kind, stage, micro_batch } = compute;
        let index = self.index(action, stage, micro_batch)?;
        let buffer = self.buffer[index];
        out.push(Instruction::compute(kind, stage, micro_batch, buffer));
        let flags = match kind {
            ComputeKind::Forward => done::FORWARD,
            ComputeKind::Backward => done::INPUT_GRAD | done::WEIGHT_GRAD,
            ComputeKind::InputGrad => done::INPUT_GRAD,
            ComputeKind::WeightGrad => done::WEIGHT_GRAD,
        };
        self.mark(index, stage, flags);
        let added = !self.planned.messages;
        match kind {
            ComputeKind::Forward => {
                if let Some((_, to)) =
                    self.next(stage, micro_batch).filter(|&(_, to)| added && to != self.rank)
                {
                    out.push(Instruction::SendActivation { stage, micro_batch, buffer, to });
                    self.mark(index, stage, done::OUTPUT_LEFT);
                }
            }
            ComputeKind::Backward | ComputeKind::InputGrad => match self.previous(stage, micro_batch) {
                Some((previous, to)) if to == self.rank => {
                    let target = self.known_index(previous, micro_batch);
                    let to_buffer = self.buffer[target];
                    out.push(Instruction::HandOverGrad { stage, micro_batch, buffer, to_buffer });
                    self.done[target] |= done::OUTPUT_GRAD;
                    self.mark(index, stage, done::GRAD_LEFT);
                }
                Some((_, to)) if added => {
                    out.push(Instruction::SendGrad { stage, micro_batch, buffer, to });
                    self.mark(index, stage, done::GRAD_LEFT);
                }
                _ => {}
            },
            ComputeKind::WeightGrad => {}
        }
        Ok(())
    }
}
