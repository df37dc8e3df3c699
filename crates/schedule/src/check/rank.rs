//! The rules of one rank: order of work, buffers, peers and loads.

use brigade_topology::{PipeRank, Placement, Stage};

use super::stages::Marks;
use crate::action::{MicroBatch, Visit};
use crate::error::{CheckError, Missing, Need};
use crate::instruction::{BufferId, Instruction, LoadPart};
use crate::program::Program;

/// What has happened to a micro-batch at a stage.
pub(super) mod done {
    pub(in crate::check) const INPUT: u16 = 1;
    pub(in crate::check) const TARGETS: u16 = 1 << 1;
    pub(in crate::check) const FORWARD: u16 = 1 << 2;
    pub(in crate::check) const OUTPUT_LEFT: u16 = 1 << 3;
    pub(in crate::check) const OUTPUT_GRAD: u16 = 1 << 4;
    pub(in crate::check) const INPUT_GRAD: u16 = 1 << 5;
    pub(in crate::check) const WEIGHT_GRAD: u16 = 1 << 6;
    pub(in crate::check) const GRAD_LEFT: u16 = 1 << 7;
    pub(in crate::check) const HELD: u16 = 1 << 8;
}

/// State of one rank while its stream runs.
#[derive(Debug)]
pub(crate) struct RankRun {
    pub(super) rank: PipeRank,
    pub(super) placement: Placement,
    n_stages: u32,
    n_ranks: u32,
    pub(super) n_micro_batches: u32,
    pub(super) stages: Vec<Stage>,
    pub(super) forward_only: bool,
    /// Flags of `done`, and the buffer, of each local stage and micro-batch.
    done: Vec<u16>,
    buffer: Vec<BufferId>,
    /// Who holds each buffer.
    holder: Vec<Option<(Stage, MicroBatch)>>,
    n_unfinished: usize,
    in_flight: u32,
    peak_in_flight: u32,
    pub(super) collectives: Vec<Instruction>,
    /// Stages that another rank holds too, and whose gradients are not summed over both yet.
    pub(super) copies_apart: Vec<Stage>,
    /// What the markers so far have done to each of the stages, where the plan gathers or reduces it at all.
    pub(super) marks: Vec<Marks>,
}

/// Where an instruction stands, for its error.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) position: usize,
    pub(super) instruction: &'a Instruction,
}

impl RankRun {
    pub(crate) fn new(program: &Program, rank: PipeRank, forward_only: bool) -> Self {
        let placement = program.plan().placement();
        let n_micro_batches = program.plan().n_micro_batches();
        let stages: Vec<Stage> = placement.stages_of(rank).into_iter().flatten().collect();
        let n_rounds = placement.n_stages() / placement.n_ranks().max(1);
        let n_visits = u64::from(n_rounds).saturating_mul(u64::from(n_micro_batches));
        let n_visits = usize::try_from(n_visits).unwrap_or(usize::MAX);
        let on_two_ranks = |stage: &&Stage| placement.holders_of(**stage).into_iter().flatten().count() > 1;
        let copies_apart = stages.iter().filter(|_| !forward_only).filter(on_two_ranks).copied().collect();
        // A buffer number can be anything; one above the length of the stream is refused when it is used.
        let n_buffers = usize::try_from(program.n_buffers(rank)).unwrap_or(usize::MAX);
        let n_buffers = n_buffers.min(program.stream(rank).len());
        Self {
            rank,
            placement,
            n_stages: placement.n_stages(),
            n_ranks: placement.n_ranks(),
            n_micro_batches,
            copies_apart,
            marks: Marks::of(program.stream(rank), &stages),
            stages,
            forward_only,
            done: vec![0; n_visits],
            buffer: vec![BufferId(0); n_visits],
            holder: vec![None; n_buffers],
            n_unfinished: n_visits,
            in_flight: 0,
            peak_in_flight: 0,
            collectives: Vec::new(),
        }
    }

    pub(crate) fn rank(&self) -> PipeRank {
        self.rank
    }

    pub(crate) fn peak_in_flight(&self) -> u32 {
        self.peak_in_flight
    }

