//! The result of a replay.

use brigade_topology::PipeRank;

use crate::instruction::Instruction;

/// A step that takes time: a computation or a step at the end of a batch.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// What the rank does.
    pub instruction: Instruction,
    /// When it starts.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
}

/// What one rank does over time.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct RankTimeline {
    /// Everything that takes time, in order.
    pub spans: Vec<Span>,
    /// The sum of the spans.
    pub busy_s: f64,
    /// The most micro-batches, each counted for every stage, between forward pass and end of backward pass.
    pub peak_in_flight: u32,
    /// The most bytes that they hold.
    pub peak_bytes: u64,
}

impl RankTimeline {
    /// From the start of the first span to the end of the last.
    #[must_use]
    pub fn span_s(&self) -> f64 {
        match (self.spans.first(), self.spans.last()) {
            (Some(first), Some(last)) => last.end_s - first.start_s,
            _ => 0.0,
        }
    }
}

/// When everything of a plan happens.
///
/// There are two meanings of "bubble", and both are here:
/// - wall: the makespan less the busy time of the busiest rank, what a user waits for nothing;
/// - span: the most idle time that any rank has between its first and its last step, what papers on
///   zero-bubble schedules use. It leaves out that ranks start one after the other.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Timeline {
    pub(crate) ranks: Vec<RankTimeline>,
    pub(crate) makespan_s: f64,
}

impl Timeline {
    /// From the start to the end of the last rank.
    #[must_use]
    pub fn makespan_s(&self) -> f64 {
        self.makespan_s
    }

    /// All ranks, rank 0 first.
    #[must_use]
    pub fn ranks(&self) -> &[RankTimeline] {
        &self.ranks
    }

    /// One rank, if there is such a rank.
    #[must_use]
    pub fn rank(&self, rank: PipeRank) -> Option<&RankTimeline> {
        self.ranks.get(rank.index())
    }

    /// The time that `rank` has nothing to do within the makespan.
    #[must_use]
    pub fn idle_s(&self, rank: PipeRank) -> f64 {
        self.makespan_s - self.rank(rank).map_or(0.0, |rank| rank.busy_s)
    }

    /// The bubble as wall time: makespan less the busy time of the busiest rank.
    #[must_use]
    pub fn bubble_wall_s(&self) -> f64 {
        self.makespan_s - self.ranks.iter().map(|rank| rank.busy_s).fold(0.0, f64::max)
    }

    /// The wall bubble as a share of the makespan; 0 for a makespan of 0.
    #[must_use]
    pub fn bubble_wall_share(&self) -> f64 {
        if self.makespan_s > 0.0 { self.bubble_wall_s() / self.makespan_s } else { 0.0 }
    }

    /// The bubble within spans: the most that a rank idles between its first and its last step.
    #[must_use]
    pub fn bubble_span_s(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.span_s() - rank.busy_s).fold(0.0, f64::max)
    }
}
