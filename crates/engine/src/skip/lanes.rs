//! Links for values that go straight from one stage to another, and what a micro-batch keeps for them.

use std::collections::BTreeMap;

use brigade_schedule::{CheckedPlan, MicroBatch};
use brigade_topology::{self as topology, PipeRank, Rank, Stage};
use brigade_wire::Tree;
use crossbeam::channel::{Receiver, Sender};

use super::SkipStore;
use super::layout::{Lane, LaneValue, SkipLayout};
use crate::error::{Cause, Site, StepError};
use crate::hub::{LaneNumber, LinkKey};
use crate::message::{BoundaryTensor, Direction, Message, Tag};
use crate::tensor::{AnyTensor, LeafRole};
use crate::world::RankHandle;

/// A rank's ends of one link.
#[derive(Default)]
struct Ends {
    send: Option<Sender<Message>>,
    receive: Option<Receiver<Message>>,
}

/// The two ranks of a lane, and this rank's ends of the links between them.
struct Way {
    from: PipeRank,
    to: PipeRank,
    values: Ends,
    gradients: Ends,
}

impl Way {
    fn ends(&self, direction: Direction) -> &Ends {
        if direction == Direction::Forward { &self.values } else { &self.gradients }
    }
}

/// A rank's ends of the lanes of one plan: values go one way, their gradients the other.
///
/// # Waiting
/// Nobody ever waits on a lane for long. A value is sent within the forward pass that makes it, before
/// the stage's output is; the user's forward pass depends on that output through the stages between, so
/// the value is on its lane when the user asks for it. Backward the same: a gradient is sent within the
/// backward pass that makes it, before the gradient that the producer's backward pass waits for. And a
/// sender finds room: between the forward pass of a micro-batch at the producer and its backward pass
/// there, each lane of the producer holds at most one message of it, a value or later its gradient. So a
/// lane never holds more than the micro-batches in flight at the producer, which is its capacity. As
/// nobody waits, lanes cannot add a deadlock to a plan that the checker has proved free of them.
pub(crate) struct Lanes {
    pipe_rank: PipeRank,
    ranks: Vec<Rank>,
    is_bidirectional: bool,
    /// By lane: one way, or two where micro-batches go through the stages' ranks in both directions.
    ways: Vec<Vec<Way>>,
}

/// The most messages of one direction that a lane from a stage of `rank` holds at once.
fn capacity(plan: &CheckedPlan, rank: PipeRank) -> usize {
    let m = plan.n_micro_batches();
    // Without backward passes only the boundary links hold a producer back.
    let in_flight = if plan.is_forward_only() { m } else { plan.in_flight(rank).min(m) };
    usize::try_from(in_flight.max(1)).unwrap_or(usize::MAX)
}

impl Lanes {
    pub(crate) fn new(
        rank: &RankHandle,
        serial: u64,
        plan: &CheckedPlan,
        pipe_rank: PipeRank,
        ranks: &[Rank],
        layout: &SkipLayout,
    ) -> Result<Self, Cause> {
        let is_bidirectional = plan.placement().is_bidirectional();
        let mut lanes = Self { pipe_rank, ranks: ranks.to_vec(), is_bidirectional, ways: Vec::new() };
        let towards = [topology::Direction::Down, topology::Direction::Up];
        let n_ways = if is_bidirectional { 2 } else { 1 };
        for lane in &layout.lanes {
            let mut ways = Vec::new();
            for &towards in &towards[..n_ways] {
                let home = |stage| plan.placement().rank_towards(stage, towards);
                let home = |stage| home(stage).expect("the plan places every stage");
                let number = LaneNumber { from: lane.from, to: lane.to, way: ways.len() };
                ways.push(lanes.way(rank, serial, number, (home(lane.from), home(lane.to)), plan)?);
            }
            lanes.ways.push(ways);
        }
        Ok(lanes)
    }