    /// Takes one step, as far as this rank alone is concerned.
    pub(crate) fn step(&mut self, position: usize, instruction: &Instruction) -> Result<(), CheckError> {
        let at = At { position, instruction };
        let Some((stage, micro_batch, buffer)) = instruction.visit() else {
            return match *instruction {
                Instruction::Marker { kind, stage } => self.marker(at, kind, stage),
                Instruction::ReduceCopies { stage } => self.reduce_copies(at, stage),
                _ => self.collective(at),
            };
        };
        let index = self.index(at, stage, micro_batch)?;
        if !self.collectives.is_empty() {
            return Err(self.repeated(at));
        }
        match *instruction {
            Instruction::LoadMicroBatch { part, .. } => {
                self.load(at, index, stage, micro_batch, buffer, part)
            }
            Instruction::RecvActivation { from, .. } => {
                self.peer(at, stage.0.checked_sub(1), micro_batch, from)?;
                self.once(at, index, done::INPUT)?;
                self.hold(at, index, stage, micro_batch, buffer)
            }
            Instruction::ForwardPass { .. } => {
                self.gathered(at, stage)?;
                self.once(at, index, done::FORWARD)?;
                self.need(at, index, done::INPUT, Need::Input)?;
                if self.is_last(stage) {
                    self.need(at, index, done::TARGETS, Need::Targets)?;
                }
                self.in_buffer(at, index, buffer)?;
                self.in_flight += 1;
                self.peak_in_flight = self.peak_in_flight.max(self.in_flight);
                self.settle(index, stage);
                Ok(())
            }
            Instruction::SendActivation { to, .. } => {
                self.peer(at, stage.0.checked_add(1), micro_batch, to)?;
                self.leave(at, index, stage, buffer, done::OUTPUT_LEFT)
            }
            Instruction::RecvGrad { from, .. } => {
                self.peer(at, stage.0.checked_add(1), micro_batch, from)?;
                self.need(at, index, done::FORWARD, Need::Forward)?;
                self.once(at, index, done::OUTPUT_GRAD)?;
                self.in_buffer(at, index, buffer)
            }
            Instruction::BackwardPass { .. } | Instruction::InputGrad { .. } => {
                self.gathered(at, stage)?;
                let whole = matches!(instruction, Instruction::BackwardPass { .. });
                self.backward(at, index, stage, buffer, whole)
            }
            Instruction::WeightGrad { .. } => {
                self.once(at, index, done::WEIGHT_GRAD)?;
                self.need(at, index, done::INPUT_GRAD, Need::InputGrad)?;
                self.in_buffer(at, index, buffer)?;
                self.settle(index, stage);
                Ok(())
            }
            Instruction::SendGrad { to, .. } => {
                self.peer(at, stage.0.checked_sub(1), micro_batch, to)?;
                self.leave(at, index, stage, buffer, done::GRAD_LEFT)
            }
            Instruction::HandOverActivation { to_buffer, .. } => {
                let next = self.local_neighbour(at, stage.0.checked_add(1), micro_batch)?;
                let target = self.index(at, next, micro_batch)?;
                self.leave(at, index, stage, buffer, done::OUTPUT_LEFT)?;
                self.once(at, target, done::INPUT)?;
                self.hold(at, target, next, micro_batch, to_buffer)
            }
            Instruction::HandOverGrad { to_buffer, .. } => {
                let previous = self.local_neighbour(at, stage.0.checked_sub(1), micro_batch)?;
                let target = self.index(at, previous, micro_batch)?;
                self.leave(at, index, stage, buffer, done::GRAD_LEFT)?;
                self.once(at, target, done::OUTPUT_GRAD)?;
                self.in_buffer(at, target, to_buffer)
            }
            Instruction::Marker { .. }
            | Instruction::ReduceCopies { .. }
            | Instruction::ReduceTiedGrads
            | Instruction::ReduceGrads
            | Instruction::OptimizerStep => Ok(()),
        }
    }

    /// Tests that nothing is left to do.
    pub(crate) fn complete(&self) -> Result<(), CheckError> {
        if self.n_unfinished == 0 {
            return Ok(());
        }
        self.stages.iter().try_for_each(|&stage| self.complete_at(stage))
    }

    /// Tests that nothing is left to do at one stage.
    pub(super) fn complete_at(&self, stage: Stage) -> Result<(), CheckError> {
        let rank = self.rank;
        let here =
            |&micro_batch: &MicroBatch| Visit { stage, micro_batch }.rank_in(self.placement) == Ok(rank);
        for micro_batch in (0..self.n_micro_batches).map(MicroBatch).filter(here) {
            if let Some(what) = self.missing(self.known_index(stage, micro_batch), stage) {
                return Err(CheckError::Missing { rank, stage, micro_batch, what });
            }
        }
        Ok(())
    }

