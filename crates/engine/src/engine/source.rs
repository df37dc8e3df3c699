//! Which ranks read the data, and how targets reach the last stage where only the first one does.

use brigade_topology::{Rank, Stage};
use brigade_wire::Tree;
use crossbeam::channel::{Receiver, Sender};
use serde::{Deserialize, Serialize};

use crate::error::{Cause, StepError};
use crate::hub::LinkKey;
use crate::message::{Direction, Message, Tag};
use crate::module::PipelineModule;
use crate::tensor::AnyTensor;
use crate::value::Value;
use crate::world::RankHandle;

/// Which ranks of a pipeline take micro-batches from the data that they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DataOn {
    /// Those of the first and of the last stage, from sources that give the same: nothing travels.
    #[default]
    FirstAndLast,
    /// That of the first stage alone: it sends the targets to the last stage before the batch runs.
    First,
}

/// The links that targets take.
#[derive(Default)]
pub(super) struct TargetLinks {
    /// To the ranks that hold the last stage and not the first.
    senders: Vec<(Rank, Sender<Message>)>,
    receiver: Option<(Rank, Receiver<Message>)>,
}

impl TargetLinks {
    /// Sets the links up; all ranks of a pipeline call it at the same place.
    pub(super) fn new<I: Value, O: Value, T: Value>(
        module: &PipelineModule<I, O, T>,
        on: DataOn,
    ) -> Result<Self, Cause> {
        let rank = &module.rank;
        // Taken in any case, so that the numbers of plans stay equal on all ranks.
        let plan = rank.next_plan();
        let mut links = Self::default();
        if on == DataOn::FirstAndLast {
            return Ok(links);
        }
        let first = module.holders(Stage(0));
        let last = module.holders(Stage(module.placement.n_stages().saturating_sub(1)));
        let Some(&source) = first.first() else { return Ok(links) };
        for to in last.into_iter().filter(|to| !first.contains(to)) {
            let key = LinkKey { plan, from: source, to, lane: None };
            // Capacity: one message a batch, and every batch starts with a collective that the receiver
            // joins after it has taken the message of the batch before. So no send ever waits.
            if source == rank.rank() {
                links.senders.push((to, rank.hub().sender(key, 1)?));
            } else if to == rank.rank() {
                links.receiver = Some((source, rank.hub().receiver(key, 1)?));
            }
        }
        Ok(links)
    }

    /// Sends or receives the targets of a batch; returns those that this rank needs.
    pub(super) fn deliver<I: Value, O: Value, T: Value>(
        &self,
        rank: &RankHandle,
        module: &PipelineModule<I, O, T>,
        targets: Vec<Tree<AnyTensor>>,
    ) -> Result<Vec<Tree<AnyTensor>>, StepError> {
        let site = || rank.site("bringing the targets to the last stage");
        for (to, link) in &self.senders {
            let tag = Tag::parcel(Direction::Targets);
            let (message, _) = Message::activations(tag, Tree::List(targets.clone()));
            rank.hub().send(link, *to, message, site)?;
        }
        let Some((peer, link)) = &self.receiver else {
            return Ok(if module.holds_last() { targets } else { Vec::new() });
        };
        let peer = *peer;
        let message = rank.hub().receive(link, peer, site)?;
        let tree =
            message.into_tree().map_err(|source| rank.fail(site(), Cause::Message { peer, source }))?;
        match tree.map(|boundary| boundary.tensor) {
            Tree::List(targets) => Ok(targets),
            other => Ok(vec![other]),
        }
    }
}
