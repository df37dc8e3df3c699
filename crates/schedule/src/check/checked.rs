//! A plan that the checker has passed.

use std::fmt;

use brigade_topology::{PipeRank, Placement};

use super::Capacity;
use super::run::Proof;
use crate::instruction::Instruction;
use crate::plan::Plan;
use crate::program::Program;

/// A plan, lowered and proved sound over links of a given capacity.
///
/// Only [`crate::check`] and [`crate::check_plan`] make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedPlan {
    program: Program,
    capacity: Capacity,
    links: Vec<(PipeRank, PipeRank)>,
    in_flight: Vec<u32>,
}

impl CheckedPlan {
    pub(crate) fn new(program: Program, capacity: Capacity, proof: Proof) -> Self {
        let Proof { links, in_flight, .. } = proof;
        Self { program, capacity, links, in_flight }
    }

    /// The order of work.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.program.plan()
    }

    /// The streams.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Where each stage lives.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.plan().placement()
    }

    /// The number of micro-batches of a batch.
    #[must_use]
    pub fn n_micro_batches(&self) -> u32 {
        self.plan().n_micro_batches()
    }

    /// Whether there is no backward pass.
    #[must_use]
    pub fn is_forward_only(&self) -> bool {
        self.plan().is_forward_only()
    }

    /// What `rank` does, in order; empty for a rank that the plan does not have.
    #[must_use]
    pub fn instructions(&self, rank: PipeRank) -> &[Instruction] {
        self.program.stream(rank)
    }

    /// How many buffers `rank` needs.
    #[must_use]
    pub fn n_buffers(&self, rank: PipeRank) -> u32 {
        self.program.n_buffers(rank)
    }

    /// The number of messages that each link must hold, for which the plan was proved free of deadlock; more
    /// is right too.
    #[must_use]
    pub fn link_capacity(&self) -> Capacity {
        self.capacity
    }

    /// The directed links used, (from, to), sorted.
    #[must_use]
    pub fn links(&self) -> &[(PipeRank, PipeRank)] {
        &self.links
    }

    /// The most micro-batches that `rank` holds between their forward pass and the end of their backward
    /// pass, each counted once for every stage.
    #[must_use]
    pub fn in_flight(&self, rank: PipeRank) -> u32 {
        self.in_flight.get(rank.index()).copied().unwrap_or(0)
    }
}

impl fmt::Display for CheckedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capacity(capacity) = self.capacity;
        writeln!(f, "checked for links of {capacity} messages")?;
        self.plan().fmt(f)
    }
}