    fn missing(&self, index: usize, stage: Stage) -> Option<Missing> {
        let mut wanted = vec![(done::FORWARD, Missing::Forward)];
        if !self.is_last(stage) {
            wanted.push((done::OUTPUT_LEFT, Missing::Output));
        }
        if !self.forward_only {
            wanted.push((done::INPUT_GRAD, Missing::Backward));
            wanted.push((done::WEIGHT_GRAD, Missing::WeightGrad));
            if stage.0 != 0 {
                wanted.push((done::GRAD_LEFT, Missing::Grad));
            }
        }
        wanted.into_iter().find(|&(flag, _)| !self.has(index, flag)).map(|(_, what)| what)
    }

    fn collective(&mut self, at: At<'_>) -> Result<(), CheckError> {
        self.complete()?;
        self.copies_summed()?;
        if self.forward_only || self.collectives.contains(at.instruction) {
            let At { position, instruction } = at;
            return Err(CheckError::Collective { rank: self.rank, position, instruction: *instruction });
        }
        self.collectives.push(*at.instruction);
        Ok(())
    }

    fn load(
        &mut self,
        at: At<'_>,
        index: usize,
        stage: Stage,
        micro_batch: MicroBatch,
        buffer: BufferId,
        part: LoadPart,
    ) -> Result<(), CheckError> {
        if LoadPart::of(stage, self.n_stages) != Some(part) {
            let At { position, instruction } = at;
            return Err(CheckError::WrongLoad { rank: self.rank, position, instruction: *instruction });
        }
        let flags = match part {
            LoadPart::Inputs => done::INPUT,
            LoadPart::Targets => done::TARGETS,
            LoadPart::InputsAndTargets => done::INPUT | done::TARGETS,
        };
        self.once(at, index, flags)?;
        self.hold(at, index, stage, micro_batch, buffer)
    }

    fn backward(
        &mut self,
        at: At<'_>,
        index: usize,
        stage: Stage,
        buffer: BufferId,
        whole: bool,
    ) -> Result<(), CheckError> {
        self.once(at, index, if whole { done::INPUT_GRAD | done::WEIGHT_GRAD } else { done::INPUT_GRAD })?;
        self.need(at, index, done::FORWARD, Need::Forward)?;
        if !self.is_last(stage) {
            self.need(at, index, done::OUTPUT_GRAD, Need::OutputGrad)?;
        }
        self.in_buffer(at, index, buffer)?;
        self.settle(index, stage);
        Ok(())
    }

    /// The output or the input's gradient goes to the neighbouring stage.
    fn leave(
        &mut self,
        at: At<'_>,
        index: usize,
        stage: Stage,
        buffer: BufferId,
        flag: u16,
    ) -> Result<(), CheckError> {
        self.once(at, index, flag)?;
        if flag == done::OUTPUT_LEFT {
            self.need(at, index, done::FORWARD, Need::Forward)?;
        } else {
            self.need(at, index, done::INPUT_GRAD, Need::InputGrad)?;
        }
        self.in_buffer(at, index, buffer)?;
        self.settle(index, stage);
        Ok(())
    }

    /// Frees the buffer when the micro-batch is finished at the stage.
    fn settle(&mut self, index: usize, stage: Stage) {
        let mut wanted = done::FORWARD;
        if !self.is_last(stage) {
            wanted |= done::OUTPUT_LEFT;
        }
        if !self.forward_only {
            wanted |= done::INPUT_GRAD | done::WEIGHT_GRAD;
            if stage.0 != 0 {
                wanted |= done::GRAD_LEFT;
            }
        }
        if self.has(index, wanted) && self.has(index, done::HELD) {
            self.done[index] &= !done::HELD;
            self.holder[self.buffer[index].index()] = None;
            self.n_unfinished -= 1;
            self.in_flight -= 1;
        }
    }

    /// Puts a micro-batch into a buffer, unless it is there already.
    fn hold(
        &mut self,
        at: At<'_>,
        index: usize,
        stage: Stage,
        micro_batch: MicroBatch,
        buffer: BufferId,
    ) -> Result<(), CheckError> {
        if self.has(index, done::HELD) {
            return self.in_buffer(at, index, buffer);
        }
        let At { position, instruction } = at;
        let (rank, instruction) = (self.rank, *instruction);
        match self.holder.get_mut(buffer.index()) {
            Some(free @ None) => *free = Some((stage, micro_batch)),
            Some(&mut Some((holder_stage, holder))) => {
                return Err(CheckError::BufferLive { rank, position, instruction, holder, holder_stage });
            }
            None => {
                let n_buffers = self.holder.len();
                return Err(CheckError::NoSuchBuffer { rank, position, instruction, n_buffers });
            }
        }
        self.buffer[index] = buffer;
        self.done[index] |= done::HELD;
        Ok(())
    }

