//! The rules of whole stages: sums over copies, and markers.

use brigade_topology::{PipeRank, Stage};

use super::rank::{At, RankRun, done};
use crate::action::{MarkerKind, MicroBatch, Visit};
use crate::error::{CheckError, Missing, Need};
use crate::instruction::Instruction;

/// What the markers of a stage have done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    /// Whether the weights are gathered; nothing where the stream neither gathers nor lets go of them.
    gathered: Option<bool>,
    reduce_begun: bool,
    reduce_ended: bool,
}

impl Marks {
    /// The marks of each stage before the stream runs.
    pub(super) fn of(stream: &[Instruction], stages: &[Stage]) -> Vec<Self> {
        let mut marks = vec![Self::default(); stages.len()];
        for instruction in stream {
            let Instruction::Marker { kind: MarkerKind::Unshard | MarkerKind::Reshard, stage } = *instruction
            else {
                continue;
            };
            for (mark, _) in marks.iter_mut().zip(stages).filter(|(_, local)| **local == stage) {
                mark.gathered = Some(false);
            }
        }
        marks
    }
}

impl RankRun {
    /// Tests that the weights of a stage are there for a pass that uses them. A weight gradient needs none.
    pub(super) fn gathered(&self, at: At<'_>, stage: Stage) -> Result<(), CheckError> {
        let mark = self.stages.iter().zip(&self.marks).find(|(local, _)| **local == stage);
        if mark.is_none_or(|(_, mark)| mark.gathered != Some(false)) {
            return Ok(());
        }
        Err(self.too_early(at, Need::Unshard))
    }

    /// Takes a marker: weights are gathered, used and let go of, any number of times; gradients are reduced once,
    /// when all of them are there.
    pub(super) fn marker(&mut self, at: At<'_>, kind: MarkerKind, stage: Stage) -> Result<(), CheckError> {
        let local = self.local(at, stage)?;
        let mark = self.marks[local];
        match kind {
            MarkerKind::Unshard if mark.gathered == Some(true) => return Err(self.repeated(at)),
            MarkerKind::Unshard => self.marks[local].gathered = Some(true),
            MarkerKind::Reshard if mark.gathered == Some(true) => self.marks[local].gathered = Some(false),
            MarkerKind::Reshard => return Err(self.too_early(at, Need::Unshard)),
            MarkerKind::ReduceGrad => {
                if self.forward_only {
                    let At { position, instruction } = at;
                    let (rank, instruction) = (self.rank, *instruction);
                    return Err(CheckError::Collective { rank, position, instruction });
                }
                if mark.reduce_begun || !self.collectives.is_empty() {
                    return Err(self.repeated(at));
                }
                self.all_grads(stage)?;
                self.marks[local].reduce_begun = true;
            }
            MarkerKind::WaitReduceGrad if mark.reduce_ended => return Err(self.repeated(at)),
            MarkerKind::WaitReduceGrad if mark.reduce_begun => self.marks[local].reduce_ended = true,
            MarkerKind::WaitReduceGrad => return Err(self.too_early(at, Need::ReduceGrad)),
        }
        Ok(())
    }

    /// Tests that every micro-batch of this rank has left its part of a stage's weight gradients.
    fn all_grads(&self, stage: Stage) -> Result<(), CheckError> {
        let rank = self.rank;
        let here =
            |&micro_batch: &MicroBatch| Visit { stage, micro_batch }.rank_in(self.placement) == Ok(rank);
        let mut all = (0..self.n_micro_batches).map(MicroBatch).filter(here);
        match all.find(|&micro_batch| !self.has(self.known_index(stage, micro_batch), done::WEIGHT_GRAD)) {
            Some(micro_batch) => {
                let halfway = self.has(self.known_index(stage, micro_batch), done::INPUT_GRAD);
                let what = if halfway { Missing::WeightGrad } else { Missing::Backward };
                Err(CheckError::Missing { rank, stage, micro_batch, what })
            }
            None => Ok(()),
        }
    }

    /// Which of this rank's stages a stage is.
    fn local(&self, at: At<'_>, stage: Stage) -> Result<usize, CheckError> {
        self.stages.iter().position(|&local| local == stage).ok_or_else(|| CheckError::WrongRank {
            rank: self.rank,
            position: at.position,
            instruction: *at.instruction,
            stages: self.stages.iter().map(|stage| stage.0).collect(),
        })
    }

    fn too_early(&self, at: At<'_>, needs: Need) -> CheckError {
        let At { position, instruction } = at;
        CheckError::TooEarly { rank: self.rank, position, instruction: *instruction, needs }
    }

    /// Tests that no copy of a stage is left with its own part of the gradients.
    pub(crate) fn copies_summed(&self) -> Result<(), CheckError> {
        match self.copies_apart.first() {
            Some(&stage) => Err(CheckError::CopiesApart { rank: self.rank, stage }),
            None => Ok(()),
        }
    }

    /// The other rank that holds a stage.
    pub(crate) fn other_holder(&self, stage: Stage) -> Option<PipeRank> {
        self.placement.holders_of(stage).ok()?.find(|&holder| holder != self.rank)
    }

    pub(super) fn reduce_copies(&mut self, at: At<'_>, stage: Stage) -> Result<(), CheckError> {
        let At { position, instruction } = at;
        let (rank, instruction) = (self.rank, *instruction);
        self.local(at, stage)?;
        if self.other_holder(stage).is_none() {
            return Err(CheckError::NoOtherHolder { rank, position, instruction });
        }
        if self.forward_only {
            return Err(CheckError::Collective { rank, position, instruction });
        }
        let Some(apart) = self.copies_apart.iter().position(|&apart| apart == stage) else {
            return Err(self.repeated(at));
        };
        self.complete_at(stage)?;
        self.copies_apart.remove(apart);
        Ok(())
    }
}
