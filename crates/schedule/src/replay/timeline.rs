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
    /// The span that this one could not start before: the previous one of its rank, or the one on another rank
    /// that sent what it waited for, or freed the place that a message waited for.
    pub after: Option<SpanId>,
}

/// A span of a timeline: the rank, and the index of the span on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct SpanId {
    /// The rank.
    pub rank: PipeRank,
    /// Index into [`RankTimeline::spans`].
    pub index: usize,
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
/// There are two meanings of "bubble", and both are here, beside the mean idle share of all ranks
/// ([`Timeline::idle_share_mean`]):
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

    /// The wall bubble as a share of the makespan, by the busiest rank; 0 for a makespan of 0.
    #[must_use]
    pub fn bubble_wall_share(&self) -> f64 {
        if self.makespan_s > 0.0 { self.bubble_wall_s() / self.makespan_s } else { 0.0 }
    }

    /// The mean over the ranks of the share of the makespan that each has nothing to do; 0 for a makespan of 0.
    ///
    /// It is [`Timeline::bubble_wall_share`] where all ranks have the same work, and more where they differ: it
    /// counts the work that a better balance would spread. Measured times of an engine, which know no busiest rank,
    /// compare with this.
    #[must_use]
    pub fn idle_share_mean(&self) -> f64 {
        let n_ranks = self.ranks.len();
        #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "ranks are far below 2^53")]
        let whole_s = self.makespan_s * n_ranks as f64;
        let busy_s: f64 = self.ranks.iter().map(|rank| rank.busy_s).sum();
        if whole_s > 0.0 { 1.0 - busy_s / whole_s } else { 0.0 }
    }

    /// The bubble within spans: the most that a rank idles between its first and its last step.
    #[must_use]
    pub fn bubble_span_s(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.span_s() - rank.busy_s).fold(0.0, f64::max)
    }

    /// The span with an id, if there is one.
    #[must_use]
    pub fn span(&self, id: SpanId) -> Option<&Span> {
        self.rank(id.rank)?.spans.get(id.index)
    }

    /// The spans that the makespan hangs on, in order of time: each one starts when the one before it is done
    /// and its message, if any, is there. Only a shorter one of them, or a faster link between them, can make
    /// the whole shorter.
    ///
    /// # Examples
    /// ```
    /// # use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, gpipe, replay};
    /// let plan = check_plan(&gpipe(Shape { n_ranks: 2, n_micro_batches: 1 })?, Capacity(1))?;
    /// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
    /// let timeline = replay(&plan, &Costs::uniform(2, unit))?;
    /// let ranks: Vec<u32> = timeline.critical_path().iter().map(|id| id.rank.0).collect();
    /// assert_eq!(ranks, [0, 1, 1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn critical_path(&self) -> Vec<SpanId> {
        let lasts = (0..).map(PipeRank).zip(&self.ranks).filter_map(|(rank, timeline)| {
            let index = timeline.spans.len().checked_sub(1)?;
            Some((SpanId { rank, index }, timeline.spans.get(index)?.end_s))
        });
        let last = lasts.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id);
        let mut path: Vec<SpanId> =
            std::iter::successors(last, |&id| self.span(id).and_then(|span| span.after)).collect();
        path.reverse();
        path
    }
}
