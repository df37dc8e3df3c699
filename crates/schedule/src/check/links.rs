//! The links of a program: ordered queues from one rank to another.

use std::collections::VecDeque;

use brigade_topology::{PipeRank, Stage};

use crate::action::MicroBatch;
use crate::error::Envelope;
use crate::instruction::Instruction;

impl Envelope {
    /// What `instruction` sends, addressed to the stage that takes it.
    pub(crate) fn sent(instruction: &Instruction) -> Option<(PipeRank, Self)> {
        match *instruction {
            Instruction::SendActivation { stage, micro_batch, to, .. } => {
                Some((to, Self::Activation { to: Stage(stage.0.checked_add(1)?), micro_batch }))
            }
            Instruction::SendGrad { stage, micro_batch, to, .. } => {
                Some((to, Self::Grad { to: Stage(stage.0.checked_sub(1)?), micro_batch }))
            }
            _ => None,
        }
    }

    /// What `instruction` expects to receive.
    pub(crate) fn expected(instruction: &Instruction) -> Option<(PipeRank, Self)> {
        match *instruction {
            Instruction::RecvActivation { stage: to, micro_batch, from, .. } => {
                Some((from, Self::Activation { to, micro_batch }))
            }
            Instruction::RecvGrad { stage: to, micro_batch, from, .. } => {
                Some((from, Self::Grad { to, micro_batch }))
            }
            _ => None,
        }
    }

    /// The micro-batch that the message belongs to.
    #[must_use]
    pub const fn micro_batch(&self) -> MicroBatch {
        match *self {
            Self::Activation { micro_batch, .. } | Self::Grad { micro_batch, .. } => micro_batch,
        }
    }
}

/// One directed link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) from: PipeRank,
    pub(crate) to: PipeRank,
    pub(crate) queue: VecDeque<Envelope>,
    /// The most messages that it ever held.
    pub(crate) deepest: usize,
}

/// All links, found by their ends.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// For each rank, its few links: the peer, the link to it, the link from it.
    of_rank: Vec<Vec<Ends>>,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    peer: PipeRank,
    outgoing: Option<usize>,
    incoming: Option<usize>,
}

impl Links {
    pub(crate) fn new(n_ranks: usize) -> Self {
        Self { links: Vec::new(), of_rank: vec![Vec::new(); n_ranks] }
    }

    /// The link `from` -> `to`, made when it is new. Both must be ranks of the program.
    pub(crate) fn open(&mut self, from: PipeRank, to: PipeRank) -> usize {
        if let Some(link) = self.outgoing(from, to) {
            return link;
        }
        let link = self.links.len();
        self.links.push(Link { from, to, queue: VecDeque::new(), deepest: 0 });
        self.ends(from, to).outgoing = Some(link);
        self.ends(to, from).incoming = Some(link);
        link
    }

    fn ends(&mut self, rank: PipeRank, peer: PipeRank) -> &mut Ends {
        let ends = &mut self.of_rank[rank.index()];
        let at = ends.iter().position(|ends| ends.peer == peer).unwrap_or_else(|| {
            ends.push(Ends { peer, outgoing: None, incoming: None });
            ends.len() - 1
        });
        &mut ends[at]
    }

    pub(crate) fn outgoing(&self, rank: PipeRank, to: PipeRank) -> Option<usize> {
        self.of_rank[rank.index()].iter().find(|ends| ends.peer == to)?.outgoing
    }

    pub(crate) fn incoming(&self, rank: PipeRank, from: PipeRank) -> Option<usize> {
        self.of_rank[rank.index()].iter().find(|ends| ends.peer == from)?.incoming
    }

    pub(crate) fn get(&mut self, link: usize) -> &mut Link {
        &mut self.links[link]
    }

    pub(crate) fn all(&self) -> &[Link] {
        &self.links
    }
}
