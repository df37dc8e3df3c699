//! The event simulation of a replay.

use std::collections::VecDeque;

use brigade_topology::{PipeRank, Stage};

use super::costs::{Costs, LinkCosts};
use super::timeline::{RankTimeline, Span, SpanId, Timeline};
use crate::action::{Action, ComputeKind};
use crate::check::CheckedPlan;
use crate::instruction::Instruction;

/// A moment, and the span that brought it about.
#[derive(Debug, Clone, Copy)]
struct Moment {
    time_s: f64,
    after: Option<SpanId>,
}

/// A link with the times of what lies on it.
#[derive(Debug)]
struct Link {
    ends: (PipeRank, PipeRank),
    costs: LinkCosts,
    /// When each message that is not taken yet is there; at rendezvous, when its sender is ready.
    arrivals: VecDeque<Moment>,
    /// When places of the link that are not used again yet became free; at rendezvous, when transfers ended.
    freed: VecDeque<Moment>,
    n_sent: usize,
    n_bytes: VecDeque<u64>,
    /// When the wire is free for the next transfer.
    wire_free_s: f64,
}

/// One rank on its way through its stream.
#[derive(Debug, Default)]
struct RankRun {
    position: usize,
    now_s: f64,
    /// The span that the rank could not go on before.
    after: Option<SpanId>,
    /// At rendezvous: the message is offered and not taken.
    offered: bool,
    /// When the rank was ready to sum the copies of a stage with another rank, while that has not come.
    meets_from: Option<Moment>,
    met: bool,
    waits_on: Option<usize>,
    pair: Pair,
    in_flight: u32,
    bytes: u64,
    timeline: RankTimeline,
}

/// Where a computation stands in the row of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Alone,
    /// First or second of an overlapped pair.
    First,
    Second,
}

/// A walk over the row of the plan beside the stream, which has the same computations in the same order.
#[derive(Debug, Default)]
struct Pair {
    cell: usize,
    first_is_done: bool,
}

impl Pair {
    fn next(&mut self, row: &[Action]) -> Place {
        if std::mem::take(&mut self.first_is_done) {
            return Place::Second;
        }
        while let Some(action) = row.get(self.cell) {
            self.cell += 1;
            match action {
                Action::Compute(_) => break,
                Action::Overlap { .. } => {
                    self.first_is_done = true;
                    return Place::First;
                }
                _ => {}
            }
        }
        Place::Alone
    }
}