    fn in_buffer(&self, at: At<'_>, index: usize, buffer: BufferId) -> Result<(), CheckError> {
        let expected = self.buffer[index];
        if expected == buffer && self.has(index, done::HELD) {
            return Ok(());
        }
        let At { position, instruction } = at;
        Err(CheckError::WrongBuffer { rank: self.rank, position, instruction: *instruction, expected })
    }

    fn once(&mut self, at: At<'_>, index: usize, flags: u16) -> Result<(), CheckError> {
        if self.done[index] & flags != 0 {
            return Err(self.repeated(at));
        }
        self.done[index] |= flags;
        Ok(())
    }

    pub(super) fn repeated(&self, at: At<'_>) -> CheckError {
        let At { position, instruction } = at;
        CheckError::Repeated { rank: self.rank, position, instruction: *instruction }
    }

    fn need(&self, at: At<'_>, index: usize, flag: u16, needs: Need) -> Result<(), CheckError> {
        if self.has(index, flag) {
            return Ok(());
        }
        let At { position, instruction } = at;
        Err(CheckError::TooEarly { rank: self.rank, position, instruction: *instruction, needs })
    }

    pub(super) fn has(&self, index: usize, flags: u16) -> bool {
        self.done[index] & flags == flags
    }

    fn is_last(&self, stage: Stage) -> bool {
        stage.0.checked_add(1) == Some(self.n_stages)
    }

    /// Tests that the neighbouring stage is on another rank, the one that the message names.
    fn peer(
        &self,
        at: At<'_>,
        neighbour: Option<u32>,
        micro_batch: MicroBatch,
        peer: PipeRank,
    ) -> Result<(), CheckError> {
        let rank_of = |stage| Visit { stage: Stage(stage), micro_batch }.rank_in(self.placement).ok();
        let owner = neighbour.and_then(rank_of);
        let At { position, instruction } = at;
        let (rank, instruction) = (self.rank, *instruction);
        match owner {
            Some(owner) if owner == peer && owner != rank => Ok(()),
            Some(owner) if owner != rank => Err(CheckError::NoSuchPeer { rank, position, instruction, peer }),
            _ => Err(CheckError::NoNeighbour { rank, position, instruction }),
        }
    }

    fn local_neighbour(
        &self,
        at: At<'_>,
        neighbour: Option<u32>,
        micro_batch: MicroBatch,
    ) -> Result<Stage, CheckError> {
        let local = |&stage: &Stage| Visit { stage, micro_batch }.rank_in(self.placement) == Ok(self.rank);
        let At { position, instruction } = at;
        neighbour.map(Stage).filter(local).ok_or(CheckError::NoNeighbour {
            rank: self.rank,
            position,
            instruction: *instruction,
        })
    }

    fn index(&self, at: At<'_>, stage: Stage, micro_batch: MicroBatch) -> Result<usize, CheckError> {
        let At { position, instruction } = at;
        let (rank, instruction) = (self.rank, *instruction);
        match (Visit { stage, micro_batch }).rank_in(self.placement) {
            Ok(owner) if owner == rank => {}
            Ok(owner) if self.stages.contains(&stage) => {
                return Err(CheckError::WrongDirection { rank, position, instruction, owner });
            }
            _ => {
                let stages = self.stages.iter().map(|stage| stage.0).collect();
                return Err(CheckError::WrongRank { rank, position, instruction, stages });
            }
        }
        if micro_batch.0 >= self.n_micro_batches {
            let n_micro_batches = self.n_micro_batches;
            return Err(CheckError::NoSuchMicroBatch { rank, position, instruction, n_micro_batches });
        }
        Ok(self.known_index(stage, micro_batch))
    }

    pub(super) fn known_index(&self, stage: Stage, micro_batch: MicroBatch) -> usize {
        let local = u64::from(stage.0 / self.n_ranks);
        let index = local * u64::from(self.n_micro_batches) + u64::from(micro_batch.0);
        usize::try_from(index).unwrap_or(usize::MAX)
    }
}
