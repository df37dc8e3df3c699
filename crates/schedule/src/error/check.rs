//! Errors of the checker.

use brigade_topology::{PipeRank, Stage};

use super::facts::{Described, Envelope, Missing, Need, Pending};
use super::lower::LowerError;
use crate::action::MicroBatch;
use crate::instruction::{BufferId, Instruction};

fn lines(pending: &[Pending]) -> String {
    const MOST: usize = 16;
    let mut text: String = pending.iter().take(MOST).map(|pending| format!("\n  {pending}")).collect();
    if let Some(more) = pending.len().checked_sub(MOST).filter(|&more| more > 0) {
        text.push_str(&format!("\n  and {more} more ranks"));
    }
    text
}

fn ranks(cycle: &[PipeRank]) -> String {
    cycle.iter().map(ToString::to_string).collect::<Vec<_>>().join(" -> ")
}

/// Why a program is not sound.
///
/// `position` is the index of the instruction in the stream of its rank, from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The plan cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The stage is not on this rank, or there is no such stage.
    #[error("rank {rank}, position {position}: {} is not of this rank's stages {stages:?}", Described(.instruction))]
    WrongRank {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// The stages of this rank.
        stages: Vec<u32>,
    },
    /// The stage is on this rank, but for micro-batches of the other direction.
    #[error("rank {rank}, position {position}: {} belongs on rank {owner}, which runs that stage in the micro-batch's direction", Described(.instruction))]
    WrongDirection {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// The rank that runs the micro-batch at that stage.
        owner: PipeRank,
    },
    /// A sum over the copies of a stage of which there is one.
    #[error("rank {rank}, position {position}: {}, but no other rank holds that stage", Described(.instruction))]
    NoOtherHolder {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
    },
    /// A rank ends its batch without the sum over the copies of a stage.
    #[error(
        "rank {rank} never sums its gradients of stage {stage} with those of the other rank that holds it"
    )]
    CopiesApart {
        /// Rank of the stream.
        rank: PipeRank,
        /// The stage.
        stage: Stage,
    },
    /// The micro-batch is above the plan's count.
    #[error("rank {rank}, position {position}: {}, but there are {n_micro_batches} micro-batches", Described(.instruction))]
    NoSuchMicroBatch {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// Micro-batches of the plan.
        n_micro_batches: u32,
    },
    /// A message to or from a rank that the neighbouring stage is not on, or that does not exist.
    #[error("rank {rank}, position {position}: {} has peer {peer}, which does not hold the neighbouring stage", Described(.instruction))]
    NoSuchPeer {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// The peer that it names.
        peer: PipeRank,
    },
    /// A message or hand-over where there is no neighbouring stage, or it is on the other kind of rank.
    #[error("rank {rank}, position {position}: {} has no neighbouring stage of that kind", Described(.instruction))]
    NoNeighbour {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
    },
    /// A load of what the stage does not load.
    #[error("rank {rank}, position {position}: {} is not what this stage loads", Described(.instruction))]
    WrongLoad {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
    },
    /// The same work a second time.
    #[error("rank {rank}, position {position}: {} was done before", Described(.instruction))]
    Repeated {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
    },
    /// Something that must come first is not there.
    #[error("rank {rank}, position {position}: {} needs {needs} first", Described(.instruction))]
    TooEarly {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// What must come first.
        needs: Need,
    },
    /// The buffer still holds another micro-batch.
    #[error(
        "rank {rank}, position {position}: {} overwrites micro-batch {holder} of stage {holder_stage}, which is \
         still needed",
        Described(.instruction)
    )]
    BufferLive {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// The micro-batch in the buffer.
        holder: MicroBatch,
        /// Its stage.
        holder_stage: Stage,
    },
    /// The buffer number is above anything that the stream could use.
    #[error("rank {rank}, position {position}: {} is out of the {n_buffers} buffers", Described(.instruction))]
    NoSuchBuffer {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// Buffers of the rank.
        n_buffers: usize,
    },
    /// The micro-batch is in another buffer.
    #[error("rank {rank}, position {position}: {}, but that micro-batch is in buffer {expected}", Described(.instruction))]
    WrongBuffer {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// Where the micro-batch is.
        expected: BufferId,
    },
    /// A link delivers another message first.
    #[error("rank {rank}, position {position}: {} expects the {expected}, but the link delivers the {found}", Described(.instruction))]
    MessageOrder {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
        /// What it asks for.
        expected: Envelope,
        /// What the link delivers.
        found: Envelope,
    },
    /// A step at the end of a batch comes twice, or in a plan without backward passes.
    #[error("rank {rank}, position {position}: {} comes twice, or without any backward pass", Described(.instruction))]
    Collective {
        /// Rank of the stream.
        rank: PipeRank,
        /// Index in the stream.
        position: usize,
        /// What stands there.
        instruction: Instruction,
    },
    /// Two ranks end a batch differently.
    #[error("rank {rank} ends with {found:?}, rank {first} with {expected:?}")]
    Collectives {
        /// The rank that differs.
        rank: PipeRank,
        /// Its steps.
        found: Vec<Instruction>,
        /// The rank it was compared with.
        first: PipeRank,
        /// That rank's steps.
        expected: Vec<Instruction>,
    },
    /// A rank came to the end of the batch with work left to do.
    #[error("rank {rank}: micro-batch {micro_batch} at stage {stage} lacks {what}")]
    Missing {
        /// Rank of the stage.
        rank: PipeRank,
        /// The stage.
        stage: Stage,
        /// The micro-batch.
        micro_batch: MicroBatch,
        /// What was not done.
        what: Missing,
    },
    /// Messages lie on a link after all ranks have ended.
    #[error("rank {to} never receives {n_messages} messages of rank {from}, first the {message}")]
    NeverReceived {
        /// The sender.
        from: PipeRank,
        /// The receiver.
        to: PipeRank,
        /// The first of them.
        message: Envelope,
        /// How many there are.
        n_messages: usize,
    },
    /// A rank waits for a rank that has ended.
    #[error("{pending}, which has ended")]
    NoCounterpart {
        /// What waits.
        pending: Pending,
    },
    /// Ranks wait for each other.
    #[error("deadlock of ranks {}; pending:{}", ranks(.cycle), lines(.pending))]
    Deadlock {
        /// Ranks, each waiting for the next and the last for the first.
        cycle: Vec<PipeRank>,
        /// What every rank that did not end waits for.
        pending: Vec<Pending>,
    },
}
