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
    #[error("a rank has no local stage {local}; each rank holds {stages_per_rank}")]
    LocalOutOfRange {
        /// The local number that was asked for.
        local: u32,
        /// How many stages each rank holds.
        stages_per_rank: u32,
    },
    /// A text is no placement.
    #[error("\"{text}\" is no placement; write linear:STAGES, looped:RANKSxSTAGES_PER_RANK or v:RANKS")]
    Syntax {
        /// The refused text.
        text: String,
    },
}