    /// Fetches this rank's ends of the two links of a lane.
    fn way(
        &self,
        rank: &RankHandle,
        serial: u64,
        lane: LaneNumber,
        (from, to): (PipeRank, PipeRank),
        plan: &CheckedPlan,
    ) -> Result<Way, Cause> {
        let hub = rank.hub();
        let capacity = capacity(plan, from);
        let mut way = Way { from, to, values: Ends::default(), gradients: Ends::default() };
        let key = |from: PipeRank, to: PipeRank, direction| {
            let (from, to) = (self.ranks[from.index()], self.ranks[to.index()]);
            LinkKey { plan: serial, from, to, lane: Some((lane, direction)) }
        };
        // Between two stages of one rank nothing is sent.
        if from != to && from == self.pipe_rank {
            way.values.send = Some(hub.sender(key(from, to, Direction::Forward), capacity)?);
            way.gradients.receive = Some(hub.receiver(key(to, from, Direction::Backward), capacity)?);
        }
        if from != to && to == self.pipe_rank {
            way.values.receive = Some(hub.receiver(key(from, to, Direction::Forward), capacity)?);
            way.gradients.send = Some(hub.sender(key(to, from, Direction::Backward), capacity)?);
        }
        Ok(way)
    }

    /// The ranks and links of a lane for a micro-batch.
    fn of(&self, lane: usize, micro_batch: MicroBatch) -> &Way {
        let up = self.is_bidirectional && micro_batch.direction() == topology::Direction::Up;
        &self.ways[lane][usize::from(up)]
    }

    /// World rank at the other end.
    fn peer(&self, lane: usize, micro_batch: MicroBatch) -> Rank {
        let Way { from, to, .. } = *self.of(lane, micro_batch);
        self.ranks[if from == self.pipe_rank { to } else { from }.index()]
    }
}

/// Tensors, or gradients, of each lane of a stage.
pub(crate) type ByLane<T> = BTreeMap<usize, Vec<T>>;

/// What a micro-batch keeps at one stage, from its forward to its backward pass, for each lane there.
#[derive(Debug, Default)]
pub(crate) struct LaneSlot {
    /// Tensors that were sent and want a gradient, by lane and value.
    sent: ByLane<Vec<AnyTensor>>,
    /// Leaves whose sender wants a gradient, by lane, in the order of values, users and tensors.
    received: ByLane<AnyTensor>,
}