#[derive(Debug)]
pub(crate) struct Run<'a> {
    plan: &'a CheckedPlan,
    costs: &'a Costs,
    capacity: usize,
    forward_only: bool,
    links: Vec<Link>,
    ranks: Vec<RankRun>,
    ready: VecDeque<usize>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(plan: &'a CheckedPlan, costs: &'a Costs) -> Self {
        let link = |&ends: &(PipeRank, PipeRank)| Link {
            ends,
            costs: costs.of_link(ends.0, ends.1),
            arrivals: VecDeque::new(),
            freed: VecDeque::new(),
            n_sent: 0,
            n_bytes: VecDeque::new(),
            wire_free_s: 0.0,
        };
        let n_ranks = plan.plan().rows().len();
        Self {
            plan,
            costs,
            capacity: usize::try_from(plan.link_capacity().0).unwrap_or(usize::MAX),
            forward_only: plan.is_forward_only(),
            links: plan.links().iter().map(link).collect(),
            ranks: (0..n_ranks).map(|_| RankRun::default()).collect(),
            ready: (0..n_ranks).collect(),
        }
    }

    pub(crate) fn finish(mut self) -> Timeline {
        while let Some(rank) = self.ready.pop_front() {
            self.advance(rank);
        }
        let makespan_s = self.ranks.iter().map(|rank| rank.now_s).fold(0.0, f64::max);
        Timeline { ranks: self.ranks.into_iter().map(|rank| rank.timeline).collect(), makespan_s }
    }

    /// Lets one rank go on until the time of its next step is not known yet.
    fn advance(&mut self, at: usize) {
        let plan = self.plan;
        let rank = PipeRank(u32::try_from(at).unwrap_or(u32::MAX));
        while let Some(instruction) = plan.instructions(rank).get(self.ranks[at].position) {
            let went_on = match (instruction.sends_to(), instruction.receives_from()) {
                (Some(to), _) => self.send(at, (rank, to), instruction),
                (_, Some(from)) => self.receive(at, (from, rank)),
                _ if !self.meet(at, rank, instruction) => false,
                _ => {
                    self.step(at, instruction);
                    true
                }
            };
            if !went_on {
                return;
            }
            self.ranks[at].position += 1;
        }
    }

    fn link(&self, ends: (PipeRank, PipeRank)) -> Option<usize> {
        self.links.binary_search_by_key(&ends, |link| link.ends).ok()
    }

    /// Sends; false when the rank must wait for the other end to go on.
    fn send(&mut self, at: usize, ends: (PipeRank, PipeRank), instruction: &Instruction) -> bool {
        let Some(id) = self.link(ends) else { return true };
        let bytes = message_bytes(self.costs, instruction);
        let capacity = self.capacity;
        let (rank, link) = (&mut self.ranks[at], &mut self.links[id]);
        let now = Moment { time_s: rank.now_s, after: rank.after };
        if capacity == 0 {
            if !rank.offered {
                rank.offered = true;
                link.arrivals.push_back(now);
                link.n_bytes.push_back(bytes);
                rank.waits_on = Some(id);
                self.wake(ends.1, id);
                return false;
            }
            let Some(end) = link.freed.pop_front() else {
                rank.waits_on = Some(id);
                return false;
            };
            rank.offered = false;
            rank.wait_for(end);
            return true;
        }
        if link.n_sent >= capacity {
            let Some(freed) = link.freed.pop_front() else {
                rank.waits_on = Some(id);
                return false;
            };
            rank.wait_for(freed);
        }
        link.n_sent += 1;
        link.wire_free_s = rank.now_s.max(link.wire_free_s) + link.costs.transfer_s(bytes);
        let time_s = link.wire_free_s + link.costs.latency_s;
        link.arrivals.push_back(Moment { time_s, after: rank.after });
        self.wake(ends.1, id);
        true
    }

    /// Receives; false when the rank must wait for the other end to go on.
    fn receive(&mut self, at: usize, ends: (PipeRank, PipeRank)) -> bool {
        let Some(id) = self.link(ends) else { return true };
        let (rank, link) = (&mut self.ranks[at], &mut self.links[id]);
        let Some(there) = link.arrivals.pop_front() else {
            rank.waits_on = Some(id);
            return false;
        };
        rank.wait_for(there);
        if self.capacity == 0 {
            let bytes = link.n_bytes.pop_front().unwrap_or(0);
            rank.now_s += link.costs.transfer_s(bytes) + link.costs.latency_s;
        }
        link.freed.push_back(Moment { time_s: rank.now_s, after: rank.after });
        self.wake(ends.0, id);
        true
    }

    /// Waits for the other rank that holds a stage, before their gradients are summed; false while it has not
    /// come. Two ranks share no more than one such sum at a time: the checker has seen to it.
    fn meet(&mut self, at: usize, rank: PipeRank, instruction: &Instruction) -> bool {
        let Instruction::ReduceCopies { stage } = *instruction else { return true };
        if std::mem::take(&mut self.ranks[at].met) {
            return true;
        }
        let mut holders = self.plan.placement().holders_of(stage).into_iter().flatten();
        let Some(other) = holders.find(|&holder| holder != rank).map(PipeRank::index) else { return true };
        let here = Moment { time_s: self.ranks[at].now_s, after: self.ranks[at].after };
        match self.ranks[other].meets_from.take() {
            Some(there) => {
                self.ranks[at].wait_for(there);
                self.ranks[other].wait_for(here);
                self.ranks[other].met = true;
                self.ready.push_back(other);
                true
            }
            None => {
                self.ranks[at].meets_from = Some(here);
                false
            }
        }
    }

    fn wake(&mut self, rank: PipeRank, link: usize) {
        let at = rank.index();
        if self.ranks[at].waits_on == Some(link) {
            self.ranks[at].waits_on = None;
            self.ready.push_back(at);
        }
    }

    /// A step that needs no other rank.
    fn step(&mut self, at: usize, instruction: &Instruction) {
        let costs = self.costs;
        let id = PipeRank(u32::try_from(at).unwrap_or(u32::MAX));
        let rank = &mut self.ranks[at];
        if let Some((share, kind)) = costs.overlap_hides.zip(instruction.compute_kind()) {
            match (rank.pair.next(self.plan.plan().row(id)), instruction.stage()) {
                (Place::First, Some(stage)) => {
                    rank.count(costs, kind, stage);
                    let rest = self.plan.instructions(id).get(rank.position + 1..).unwrap_or_default();
                    if let Some(second) = rest.iter().find(|step| step.compute_kind().is_some()) {
                        rank.run_pair(costs, id, [instruction, second], share);
                    }
                    return;
                }
                (Place::Second, Some(stage)) => return rank.count(costs, kind, stage),
                _ => {}
            }
        }
        let duration_s = match (instruction, instruction.compute_kind(), instruction.visit()) {
            (_, Some(kind), Some((stage, ..))) => {
                rank.count(costs, kind, stage);
                if self.forward_only {
                    // Nothing is kept for a backward pass.
                    (rank.in_flight, rank.bytes) = (0, 0);
                }
                costs.stage(stage).time_s(kind)
            }
            (Instruction::LoadMicroBatch { .. }, ..) => costs.load_s,
            (Instruction::Marker { kind, .. }, ..) => costs.markers.time_s(*kind),
            (Instruction::ReduceCopies { .. }, ..) => costs.reduce_copies_s,
            (Instruction::ReduceTiedGrads, ..) => costs.reduce_tied_s,
            (Instruction::ReduceGrads, ..) => costs.reduce_s,
            (Instruction::OptimizerStep, ..) => costs.optimizer_s,
            _ => return,
        };
        // What costs nothing, but for computations, is no part of what the rank does over time.
        if instruction.compute_kind().is_some() || duration_s > 0.0 {
            rank.run(id, *instruction, duration_s);
        }
    }
}

