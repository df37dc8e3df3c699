//! The crate's errors, one enum an operation.

use crate::{PipeRank, Rank, Stage};

/// Says why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Two axes have one name.
    #[error("axis \"{name}\" is named twice; every axis needs its own name")]
    DuplicateAxis {
        /// The repeated name.
        name: String,
    },
    /// A name is not a letter followed by letters, digits and underscores.
    #[error("\"{name}\" cannot name an axis; use a letter followed by letters, digits and underscores")]
    InvalidName {
        /// The refused name.
        name: String,
    },
    /// A name is a keyword of Python, which DeepSpeed refuses as an axis.
    #[error("\"{name}\" cannot name an axis: it is a Python keyword, which DeepSpeed refuses too")]
    ReservedName {
        /// The refused name.
        name: String,
    },
    /// An axis has no coordinate at all.
    #[error("axis \"{name}\" has size 0; give it at least 1 or leave it out")]
    EmptyAxis {
        /// The axis of size 0.
        name: String,
    },
    /// The lists of names and sizes differ in length.
    #[error("{n_names} axis names but {n_sizes} sizes; give one size for each name")]
    LengthMismatch {
        /// How many names were given.
        n_names: usize,
        /// How many sizes were given.
        n_sizes: usize,
    },
    /// The product of the sizes does not fit 64 bits.
    #[error("the world has more than 2^64 - 1 ranks at axis \"{name}\"; make the axes smaller")]
    TooLarge {
        /// The axis at which the product overflowed.
        name: String,
    },
}

/// Says why a rank, a coordinate or an axis cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The topology has no axis of that name.
    #[error("no axis \"{name}\" in this topology, which has {axes}")]
    UnknownAxis {
        /// The name that was asked for.
        name: String,
        /// The names that exist, separated by commas.
        axes: String,
    },
    /// A full coordinate was needed and one axis was not given.
    #[error("the coordinate on axis \"{name}\" is missing; a rank needs one for every axis ({axes})")]
    MissingAxis {
        /// The axis without a coordinate.
        name: String,
        /// The names of all axes, separated by commas.
        axes: String,
    },
    /// One axis was given two coordinates.
    #[error("axis \"{name}\" is given twice")]
    RepeatedAxis {
        /// The repeated axis.
        name: String,
    },
    /// A coordinate lies past the end of its axis.
    #[error("coordinate {value} on axis \"{name}\" is out of range; the axis has size {size}")]
    CoordOutOfRange {
        /// The axis.
        name: String,
        /// The coordinate that was asked for.
        value: u64,
        /// The size of the axis.
        size: u64,
    },
    /// A rank lies past the end of the world.
    #[error("rank {rank} is out of range; the world has {world_size} ranks")]
    RankOutOfRange {
        /// The rank that was asked for.
        rank: Rank,
        /// The size of the world.
        world_size: u64,
    },
}

/// Says why a placement cannot be built, parsed or asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// There is no rank or no stage.
    #[error("a placement needs at least one rank and one stage a rank; got {n_ranks} and {stages_per_rank}")]
    Empty {
        /// How many pipeline ranks were asked for.
        n_ranks: u32,
        /// How many stages each of them was to hold.
        stages_per_rank: u32,
    },
    /// The number of stages does not fit 32 bits.
    #[error("{n_ranks} ranks with {stages_per_rank} stages each are more than 2^32 - 1 stages")]
    TooManyStages {
        /// How many pipeline ranks were asked for.
        n_ranks: u32,
        /// How many stages each of them was to hold.
        stages_per_rank: u32,
    },
    /// A stage lies past the last one.
    #[error("stage {stage} is out of range; the placement has {n_stages} stages")]
    StageOutOfRange {
        /// The stage that was asked for.
        stage: Stage,
        /// How many stages there are.
        n_stages: u32,
    },
    /// A pipeline rank lies past the last one.
    #[error("pipeline rank {rank} is out of range; the placement has {n_ranks} ranks")]
    RankOutOfRange {
        /// The pipeline rank that was asked for.
        rank: PipeRank,
        /// How many pipeline ranks there are.
        n_ranks: u32,
    },
    /// A rank does not hold that many stages.
    #[error("the rank has no local stage {local}; it holds {stages_per_rank}")]
    LocalOutOfRange {
        /// The local number that was asked for.
        local: u32,
        /// How many stages the rank holds.
        stages_per_rank: u32,
    },
    /// A text is no placement.
    #[error(
        "\"{text}\" is no placement; write linear:STAGES, looped:RANKSxSTAGES_PER_RANK, v:RANKS or bidirectional:RANKS"
    )]
    Syntax {
        /// The refused text.
        text: String,
    },
}

/// Says why a rank cannot be placed in a pipeline grid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// An axis that every grid has is missing.
    #[error("a pipeline grid needs a \"{name}\" axis; add one of size 1 if nothing is split along it")]
    MissingAxis {
        /// The missing axis.
        name: &'static str,
    },
    /// The pipe axis does not fit 32 bits.
    #[error("a pipeline of {n_pipe} ranks is longer than 2^32 - 1")]
    PipeTooLong {
        /// The size of the pipe axis.
        n_pipe: u64,
    },
    /// The topology and the world differ in size.
    #[error("the topology has {topology} ranks, but the world has {world_size}")]
    WorldMismatch {
        /// How many ranks the topology has.
        topology: u64,
        /// How many ranks the world has.
        world_size: u64,
    },
    /// A rank or a coordinate does not exist.
    #[error(transparent)]
    Lookup(#[from] LookupError),
}

/// Says why tied weights cannot be assigned to ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TieError {
    /// The topology has no pipelines.
    #[error("the topology has no \"pipe\" axis to place stages on; add one of size 1 if there is one stage")]
    NoPipeAxis,
    /// The placement is for a pipeline of another length.
    #[error("the placement is for {n_ranks} pipeline ranks, but the pipe axis has {n_pipe}")]
    PlacementMismatch {
        /// How many pipeline ranks the placement has.
        n_ranks: u32,
        /// The size of the pipe axis.
        n_pipe: u64,
    },
    /// A set of tied weights holds none.
    #[error("tie set {index} holds no weight; leave it out")]
    Empty {
        /// The position of the set.
        index: usize,
    },
    /// A weight stands on a stage past the last one.
    #[error("weight \"{weight}\" is on stage {stage}, but the pipeline has {n_stages} stages")]
    StageOutOfRange {
        /// The weight, or the key of its tie.
        weight: String,
        /// Its stage.
        stage: Stage,
        /// How many stages there are.
        n_stages: u32,
    },
}

/// Says why machines cannot be described or axes cannot be ordered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A machine would hold no rank.
    #[error("a node needs at least one rank")]
    NoRanks,
    /// An axis does not exist or is named twice.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The topology cannot be built.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}
