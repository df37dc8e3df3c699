//! What the ranks of one process share: links, collectives and the first failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use brigade_topology::{Rank, Stage};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, select_biased};

use crate::error::{Cause, Site, StepError};
use crate::message::{Direction, Message};

/// One direction between two ranks, for one plan of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkKey {
    /// Counts the plans that a rank has set up; the same on every rank that makes the same calls.
    pub(crate) plan: u64,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// For values that go straight from a stage to a later one, and for their gradients.
    pub(crate) lane: Option<(LaneNumber, Direction)>,
}

/// The stages of a lane, and which of the directions of a bidirectional pipeline it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneNumber {
    pub(crate) from: Stage,
    pub(crate) to: Stage,
    pub(crate) way: usize,
}

/// What a rank puts into a collective: numbers, and tensors when it has some to share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contribution {
    /// What this rank called: compared between all ranks.
    pub(crate) call: String,
    pub(crate) words: Vec<u64>,
    pub(crate) messages: Vec<Message>,
}

/// The halves of a link that have not been fetched yet.
struct Link {
    capacity: usize,
    sender: Option<Sender<Message>>,
    receiver: Option<Receiver<Message>>,
}

struct Round {
    generation: u64,
    slots: Vec<Option<Contribution>>,
    result: Arc<Vec<Contribution>>,
    ended: BTreeSet<Rank>,
}

/// No value of this type exists: a channel of it only tells that its sender is gone.
enum Never {}

/// The shared state of a world of threads.
pub(crate) struct Hub {
    deadline: Duration,
    first: OnceLock<StepError>,
    closer: Mutex<Option<Sender<Never>>>,
    closed: Receiver<Never>,
    links: Mutex<BTreeMap<LinkKey, Link>>,
    round: Mutex<Round>,
    turned: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of ours panics while it holds one of these locks, so the data is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn new(n_ranks: usize, deadline: Duration) -> Self {
        // Capacity: nothing is ever sent.
        let (closer, closed) = bounded(0);
        Self {
            deadline,
            first: OnceLock::new(),
            closer: Mutex::new(Some(closer)),
            closed,
            links: Mutex::new(BTreeMap::new()),
            round: Mutex::new(Round {
                generation: 0,
                slots: vec![None; n_ranks],
                result: Arc::default(),
                ended: BTreeSet::new(),
            }),
            turned: Condvar::new(),
        }
    }