impl RankRun {
    /// Spends time on an instruction.
    fn run(&mut self, id: PipeRank, instruction: Instruction, duration_s: f64) {
        let (start_s, end_s) = (self.now_s, self.now_s + duration_s);
        self.now_s = end_s;
        self.timeline.busy_s += duration_s;
        let after = self.after.replace(SpanId { rank: id, index: self.timeline.spans.len() });
        self.timeline.spans.push(Span { instruction, start_s, end_s, after });
    }

    /// Spends time on two overlapped passes as one. Their spans share it as their own times would.
    fn run_pair(&mut self, costs: &Costs, id: PipeRank, pair: [&Instruction; 2], share: f64) {
        let time_s = |step: &Instruction| match (step.compute_kind(), step.stage()) {
            (Some(kind), Some(stage)) => costs.stage(stage).time_s(kind),
            _ => 0.0,
        };
        let [first_s, second_s] = pair.map(time_s);
        let both_s = first_s + second_s;
        let shrunk = if both_s > 0.0 { 1.0 - share * first_s.min(second_s) / both_s } else { 1.0 };
        self.run(id, *pair[0], first_s * shrunk);
        self.run(id, *pair[1], second_s * shrunk);
    }

    /// Goes on no earlier than `moment`.
    fn wait_for(&mut self, moment: Moment) {
        if moment.time_s > self.now_s {
            self.now_s = moment.time_s;
            self.after = moment.after;
        }
    }

    /// Keeps count of what is in flight; the peak stands between steps, after a forward pass.
    fn count(&mut self, costs: &Costs, kind: ComputeKind, stage: Stage) {
        let costs = costs.stage(stage);
        match kind {
            ComputeKind::Forward => {
                self.in_flight += 1;
                self.bytes = self.bytes.saturating_add(costs.activation_bytes);
            }
            ComputeKind::Backward => {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(costs.activation_bytes);
            }
            ComputeKind::InputGrad => {
                self.bytes = self.bytes.saturating_sub(costs.activation_bytes);
                self.bytes = self.bytes.saturating_add(costs.weight_grad_bytes);
            }
            ComputeKind::WeightGrad => {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(costs.weight_grad_bytes);
            }
        }
        self.timeline.peak_in_flight = self.timeline.peak_in_flight.max(self.in_flight);
        self.timeline.peak_bytes = self.timeline.peak_bytes.max(self.bytes);
    }
}

/// The size of what `instruction` sends: the output of a stage, or the gradient of its input, which has the
/// size of the previous stage's output.
fn message_bytes(costs: &Costs, instruction: &Instruction) -> u64 {
    match *instruction {
        Instruction::SendActivation { stage, .. } => costs.stage(stage).output_bytes,
        Instruction::SendGrad { stage, .. } => costs.stage(Stage(stage.0.saturating_sub(1))).output_bytes,
        _ => 0,
    }
}