/// One run's messages on the lanes of a rank.
pub(crate) struct Traffic<'a> {
    rank: &'a RankHandle,
    lanes: &'a Lanes,
    layout: &'a SkipLayout,
    /// Messages that came before their turn, since stages may take micro-batches in different orders, and
    /// those between two stages of this rank.
    early: BTreeMap<(usize, Direction, u32), Message>,
    slots: BTreeMap<(Stage, u32), LaneSlot>,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(rank: &'a RankHandle, lanes: &'a Lanes, layout: &'a SkipLayout) -> Self {
        Self { rank, lanes, layout, early: BTreeMap::new(), slots: BTreeMap::new() }
    }

    /// Puts what the lanes bring for a forward pass into the stage's store.
    pub(crate) fn receive_values(
        &mut self,
        stage: Stage,
        micro_batch: MicroBatch,
        training: bool,
        store: &mut SkipStore<'_>,
        site: &impl Fn() -> Site,
    ) -> Result<(), StepError> {
        let layout = self.layout;
        for &number in &layout.stage(stage).lanes_in {
            let lane = &layout.lanes[number];
            let message = self.take(number, Direction::Forward, micro_batch, site)?;
            let peer = self.lanes.peer(number, micro_batch);
            let tree = message.into_tree();
            let tree = tree.map_err(|source| self.fail(site, Cause::Message { peer, source }))?;
            let values = match tree {
                Tree::Tuple(values) if values.len() == lane.values.len() => values,
                _ => return Err(self.fail(site, self.unexpected(number, Direction::Forward, micro_batch))),
            };
            let mut leaves = Vec::new();
            for (value, LaneValue { users, .. }) in values.into_iter().zip(&lane.values) {
                for &user in users {
                    store.offer_to(user, leaf(value.clone(), training, &mut leaves));
                }
            }
            if training {
                self.slot(stage, micro_batch).received.insert(number, leaves);
            }
        }
        Ok(())
    }

    /// Sends what a forward pass has made for other stages.
    pub(crate) fn send_values(
        &mut self,
        stage: Stage,
        micro_batch: MicroBatch,
        training: bool,
        leaving: &BTreeMap<usize, Tree<AnyTensor>>,
        site: &impl Fn() -> Site,
    ) -> Result<(), StepError> {
        let layout = self.layout;
        for &number in &layout.stage(stage).lanes_out {
            let values = layout.lanes[number].values.iter().map(|value| leaving[&value.skip].clone());
            let values: Vec<_> = values.collect();
            if training {
                let sent = values.iter().map(tracked).collect();
                self.slot(stage, micro_batch).sent.insert(number, sent);
            }
            let tag = Tag { stage, micro_batch, direction: Direction::Forward };
            let (message, _) = Message::activations(tag, Tree::Tuple(values));
            self.put(number, message, site)?;
        }
        Ok(())
    }

    /// Receives the gradients of what a stage sent: pairs for its backward pass, those of the later users
    /// last, as Burn visits them first then and adds in that order.
    pub(crate) fn receive_gradients(
        &mut self,
        stage: Stage,
        micro_batch: MicroBatch,
        site: &impl Fn() -> Site,
    ) -> Result<Vec<(AnyTensor, AnyTensor)>, StepError> {
        let sent = std::mem::take(&mut self.slot(stage, micro_batch).sent);
        let mut pairs: Vec<(usize, (AnyTensor, AnyTensor))> = Vec::new();
        for (number, tensors) in sent {
            let message = self.take(number, Direction::Backward, micro_batch, site)?;
            let peer = self.lanes.peer(number, micro_batch);
            let gradients = message.into_gradients();
            let gradients = gradients.map_err(|source| self.fail(site, Cause::Message { peer, source }))?;
            let lane = &self.layout.lanes[number];
            let wanted: Vec<(usize, &AnyTensor)> = lane
                .values
                .iter()
                .zip(&tensors)
                .flat_map(|(value, tensors)| {
                    value.users.iter().flat_map(move |&user| tensors.iter().map(move |tensor| (user, tensor)))
                })
                .collect();
            let (expected, found) = (wanted.len(), gradients.as_ref().map_or(0, Vec::len));
            let gradients = match gradients {
                Some(gradients) if found == expected => gradients,
                _ => return Err(self.fail(site, Cause::GradientCount { peer, expected, found })),
            };
            let with_gradient = wanted.into_iter().zip(gradients);
            pairs.extend(with_gradient.filter_map(|((user, tensor), g)| Some((user, (tensor.clone(), g?)))));
        }
        pairs.sort_by_key(|(user, _)| *user);
        Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
    }

    /// The leaves that a stage received and owes a gradient for, by lane.
    pub(crate) fn take_leaves(&mut self, stage: Stage, micro_batch: MicroBatch) -> ByLane<AnyTensor> {
        self.slots.remove(&(stage, micro_batch.0)).unwrap_or_default().received
    }

    /// Sends the gradients of what a stage received, one for each leaf of [`Traffic::take_leaves`].
    pub(crate) fn send_gradients(
        &mut self,
        stage: Stage,
        micro_batch: MicroBatch,
        gradients: ByLane<Option<AnyTensor>>,
        site: &impl Fn() -> Site,
    ) -> Result<(), StepError> {
        for (number, gradients) in gradients {
            let tag = Tag { stage, micro_batch, direction: Direction::Backward };
            self.put(number, Message::gradients(tag, gradients), site)?;
        }
        Ok(())
    }

    fn slot(&mut self, stage: Stage, micro_batch: MicroBatch) -> &mut LaneSlot {
        self.slots.entry((stage, micro_batch.0)).or_default()
    }

    fn fail(&self, site: &impl Fn() -> Site, cause: Cause) -> StepError {
        self.rank.hub().fail(StepError::new(site(), cause))
    }

    fn put(&mut self, lane: usize, message: Message, site: &impl Fn() -> Site) -> Result<(), StepError> {
        let Tag { micro_batch, direction, .. } = message.tag;
        match &self.lanes.of(lane, micro_batch).ends(direction).send {
            Some(link) => self.rank.hub().send(link, self.lanes.peer(lane, micro_batch), message, site),
            None => {
                self.early.insert((lane, direction, micro_batch.0), message);
                Ok(())
            }
        }
    }

    /// The message of a micro-batch, whatever comes before it on the link.
    fn take(
        &mut self,
        number: usize,
        direction: Direction,
        micro_batch: MicroBatch,
        site: &impl Fn() -> Site,
    ) -> Result<Message, StepError> {
        let key = (number, direction, micro_batch.0);
        loop {
            if let Some(message) = self.early.remove(&key) {
                return Ok(message);
            }
            let lanes = self.lanes;
            let peer = lanes.peer(number, micro_batch);
            let Some(link) = &lanes.of(number, micro_batch).ends(direction).receive else {
                return Err(self.fail(site, self.unexpected(number, direction, micro_batch)));
            };
            let message = self.rank.hub().receive(link, peer, site)?;
            let Tag { stage, micro_batch: found, direction: way } = message.tag;
            let lane = &self.layout.lanes[number];
            let sender = if direction == Direction::Forward { lane.from } else { lane.to };
            let fits = stage == sender && way == direction;
            if !fits || self.early.contains_key(&(number, direction, found.0)) {
                let expected = Tag { stage: sender, micro_batch, direction }.to_string();
                let cause = Cause::UnexpectedMessage { peer, expected, found: message.tag.to_string() };
                return Err(self.fail(site, cause));
            }
            self.early.insert((number, direction, found.0), message);
        }
    }

    fn unexpected(&self, number: usize, direction: Direction, micro_batch: MicroBatch) -> Cause {
        let lane: &Lane = &self.layout.lanes[number];
        let stage = if direction == Direction::Forward { lane.from } else { lane.to };
        let expected = Tag { stage, micro_batch, direction }.to_string();
        Cause::UnexpectedMessage {
            peer: self.lanes.peer(number, micro_batch),
            expected,
            found: "another value".to_owned(),
        }
    }
}