    pub(crate) fn n_ranks(&self) -> usize {
        lock(&self.round).slots.len()
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Records a failure unless there is one already, wakes every waiting rank, and returns the first.
    pub(crate) fn fail(&self, error: StepError) -> StepError {
        let first = self.first.get_or_init(|| error).clone();
        drop(lock(&self.closer).take());
        let round = lock(&self.round);
        self.turned.notify_all();
        drop(round);
        first
    }

    pub(crate) fn first_failure(&self) -> Option<&StepError> {
        self.first.get()
    }

    /// A receiver that disconnects at the first failure.
    pub(crate) fn failure_signal(&self) -> Receiver<impl Sized + use<>> {
        self.closed.clone()
    }

    /// Marks a rank's program as ended: whoever waits for it is told.
    pub(crate) fn leave(&self, rank: Rank) {
        let mut round = lock(&self.round);
        round.ended.insert(rank);
        self.turned.notify_all();
        drop(round);
        for (key, link) in lock(&self.links).iter_mut() {
            Self::drop_halves(rank, key, link);
        }
    }

    fn drop_halves(rank: Rank, key: &LinkKey, link: &mut Link) {
        if key.from == rank {
            link.sender = None;
        }
        if key.to == rank {
            link.receiver = None;
        }
    }

    /// Fetches this rank's half of a link; the first rank to ask makes the channel.
    fn half<T>(
        &self,
        key: LinkKey,
        capacity: usize,
        take: impl FnOnce(&mut Link) -> Option<T>,
    ) -> Result<T, Cause> {
        // The links first: a rank that ends after this look finds the new link when it drops its halves.
        let mut links = lock(&self.links);
        let ended = lock(&self.round).ended.clone();
        let link = links.entry(key).or_insert_with(|| {
            // Capacity: what the checker proved the plan to need, and no more.
            let (sender, receiver) = bounded(capacity);
            let mut link = Link { capacity, sender: Some(sender), receiver: Some(receiver) };
            for rank in ended {
                Self::drop_halves(rank, &key, &mut link);
            }
            link
        });
        if link.capacity != capacity {
            return Err(Cause::LinkDiffers {
                from: key.from,
                to: key.to,
                here: capacity,
                there: link.capacity,
            });
        }
        let half = take(link);
        if link.sender.is_none() && link.receiver.is_none() {
            links.remove(&key);
        }
        // Each half is fetched once, by its owner: it is there unless the owner has ended.
        half.ok_or(Cause::ProgramEnded)
    }

    pub(crate) fn sender(&self, key: LinkKey, capacity: usize) -> Result<Sender<Message>, Cause> {
        self.half(key, capacity, |link| link.sender.take())
    }

    pub(crate) fn receiver(&self, key: LinkKey, capacity: usize) -> Result<Receiver<Message>, Cause> {
        self.half(key, capacity, |link| link.receiver.take())
    }

    /// Sends a message; waits while the link is full.
    pub(crate) fn send(
        &self,
        link: &Sender<Message>,
        to: Rank,
        message: Message,
        site: impl Fn() -> Site,
    ) -> Result<(), StepError> {
        let cause = select_biased! {
            recv(self.closed) -> _ => return Err(self.stopped(site)),
            send(link, message) -> sent => match sent {
                Ok(()) => return Ok(()),
                Err(_) => Cause::PeerEnded { peer: to, what: "receive" },
            },
            default(self.deadline) => self.late(to),
        };
        Err(self.fail(StepError::new(site(), cause)))
    }

    /// Receives the next message of a link.
    pub(crate) fn receive(
        &self,
        link: &Receiver<Message>,
        from: Rank,
        site: impl Fn() -> Site,
    ) -> Result<Message, StepError> {
        let cause = select_biased! {
            recv(self.closed) -> _ => return Err(self.stopped(site)),
            recv(link) -> received => match received {
                Ok(message) => return Ok(message),
                Err(_) => Cause::PeerEnded { peer: from, what: "send" },
            },
            default(self.deadline) => self.late(from),
        };
        Err(self.fail(StepError::new(site(), cause)))
    }

    fn late(&self, peer: Rank) -> Cause {
        Cause::Deadline { peer: format!("rank {peer}"), waited: self.deadline }
    }

    /// The failure behind a closed signal.
    fn stopped(&self, site: impl Fn() -> Site) -> StepError {
        match self.first.get() {
            Some(first) => first.clone(),
            None => StepError::new(site(), Cause::ProgramStopped { message: "unknown".to_owned() }),
        }
    }

    /// Puts a contribution in and waits until every rank has; returns all, in rank order.
    pub(crate) fn exchange(
        &self,
        rank: Rank,
        contribution: Contribution,
        site: impl Fn() -> Site,
    ) -> Result<Arc<Vec<Contribution>>, StepError> {
        if let Some(first) = self.first.get() {
            return Err(first.clone());
        }
        let until = Instant::now() + self.deadline;
        let mut round = lock(&self.round);
        let generation = round.generation;
        round.slots[rank.index()] = Some(contribution);
        if round.slots.iter().all(Option::is_some) {
            round.result = Arc::new(round.slots.iter_mut().filter_map(Option::take).collect());
            round.generation += 1;
            self.turned.notify_all();
            return Ok(Arc::clone(&round.result));
        }
        let cause = loop {
            if round.generation != generation {
                return Ok(Arc::clone(&round.result));
            }
            if let Some(first) = self.first.get() {
                return Err(first.clone());
            }
            if let Some(&peer) = round.ended.first() {
                break Cause::PeerEnded { peer, what: "take part in the step" };
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break self.late_for_collective(&round);
            }
            round = self.turned.wait_timeout(round, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(round);
        Err(self.fail(StepError::new(site(), cause)))
    }

    fn late_for_collective(&self, round: &Round) -> Cause {
        let missing: Vec<String> = round
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_none())
            .map(|(rank, _)| rank.to_string())
            .collect();
        Cause::Deadline { peer: format!("rank(s) {}", missing.join(", ")), waited: self.deadline }
    }
}

/// Waits for a value until the deadline, or for ever when there is none.
pub(crate) fn receive_until<T>(link: &Receiver<T>, until: Option<Instant>) -> Result<T, RecvTimeoutError> {
    match until {
        Some(until) => link.recv_deadline(until),
        None => link.recv().map_err(RecvTimeoutError::from),
    }
}

#[cfg(test)]
mod tests {
    use brigade_schedule::MicroBatch;
    use brigade_wire::Tree;

    use super::*;
    use crate::message::Tag;

    const KEY: LinkKey = LinkKey { plan: 0, from: Rank(0), to: Rank(1), lane: None };

    fn message(micro_batch: u32) -> Message {
        let tag =
            Tag { stage: Stage(0), micro_batch: MicroBatch(micro_batch), direction: Direction::Forward };
        Message::activations(tag, Tree::None).0
    }

    fn site() -> Site {
        Site { rank: Rank(0), stage: None, micro_batch: None, instruction: "test".to_owned() }
    }

    #[test]
    fn a_link_holds_its_capacity_and_no_more() {
        for capacity in 0..4 {
            let hub = Hub::new(2, Duration::from_millis(20));
            let sender = hub.sender(KEY, capacity).expect("the first end");
            let receiver = hub.receiver(KEY, capacity).expect("the second end");
            let mut n_sent = 0;
            let error = loop {
                match hub.send(&sender, Rank(1), message(n_sent), site) {
                    Ok(()) => n_sent += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(usize::try_from(n_sent), Ok(capacity));
            assert!(matches!(error.cause(), Cause::Deadline { .. }), "{error}");
            assert_eq!(receiver.len(), capacity);
        }
    }

    #[test]
    fn ends_that_disagree_on_the_capacity_are_told() {
        let hub = Hub::new(2, Duration::from_secs(1));
        let _sender = hub.sender(KEY, 2).expect("the first end");
        let cause = hub.receiver(KEY, 3).expect_err("another capacity");
        assert!(matches!(cause, Cause::LinkDiffers { here: 3, there: 2, .. }), "{cause}");
    }

    #[test]
    fn a_link_to_a_rank_that_has_ended_says_so() {
        let hub = Hub::new(2, Duration::from_secs(60));
        hub.leave(Rank(0));
        let receiver = hub.receiver(KEY, 1).expect("the end that is left");
        let error = hub.receive(&receiver, Rank(0), site).expect_err("nobody sends");
        assert!(matches!(error.cause(), Cause::PeerEnded { peer: Rank(0), .. }), "{error}");
    }

    #[test]
    fn collectives_give_every_rank_all_contributions_in_rank_order() {
        let n_ranks = 4;
        let hub = Hub::new(n_ranks, Duration::from_secs(60));
        std::thread::scope(|scope| {
            for rank in 0..4_u32 {
                let hub = &hub;
                scope.spawn(move || {
                    // Back to back, and nothing gathers.
                    for round in 0..1000_u64 {
                        let words = vec![round, u64::from(rank)];
                        let contribution = Contribution { words, ..Contribution::default() };
                        let all = hub.exchange(Rank::from(rank), contribution, site).expect("all take part");
                        let ranks: Vec<_> = all.iter().map(|c| (c.words[0], c.words[1])).collect();
                        assert_eq!(ranks, (0..4).map(|rank| (round, rank)).collect::<Vec<_>>());
                    }
                });
            }
        });
    }
}
