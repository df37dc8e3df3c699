//! One rank's ends of the links that a plan uses.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_schedule::{CheckedPlan, Instruction, MicroBatch};
use brigade_topology::{PipeRank, Rank, Stage};
use crossbeam::channel::{Receiver, Sender};

use crate::error::{Cause, Site};
use crate::hub::LinkKey;
use crate::message::Message;
use crate::skip::{Lanes, SkipLayout};
use crate::world::RankHandle;

/// One rank's links and instructions for one plan.
pub(crate) struct Route {
    pub(crate) serial: u64,
    pub(crate) plan: Arc<CheckedPlan>,
    pub(crate) pipe_rank: PipeRank,
    pub(crate) ranks: Vec<Rank>,
    /// Whether backward passes of this rank come in two halves.
    pub(crate) splits: bool,
    /// The micro-batches whose gradients this rank adds up at each of its stages, in their order.
    pub(crate) summed: BTreeMap<Stage, Vec<MicroBatch>>,
    pub(crate) senders: BTreeMap<PipeRank, Sender<Message>>,
    pub(crate) receivers: BTreeMap<PipeRank, Receiver<Message>>,
    pub(crate) skips: Arc<SkipLayout>,
    pub(crate) lanes: Lanes,
}

impl Route {
    /// Fetches this rank's ends of the links that the plan uses.
    pub(crate) fn new(
        rank: &RankHandle,
        plan: Arc<CheckedPlan>,
        pipe_rank: PipeRank,
        ranks: Vec<Rank>,
        skips: Arc<SkipLayout>,
    ) -> Result<Self, Cause> {
        let serial = rank.next_plan();
        let mut senders = BTreeMap::new();
        let mut receivers = BTreeMap::new();
        let capacity = usize::try_from(plan.link_capacity().0).unwrap_or(usize::MAX);
        for &(from, to) in plan.links() {
            let key = LinkKey { plan: serial, from: ranks[from.index()], to: ranks[to.index()], lane: None };
            if from == pipe_rank {
                senders.insert(to, rank.hub().sender(key, capacity)?);
            }
            if to == pipe_rank {
                receivers.insert(from, rank.hub().receiver(key, capacity)?);
            }
        }
        let is_half = |instruction: &Instruction| matches!(instruction, Instruction::InputGrad { .. });
        let splits = plan.instructions(pipe_rank).iter().any(is_half);
        let mut summed: BTreeMap<Stage, Vec<MicroBatch>> = BTreeMap::new();
        for instruction in plan.instructions(pipe_rank) {
            if let Instruction::BackwardPass { stage, micro_batch, .. }
            | Instruction::WeightGrad { stage, micro_batch, .. } = *instruction
            {
                summed.entry(stage).or_default().push(micro_batch);
            }
        }
        summed.values_mut().for_each(|micro_batches| micro_batches.sort_unstable());
        let lanes = Lanes::new(rank, serial, &plan, pipe_rank, &ranks, &skips)?;
        Ok(Self { serial, plan, pipe_rank, ranks, splits, summed, senders, receivers, skips, lanes })
    }
}

/// Where an instruction of a rank runs.
pub(crate) fn site(rank: Rank, instruction: &Instruction) -> Site {
    let visit = instruction.visit();
    Site {
        rank,
        stage: visit.map(|(stage, ..)| stage),
        micro_batch: visit.map(|(_, micro_batch, _)| micro_batch),
        instruction: instruction.to_string(),
    }
}