/// Makes a received value a user's own: in training its tensors are leaves of a new graph.
pub(crate) fn leaf(
    value: Tree<BoundaryTensor>,
    training: bool,
    wanted: &mut Vec<AnyTensor>,
) -> Tree<AnyTensor> {
    value.map(|BoundaryTensor { tensor, role }| {
        if !training {
            return tensor;
        }
        let leaf = tensor.into_leaf(role);
        if role == LeafRole::GradientWanted {
            wanted.push(leaf.clone());
        }
        leaf
    })
}

/// The tensors of a value that a gradient can come back for, in the order of a message.
fn tracked(value: &Tree<AnyTensor>) -> Vec<AnyTensor> {
    let mut found = Vec::new();
    value.for_each(|tensor| {
        if tensor.is_tracked() {
            found.push(tensor.clone());
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use brigade_schedule::{Capacity, Instruction, Schedule, Shape, check_plan, least_capacity, lower};

    use super::*;

    /// One rank is held up as long as any other can go on: the most that a run of the plan lets the
    /// others get ahead of it.
    struct Run<'a> {
        plan: &'a CheckedPlan,
        held_up: PipeRank,
        positions: Vec<usize>,
        queues: BTreeMap<(PipeRank, PipeRank), usize>,
        /// Forward and backward passes of each stage, by direction of the micro-batch.
        passes: BTreeMap<(Stage, bool, bool), usize>,
        most: BTreeMap<(Stage, Stage, bool), usize>,
    }

    impl Run<'_> {
        fn step(&mut self, rank: PipeRank) -> bool {
            let Some(instruction) = self.plan.instructions(rank).get(self.positions[rank.index()]) else {
                return false;
            };
            if let Some(to) = instruction.sends_to() {
                let queue = self.queues.entry((rank, to)).or_default();
                if *queue >= usize::try_from(self.plan.link_capacity().0.max(1)).expect("small") {
                    return false;
                }
                *queue += 1;
            } else if let Some(from) = instruction.receives_from() {
                let queue = self.queues.entry((from, rank)).or_default();
                if *queue == 0 {
                    return false;
                }
                *queue -= 1;
            }
            let pass = match *instruction {
                Instruction::ForwardPass { stage, micro_batch, .. } => Some((stage, micro_batch, true)),
                Instruction::BackwardPass { stage, micro_batch, .. }
                | Instruction::InputGrad { stage, micro_batch, .. } => Some((stage, micro_batch, false)),
                _ => None,
            };
            if let Some((stage, micro_batch, forward)) = pass {
                let up = self.plan.placement().is_bidirectional()
                    && micro_batch.direction() == topology::Direction::Up;
                *self.passes.entry((stage, up, forward)).or_default() += 1;
                self.measure(stage, up, forward);
            }
            self.positions[rank.index()] += 1;
            true
        }

        /// How many messages every lane from or to this stage would hold now.
        fn measure(&mut self, stage: Stage, up: bool, forward: bool) {
            let n_stages = self.plan.placement().n_stages();
            let count = |stage, forward| self.passes.get(&(stage, up, forward)).copied().unwrap_or(0);
            let mut found = Vec::new();
            for other in (0..n_stages).map(Stage).filter(|&other| other != stage) {
                let (from, to) = (stage.min(other), stage.max(other));
                let (sender, receiver) = if forward { (from, to) } else { (to, from) };
                found.push(((from, to, up), count(sender, forward).checked_sub(count(receiver, forward))));
            }
            for (lane, held) in found {
                let held = held.expect("a message is sent before it is taken");
                let most = self.most.entry(lane).or_default();
                *most = held.max(*most);
            }
        }

        fn finish(mut self) -> BTreeMap<(Stage, Stage, bool), usize> {
            let ranks: Vec<PipeRank> = self.plan.placement().ranks().collect();
            let others = ranks.iter().copied().filter(|&rank| rank != self.held_up);
            let order: Vec<PipeRank> = others.chain([self.held_up]).collect();
            while order.iter().any(|&rank| self.step(rank)) {}
            let done = |rank: &PipeRank| self.positions[rank.index()] == self.plan.instructions(*rank).len();
            assert!(ranks.iter().all(done), "the run ends");
            self.most
        }
    }

    #[test]
    fn no_lane_of_any_schedule_ever_holds_more_than_its_capacity() {
        let (mut n_lanes, mut n_tight) = (0, 0);
        for schedule in Schedule::ALL {
            for (p, m) in (1..=4).flat_map(|p| [1, 4, 8, 9].map(|m| (p, m))) {
                let shape = Shape { n_ranks: p, n_micro_batches: m };
                let Ok(plan) = schedule.plan(shape) else { continue };
                let least = least_capacity(&lower(&plan).expect("lowered")).expect("no deadlock");
                let checked = check_plan(&plan, least).expect("sound");
                let in_flight = plan.placement().ranks().map(|rank| checked.in_flight(rank)).max();
                let links = Capacity(in_flight.unwrap_or(1).max(least.0));
                let plan = check_plan(&plan, links).expect("sound");
                for held_up in (0..p).map(PipeRank) {
                    let positions = vec![0; usize::try_from(p).expect("small")];
                    let (queues, passes, most) = Default::default();
                    let run = Run { plan: &plan, held_up, positions, queues, passes, most };
                    for ((from, to, up), most) in run.finish() {
                        let towards = if up { topology::Direction::Up } else { topology::Direction::Down };
                        let home = plan.placement().rank_towards(from, towards).expect("a stage");
                        let capacity = capacity(&plan, home);
                        assert!(most <= capacity, "{schedule} p={p} m={m}, {from} to {to}: {most}");
                        n_lanes += 1;
                        n_tight += usize::from(most == capacity);
                    }
                }
            }
        }
        assert!(
            n_lanes > 1000 && n_tight > 100,
            "{n_lanes} lanes, {n_tight} of them filled to the last place"
        );
    }
}
