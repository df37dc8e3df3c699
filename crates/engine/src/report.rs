//! What a step reports: the loss, and how long each rank and stage took.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use brigade_topology::Stage;

use crate::timing::{Spent, StageTimes, Timing};

/// One training step, equal on every rank.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Number of this step, from 1.
    pub step: u64,
    /// Mean of the losses of all micro-batches, by the rule of the [`Normaliser`](crate::Normaliser).
    pub loss: f64,
    /// Loss of each micro-batch: those of the first replica in their order, then those of the next.
    pub micro_batch_losses: Vec<f64>,
    /// What the loss function returned beside the loss, by name.
    pub metrics: BTreeMap<String, Metric>,
    /// Learning rate of this step, but for groups of parameters that have their own.
    pub learning_rate: f64,
    /// What the loss was multiplied by in the backward pass, if it was.
    pub loss_scale: Option<f64>,
    /// Whether gradients overflowed on any rank, so that no weight was updated on any.
    pub skipped: bool,
    /// Norm of all gradients before clipping, when they are clipped by it and did not overflow.
    pub gradient_norm: Option<f64>,
    /// Whether the weights were updated; not when the gradients were kept for a later call.
    pub is_update: bool,
    /// What the caller may not have expected.
    pub note: Option<Note>,
    /// Wall time of this rank from the first instruction to the updated weights.
    pub elapsed: Duration,
    /// Where the time went, on every rank.
    pub times: StepTimes,
}

/// One evaluation, equal on every rank.
#[derive(Clone, Debug)]
pub struct EvalReport {
    /// Mean of the losses of all micro-batches, by the rule of the [`Normaliser`](crate::Normaliser).
    pub loss: f64,
    /// Loss of each micro-batch: those of the first replica in their order, then those of the next.
    pub micro_batch_losses: Vec<f64>,
    /// What the loss function returned beside the loss, by name.
    pub metrics: BTreeMap<String, Metric>,
    /// What the caller may not have expected.
    pub note: Option<Note>,
}

/// The values of one metric over a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// A mean or a sum.
    Number(f64),
    /// One for each micro-batch that has it, in their order.
    List(Vec<f64>),
}

impl Metric {
    /// The number, unless it is a list.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::List(_) => None,
        }
    }
}

/// Something that went otherwise than asked, and is still right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The batch had fewer samples than micro-batches were asked for.
    FewerMicroBatches {
        /// Asked number.
        wanted: u32,
        /// Number that ran, of one sample or more.
        made: u32,
    },
}

impl Note {
    pub(crate) fn of(wanted: u32, made: u32) -> Option<Self> {
        (made < wanted).then_some(Self::FewerMicroBatches { wanted, made })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::FewerMicroBatches { wanted, made } = self;
        write!(f, "the batch has samples for {made} of {wanted} micro-batches: {made} ran")
    }
}

/// Times of one rank in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTimes {
    /// Forward and backward passes and the optimizer.
    pub busy: Duration,
    /// Waiting for messages, or for room to send one.
    pub waiting: Duration,
    /// The optimizer, which is part of `busy`.
    pub optimizer: Duration,
    /// Adding up the gradients of shared parameters and replicas and giving the copies their new values,
    /// waiting for other ranks included.
    pub reduction: Duration,
    /// The whole step.
    pub wall: Duration,
}

/// Times of all ranks and stages in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// By rank.
    pub ranks: Vec<RankTimes>,
    /// By stage, over all ranks that hold it.
    pub stages: Vec<StageTimes>,
}

impl StepTimes {
    /// The achieved bubble: idle share of the step's wall time, averaged over the ranks.
    ///
    /// The step's wall time is that of the slowest rank. On a device that computes asynchronously a
    /// rank looks idle while its device works.
    ///
    /// # Units
    /// A share, 0 to 1.
    #[must_use]
    pub fn bubble_wall(&self) -> f64 {
        let wall = self.ranks.iter().map(|r| r.wall).max().unwrap_or_default().as_secs_f64();
        if wall == 0.0 {
            return 0.0;
        }
        let busy: f64 = self.ranks.iter().map(|r| r.busy.as_secs_f64()).sum();
        let n_ranks: f64 = self.ranks.iter().map(|_| 1.0).sum();
        (1.0 - busy / (wall * n_ranks)).max(0.0)
    }

    /// Collects what every rank sent; the inverse of [`encode`].
    pub(crate) fn decode<'a>(n_stages: u32, ranks: impl Iterator<Item = &'a [u64]>) -> Self {
        let mut times = Self::default();
        times.stages.resize_with(usize::try_from(n_stages).unwrap_or(0), StageTimes::default);
        for words in ranks {
            let mut words = words.iter().copied();
            let mut next = || words.next().unwrap_or(0);
            let mut span = || Duration::from_nanos(next());
            times.ranks.push(RankTimes {
                busy: span(),
                waiting: span(),
                optimizer: span(),
                reduction: span(),
                wall: span(),
            });
            while let Some(stage) = words.next() {
                let mut next = || words.next().unwrap_or(0);
                let mut spent = || Spent {
                    total: Duration::from_nanos(next()),
                    count: u32::try_from(next()).unwrap_or(u32::MAX),
                };
                let [forward, backward] = [spent(), spent()];
                let entry = StageTimes { forward, backward, weight_grad: spent(), recompute: spent() };
                let slot = usize::try_from(stage).ok().and_then(|stage| times.stages.get_mut(stage));
                if let Some(slot) = slot {
                    slot.forward.merge(entry.forward);
                    slot.backward.merge(entry.backward);
                    slot.weight_grad.merge(entry.weight_grad);
                    slot.recompute.merge(entry.recompute);
                }
            }
        }
        times
    }
}

/// One rank's times as numbers, to be shared with the other ranks.
pub(crate) fn encode(timing: &Timing) -> Vec<u64> {
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let mut words =
        [timing.busy, timing.waiting, timing.optimizer, timing.reduction, timing.wall].map(ns).to_vec();
    for (&Stage(stage), times) in &timing.stages {
        words.push(stage.into());
        for spent in [times.forward, times.backward, times.weight_grad, times.recompute] {
            words.extend([ns(spent.total), spent.count.into()]);
        }
    }
    words
}
