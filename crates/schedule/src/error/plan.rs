//! Errors of text, plans, schedules and cost models.

use brigade_topology::{PipeRank, Stage};

/// What is wrong with the text of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActionFault {
    /// Nothing there.
    #[error("expected an action such as 0F1, found nothing")]
    Empty,
    /// The stage number is missing.
    #[error("expected a stage number first, as in 0F1")]
    NoStage,
    /// The micro-batch number is missing.
    #[error("expected a micro-batch number last, as in 0F1")]
    NoMicroBatch,
    /// A number does not fit in 32 bits.
    #[error("number above 4294967295")]
    TooLarge,
    /// The word is none of the known ones.
    #[error(
        "expected one of F, B, I, W, SEND_F, SEND_B, RECV_F, RECV_B, WAIT_SEND_F, WAIT_SEND_B, UNSHARD, \
         RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD, OVERLAP_F_B, LOAD, REDUCE_COPIES, REDUCE_TIED_GRADS, REDUCE_GRADS, \
         OPTIMIZER_STEP"
    )]
    Word,
    /// A pair is not of the form `(0F1;1B0)OVERLAP_F_B`.
    #[error("expected a forward and a backward pass, as in (0F1;1B0)OVERLAP_F_B")]
    Pair,
    /// Something follows the action.
    #[error("unexpected text after the action")]
    Trailing,
}

/// Why a text is not an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read action {text:?}: {fault}")]
pub struct ActionParseError {
    /// The text, cut to 40 characters.
    pub text: String,
    /// What is wrong with it.
    pub fault: ActionFault,
}

/// Why rows do not make a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Not one row a rank.
    #[error("expected one row for each of {n_ranks} ranks, found {n_rows} rows")]
    Rows {
        /// Rows given.
        n_rows: usize,
        /// Ranks of the placement.
        n_ranks: u32,
    },
    /// A batch needs a micro-batch.
    #[error("expected at least 1 micro-batch, found 0")]
    NoMicroBatches,
    /// More cells than a plan in memory may have.
    #[error("plan of {n_actions} actions is above the limit of {max}; use fewer micro-batches or stream it")]
    TooLong {
        /// Cells given.
        n_actions: u64,
        /// The limit.
        max: u64,
    },
}

/// Why a text is not a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanParseError {
    /// The first line is not as written by `Plan`'s `Display`.
    #[error("expected a first line such as \"placement linear:4; micro-batches 8\", found {line:?}")]
    Header {
        /// The line, cut to 40 characters.
        line: String,
    },
    /// A cell is not an action.
    #[error("row {row}, column {column}: {source}")]
    Cell {
        /// Row, from 1; the header does not count.
        row: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong with the cell.
        source: ActionParseError,
    },
    /// The stages of the rows are those of no placement.
    #[error(
        "row {row} has stage {stage}, which is there in no linear, looped, V or bidirectional placement of these rows"
    )]
    NoPlacement {
        /// Row, from 1.
        row: usize,
        /// The stage that does not fit.
        stage: Stage,
    },
    /// The placement of the first line, or one that would fit the rows, is none.
    #[error("placement: {0}")]
    Placement(#[from] brigade_topology::PlacementError),
    /// The rows do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Why a schedule cannot be made for a shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A pipeline needs a rank.
    #[error("expected at least 1 pipeline rank, found 0")]
    NoRanks,
    /// A batch needs a micro-batch.
    #[error("expected at least 1 micro-batch, found 0")]
    NoMicroBatches,
    /// A rank needs a stage.
    #[error("expected at least 1 stage a rank, found 0")]
    NoStages,
    /// The plan would not fit in memory.
    #[error(
        "plan of {n_ranks} ranks x {n_virtual} stages x {n_micro_batches} micro-batches is above the limit of \
         {max} actions; use fewer micro-batches or stream it"
    )]
    TooLong {
        /// Ranks asked for.
        n_ranks: u32,
        /// Micro-batches asked for.
        n_micro_batches: u32,
        /// Stages a rank asked for.
        n_virtual: u32,
        /// The limit.
        max: u64,
    },
    /// The schedule needs more micro-batches.
    #[error(
        "{schedule} on {n_ranks} ranks needs at least {n_needed} micro-batches, found {n_micro_batches}; \
         use {instead} or more micro-batches"
    )]
    TooFewMicroBatches {
        /// Name of the schedule.
        schedule: &'static str,
        /// Ranks asked for.
        n_ranks: u32,
        /// Micro-batches asked for.
        n_micro_batches: u32,
        /// The fewest that would work.
        n_needed: u32,
        /// A schedule that takes this shape.
        instead: &'static str,
    },
    /// The schedule is made as a whole and cannot be read row by row.
    #[error(
        "{schedule} is searched as a whole for this shape; gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, \
         dual-pipe on an even number of ranks, dual-pipe-v and forward-only can be streamed"
    )]
    NoStream {
        /// Name of the schedule.
        schedule: &'static str,
    },
    /// The problem of a search does not hold together.
    #[error("expected {what}")]
    Problem {
        /// What was expected.
        what: &'static str,
    },
    /// A rank's memory does not hold one micro-batch at each of its stages.
    #[error("rank {rank} may hold {limit} units of memory, but one micro-batch needs {needed}")]
    TooLittleMemory {
        /// The rank.
        rank: PipeRank,
        /// The memory that it may hold.
        limit: u64,
        /// The memory that one micro-batch takes at all stages of the rank.
        needed: u64,
    },
    /// The rank is above the last one.
    #[error("expected a rank below {n_ranks}, found {rank}")]
    NoSuchRank {
        /// The rank asked for.
        rank: PipeRank,
        /// Ranks of the shape.
        n_ranks: u32,
    },
    /// The name of the schedule is not known.
    #[error("unknown schedule {name:?}, expected one of {known}")]
    Unknown {
        /// The name given, cut to 40 characters.
        name: String,
        /// The names that would work.
        known: &'static str,
    },
    /// Stages could not be placed.
    #[error(transparent)]
    Placement(#[from] brigade_topology::PlacementError),
    /// The rows do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Why a cost model cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// Not one cost a stage.
    #[error("expected costs of {n_stages} stages, found {n_costs}")]
    Stages {
        /// Costs given.
        n_costs: usize,
        /// Stages of the plan.
        n_stages: u32,
    },
    /// A time of a stage is negative or not finite.
    #[error("stage {stage}: expected a time of at least 0, found {value}")]
    Time {
        /// The stage.
        stage: Stage,
        /// The time given.
        value: f64,
    },
    /// A time of a load, a marker or the end of a batch is negative or not finite.
    #[error("load, marker or end of a batch: expected a time of at least 0, found {value}")]
    EndTime {
        /// The time given.
        value: f64,
    },
    /// The share that overlap hides is not from 0 to 1.
    #[error("overlap: expected a share from 0 to 1, found {value}")]
    Overlap {
        /// The share given.
        value: f64,
    },
    /// A latency is negative or not finite.
    #[error("expected a latency of at least 0, found {value}")]
    Latency {
        /// The latency given.
        value: f64,
    },
    /// A bandwidth is not above 0.
    #[error("expected a bandwidth above 0, found {value}")]
    Bandwidth {
        /// The bandwidth given.
        value: f64,
    },
}
