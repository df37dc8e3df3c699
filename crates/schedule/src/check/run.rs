//! A run of a program: every rank goes on until it waits, links carry messages, and it ends or is stuck.

use std::collections::VecDeque;

use brigade_topology::{PipeRank, Stage};

use super::Capacity;
use super::links::Links;
use super::rank::RankRun;
use crate::error::{CheckError, Envelope, Pending};
use crate::instruction::Instruction;
use crate::program::Program;

/// What a run that ended has shown.
#[derive(Debug)]
pub(crate) struct Proof {
    /// The links used, in order of their ranks.
    pub(crate) links: Vec<(PipeRank, PipeRank)>,
    pub(crate) in_flight: Vec<u32>,
    /// The most messages that any link held at once.
    pub(crate) deepest: usize,
}

/// Why a rank does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    No,
    /// On a link that is full, or whose message has not been taken at capacity 0.
    Sending(usize),
    /// On a link that is empty.
    Receiving(usize),
    /// For the other rank that holds a stage, to sum the gradients of both.
    Meeting(PipeRank),
    Ended,
}

#[derive(Debug)]
pub(crate) struct Run<'a> {
    program: &'a Program,
    capacity: usize,
    links: Links,
    ranks: Vec<RankRun>,
    positions: Vec<usize>,
    blocked: Vec<Blocked>,
    /// At capacity 0: the rank's message lies on the link and waits to be taken.
    offered: Vec<bool>,
    /// The sum over copies that a rank waits to begin, and whether the other rank has come for it.
    meeting: Vec<Option<(Stage, bool)>>,
    ready: VecDeque<usize>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(program: &'a Program, capacity: Capacity) -> Result<Self, CheckError> {
        let n_ranks = program.streams().len();
        let mut links = Links::new(n_ranks);
        for (rank, stream) in ranks(program) {
            for (position, instruction) in stream.iter().enumerate() {
                let (peer, outgoing) = match (instruction.sends_to(), instruction.receives_from()) {
                    (Some(to), _) => (to, true),
                    (_, Some(from)) => (from, false),
                    _ => continue,
                };
                if peer.index() >= n_ranks || peer == rank {
                    return Err(CheckError::NoSuchPeer { rank, position, instruction: *instruction, peer });
                }
                if outgoing {
                    links.open(rank, peer);
                } else {
                    links.open(peer, rank);
                }
            }
        }
        let forward_only = program.plan().is_forward_only();
        let of_rank = |(rank, _)| RankRun::new(program, rank, forward_only);
        Ok(Self {
            program,
            capacity: usize::try_from(capacity.0).unwrap_or(usize::MAX),
            links,
            ranks: ranks(program).map(of_rank).collect(),
            positions: vec![0; n_ranks],
            blocked: vec![Blocked::No; n_ranks],
            offered: vec![false; n_ranks],
            meeting: vec![None; n_ranks],
            ready: (0..n_ranks).collect(),
        })
    }

    /// Runs to the end.
    pub(crate) fn finish(mut self) -> Result<Proof, CheckError> {
        while let Some(rank) = self.ready.pop_front() {
            self.advance(rank)?;
        }
        if self.blocked.iter().any(|blocked| *blocked != Blocked::Ended) {
            return Err(self.stuck());
        }
        for link in self.links.all() {
            if let Some(&message) = link.queue.front() {
                let (from, to, n_messages) = (link.from, link.to, link.queue.len());
                return Err(CheckError::NeverReceived { from, to, message, n_messages });
            }
        }
        for rank in &self.ranks {
            rank.complete()?;
            rank.copies_summed()?;
        }
        self.same_collectives()?;
        let mut links: Vec<_> = self.links.all().iter().map(|link| (link.from, link.to)).collect();
        links.sort_unstable();
        let deepest = self.links.all().iter().map(|link| link.deepest).max().unwrap_or(0);
        Ok(Proof { links, in_flight: self.ranks.iter().map(RankRun::peak_in_flight).collect(), deepest })
    }

    /// Lets one rank go on until it waits or ends.
    fn advance(&mut self, at: usize) -> Result<(), CheckError> {
        let program = self.program;
        let stream = &program.streams()[at];
        let rank = self.ranks[at].rank();
        self.blocked[at] = Blocked::No;
        while let Some(instruction) = stream.get(self.positions[at]) {
            let position = self.positions[at];
            if let Some((to, message)) = Envelope::sent(instruction) {
                if !self.offered[at] {
                    // What is sent must exist before the message does.
                    self.ranks[at].step(position, instruction)?;
                }
                if !self.send(at, rank, to, message) {
                    return Ok(());
                }
            } else if let Instruction::ReduceCopies { stage } = *instruction {
                if self.meeting[at].is_none() {
                    self.ranks[at].step(position, instruction)?;
                }
                if !self.meet(at, stage) {
                    return Ok(());
                }
            } else {
                if let Some((from, expected)) = Envelope::expected(instruction) {
                    let Some(found) = self.receive(at, rank, from) else { return Ok(()) };
                    if found != expected {
                        let instruction = *instruction;
                        return Err(CheckError::MessageOrder {
                            rank,
                            position,
                            instruction,
                            expected,
                            found,
                        });
                    }
                }
                self.ranks[at].step(position, instruction)?;
            }
            self.positions[at] += 1;
        }
        self.blocked[at] = Blocked::Ended;
        Ok(())
    }

    /// Puts a message on its link; false when the rank must wait.
    fn send(&mut self, at: usize, rank: PipeRank, to: PipeRank, message: Envelope) -> bool {
        let Some(id) = self.links.outgoing(rank, to) else { return false };
        let capacity = self.capacity;
        let link = self.links.get(id);
        if self.offered[at] {
            // Offered before: at capacity 0 it must be taken, else there was no room.
            let taken = if capacity == 0 { link.queue.is_empty() } else { link.queue.len() < capacity };
            if !taken {
                self.blocked[at] = Blocked::Sending(id);
                return false;
            }
            self.offered[at] = false;
            if capacity == 0 {
                return true;
            }
        } else if capacity == 0 || link.queue.len() >= capacity {
            self.offered[at] = true;
            self.blocked[at] = Blocked::Sending(id);
            if capacity == 0 {
                link.queue.push_back(message);
                self.wake(to, Blocked::Receiving(id));
            }
            return false;
        }
        let link = self.links.get(id);
        link.queue.push_back(message);
        link.deepest = link.deepest.max(link.queue.len());
        self.wake(to, Blocked::Receiving(id));
        true
    }

    /// Takes the first message of a link; nothing when the rank must wait.
    fn receive(&mut self, at: usize, rank: PipeRank, from: PipeRank) -> Option<Envelope> {
        let id = self.links.incoming(rank, from)?;
        let found = self.links.get(id).queue.pop_front();
        match found {
            Some(_) => self.wake(from, Blocked::Sending(id)),
            None => self.blocked[at] = Blocked::Receiving(id),
        }
        found
    }

    /// Meets the other rank that holds a stage; false when this rank must wait for it.
    fn meet(&mut self, at: usize, stage: Stage) -> bool {
        if self.meeting[at].take_if(|(_, both)| *both).is_some() {
            return true;
        }
        let Some(other) = self.ranks[at].other_holder(stage) else { return true };
        if let Some((_, both)) = self.meeting[other.index()].as_mut().filter(|(waits, _)| *waits == stage) {
            *both = true;
            self.wake(other, Blocked::Meeting(self.ranks[at].rank()));
            return true;
        }
        self.meeting[at] = Some((stage, false));
        self.blocked[at] = Blocked::Meeting(other);
        false
    }

    fn wake(&mut self, rank: PipeRank, reason: Blocked) {
        let at = rank.index();
        if self.blocked[at] == reason {
            self.blocked[at] = Blocked::No;
            self.ready.push_back(at);
        }
    }

    /// Says what the ranks that did not end wait for.
    fn stuck(&self) -> CheckError {
        let pending: Vec<Pending> = ranks(self.program)
            .filter_map(|(rank, stream)| {
                let waits_for = match self.blocked[rank.index()] {
                    Blocked::Sending(link) => self.links.all()[link].to,
                    Blocked::Receiving(link) => self.links.all()[link].from,
                    Blocked::Meeting(other) => other,
                    Blocked::No | Blocked::Ended => return None,
                };
                let position = self.positions[rank.index()];
                Some(Pending { rank, position, instruction: *stream.get(position)?, waits_for })
            })
            .collect();
        let ended = |rank: PipeRank| self.blocked[rank.index()] == Blocked::Ended;
        if let Some(pending) = pending.iter().find(|pending| ended(pending.waits_for)) {
            return CheckError::NoCounterpart { pending: *pending };
        }
        let waits_for = |rank| pending.iter().find(|p| p.rank == rank).map(|p| p.waits_for);
        let mut seen = Vec::new();
        let mut next = pending.first().map(|pending| pending.rank);
        while let Some(rank) = next {
            if let Some(start) = seen.iter().position(|&earlier| earlier == rank) {
                seen.drain(..start);
                break;
            }
            seen.push(rank);
            next = waits_for(rank);
        }
        CheckError::Deadlock { cycle: seen, pending }
    }

    fn same_collectives(&self) -> Result<(), CheckError> {
        let collectives = |stream: &[Instruction]| -> Vec<Instruction> {
            stream.iter().filter(|instruction| instruction.is_collective()).copied().collect()
        };
        let mut all = ranks(self.program).map(|(rank, stream)| (rank, collectives(stream)));
        let Some((first, expected)) = all.next() else { return Ok(()) };
        match all.find(|(_, found)| *found != expected) {
            Some((rank, found)) => Err(CheckError::Collectives { rank, found, first, expected }),
            None => Ok(()),
        }
    }
}

/// The streams with their ranks.
fn ranks(program: &Program) -> impl Iterator<Item = (PipeRank, &[Instruction])> {
    (0..program.plan().placement().n_ranks()).map(PipeRank).map(|rank| (rank, program.stream(rank)))
}
