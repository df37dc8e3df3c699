//! A program: one instruction stream for each pipeline rank.

use std::fmt;

use brigade_topology::{PipeRank, Placement};

use crate::action::{Action, Compute};
use crate::error::PlanError;
use crate::instruction::Instruction;
use crate::plan::Plan;

/// The instruction streams of all ranks, not proved sound: that is what [`crate::check`] does.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, forward_only, lower};
/// let program = lower(&forward_only(Shape { n_ranks: 2, n_micro_batches: 1 })?)?;
/// let names: Vec<_> = program.stream(PipeRank(0)).iter().map(|step| step.name()).collect();
/// assert_eq!(names, ["LoadMicroBatch", "ForwardPass", "SendActivation"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    plan: Plan,
    streams: Vec<Vec<Instruction>>,
    n_buffers: Vec<u32>,
}

impl Program {
    /// Makes a program of streams that were not lowered from a plan, one for each rank.
    ///
    /// # Errors
    /// As for [`Plan::new`].
    pub fn new(
        placement: Placement,
        n_micro_batches: u32,
        streams: Vec<Vec<Instruction>>,
    ) -> Result<Self, PlanError> {
        let rows = streams.iter().map(|stream| stream.iter().filter_map(compute_of).collect()).collect();
        let plan = Plan::new(placement, n_micro_batches, rows)?;
        Ok(Self::of_plan(plan, streams))
    }

    pub(crate) fn of_plan(plan: Plan, streams: Vec<Vec<Instruction>>) -> Self {
        let n_buffers = streams.iter().map(|stream| n_buffers(stream)).collect();
        Self { plan, streams, n_buffers }
    }

    /// The plan that this program carries out.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// All streams, that of rank 0 first.
    #[must_use]
    pub fn streams(&self) -> &[Vec<Instruction>] {
        &self.streams
    }

    /// The stream of `rank`; empty for a rank that the program does not have.
    #[must_use]
    pub fn stream(&self, rank: PipeRank) -> &[Instruction] {
        self.streams.get(rank.index()).map_or(&[], Vec::as_slice)
    }

    /// How many buffers `rank` needs: one above the highest that its stream names.
    #[must_use]
    pub fn n_buffers(&self, rank: PipeRank) -> u32 {
        self.n_buffers.get(rank.index()).copied().unwrap_or(0)
    }
}

fn compute_of(instruction: &Instruction) -> Option<Action> {
    let kind = instruction.compute_kind()?;
    let (stage, micro_batch, _) = instruction.visit()?;
    Some(Compute { kind, stage, micro_batch }.into())
}

fn n_buffers(stream: &[Instruction]) -> u32 {
    let highest = |instruction: &Instruction| {
        let (.., buffer) = instruction.visit()?;
        Some(match *instruction {
            Instruction::HandOverActivation { to_buffer, .. }
            | Instruction::HandOverGrad { to_buffer, .. } => buffer.max(to_buffer),
            _ => buffer,
        })
    };
    stream.iter().filter_map(highest).max().map_or(0, |buffer| buffer.0.saturating_add(1))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, stream) in self.streams.iter().enumerate() {
            writeln!(f, "rank {rank}")?;
            for instruction in stream {
                match instruction.visit() {
                    Some((stage, micro_batch, _)) => {
                        writeln!(f, "  {instruction} stage {stage} micro-batch {micro_batch}")?;
                    }
                    None => writeln!(f, "  {instruction}")?,
                }
            }
        }
        Ok(())
    }
}
