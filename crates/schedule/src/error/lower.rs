//! Errors of lowering.

use brigade_topology::{PipeRank, Stage};

use crate::action::{Action, Compute, MicroBatch};

/// Why a plan cannot be lowered to instructions.
///
/// Rank and position (the index of the cell in its row, from 0) stand in every variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The stage is not in the placement.
    #[error(
        "rank {rank}, position {position}: {action} is of stage {stage}, but there are {n_stages} stages"
    )]
    NoSuchStage {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
        /// Its stage.
        stage: Stage,
        /// Stages of the placement.
        n_stages: u32,
    },
    /// The micro-batch is above the plan's count.
    #[error(
        "rank {rank}, position {position}: {action} is of micro-batch {micro_batch}, but there are \
         {n_micro_batches} micro-batches"
    )]
    NoSuchMicroBatch {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
        /// Its micro-batch.
        micro_batch: MicroBatch,
        /// Micro-batches of the plan.
        n_micro_batches: u32,
    },
    /// The stage lives on another rank.
    #[error(
        "rank {rank}, position {position}: {action} belongs on rank {owner}, where its stage runs that micro-batch"
    )]
    WrongRank {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
        /// The rank of its stage.
        owner: PipeRank,
    },
    /// The same work a second time.
    #[error("rank {rank}, position {position}: {action} was done before")]
    Repeated {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
    },
    /// Something must come first on the same rank, and does not.
    #[error("rank {rank}, position {position}: {action} needs {needs} before it in the row")]
    TooEarly {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
        /// What must come first.
        needs: Action,
    },
    /// A message is needed that no rank sends.
    #[error(
        "rank {rank}, position {position}: {action} needs a message from {producer}, which rank {from} never runs"
    )]
    NeverSent {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
        /// What would make the message.
        producer: Compute,
        /// The rank that would send it.
        from: PipeRank,
    },
    /// A load on a stage between the first and the last.
    #[error("rank {rank}, position {position}: {action}, but only stages 0 and {} load data", .n_stages.saturating_sub(1))]
    NoData {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
        /// Stages of the placement.
        n_stages: u32,
    },
    /// A message that leaves or enters the pipeline, or stays on its rank.
    #[error("rank {rank}, position {position}: {action} has no other rank at its other end")]
    NoPeer {
        /// Rank of the row.
        rank: PipeRank,
        /// Index in the row.
        position: usize,
        /// The cell.
        action: Action,
    },
}
