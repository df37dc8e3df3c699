//! What computations, messages and the end of a batch cost.

use std::collections::BTreeMap;

use brigade_topology::{PipeRank, Stage};

use crate::action::{ComputeKind, MarkerKind};
use crate::error::CostError;

/// What one stage costs for one micro-batch.
///
/// # Units
/// Seconds and bytes. Any other unit of time is right too, when all costs share it.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct StageCosts {
    /// `F`: a forward pass.
    pub forward_s: f64,
    /// `I`: the gradient of the input. A full backward pass takes `I` and `W` together.
    pub input_grad_s: f64,
    /// `W`: the gradients of the weights.
    pub weight_grad_s: f64,
    /// A second forward pass at the start of the backward pass, once for both of its halves.
    pub recompute_s: f64,
    /// Held from the forward pass until the input gradient is done.
    pub activation_bytes: u64,
    /// Held after that until the weight gradients are done, when the backward pass is split.
    pub weight_grad_bytes: u64,
    /// The size of the output, as a message to the next stage; its gradient has the same size.
    pub output_bytes: u64,
}

impl StageCosts {
    /// The time that a computation takes.
    #[must_use]
    pub fn time_s(&self, kind: ComputeKind) -> f64 {
        match kind {
            ComputeKind::Forward => self.forward_s,
            ComputeKind::Backward => self.recompute_s + self.input_grad_s + self.weight_grad_s,
            ComputeKind::InputGrad => self.recompute_s + self.input_grad_s,
            ComputeKind::WeightGrad => self.weight_grad_s,
        }
    }
}

/// What a link costs for one message.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct LinkCosts {
    /// From the end of the transfer to the arrival.
    pub latency_s: f64,
    /// Bandwidth; absent when size costs nothing.
    pub bytes_per_s: Option<f64>,
}

impl LinkCosts {
    /// How long `bytes` occupy the link.
    pub(crate) fn transfer_s(&self, bytes: u64) -> f64 {
        #[expect(
            clippy::as_conversions,
            clippy::cast_precision_loss,
            reason = "bytes above 2^53 may round: this is a time estimate"
        )]
        self.bytes_per_s.map_or(0.0, |bandwidth| bytes as f64 / bandwidth)
    }
}

/// What the markers of a plan cost the rank that takes them.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct MarkerCosts {
    /// Gathering a stage's weights.
    pub unshard_s: f64,
    /// Letting go of them.
    pub reshard_s: f64,
    /// Starting the reduction of a stage's gradients, or all of it where it is not waited for.
    pub reduce_grad_s: f64,
    /// Waiting for its end.
    pub wait_reduce_grad_s: f64,
}

impl MarkerCosts {
    pub(crate) fn time_s(&self, kind: MarkerKind) -> f64 {
        match kind {
            MarkerKind::Unshard => self.unshard_s,
            MarkerKind::Reshard => self.reshard_s,
            MarkerKind::ReduceGrad => self.reduce_grad_s,
            MarkerKind::WaitReduceGrad => self.wait_reduce_grad_s,
        }
    }
}

/// The cost model of a replay.
///
/// # Units
/// Seconds and bytes, as in [`StageCosts`].
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Costs {
    /// One for each stage, in order.
    pub stages: Vec<StageCosts>,
    /// The cost of every link that `links` does not name.
    pub link: LinkCosts,
    /// Links that cost something else, by sender and receiver.
    #[serde(with = "link_list")]
    pub links: BTreeMap<(PipeRank, PipeRank), LinkCosts>,
    /// The share of the shorter of two overlapped passes that the overlap hides, from 0 to 1. A pair is then one pass
    /// of F + B less that share, whose results leave at its end. When absent, the passes of a pair run one after the
    /// other, and the results of the first leave at its own end.
    pub overlap_hides: Option<f64>,
    /// Loading a micro-batch, or a part of one.
    pub load_s: f64,
    /// What markers cost.
    pub markers: MarkerCosts,
    /// Summing the gradients of a stage over the two ranks that hold it, for each such stage.
    pub reduce_copies_s: f64,
    /// Summing the gradients of shared weights, on each rank.
    pub reduce_tied_s: f64,
    /// Reducing the gradients over the replicas, on each rank.
    pub reduce_s: f64,
    /// The optimizer's step, on each rank.
    pub optimizer_s: f64,
}

impl Costs {
    /// The same costs for every stage; everything else costs nothing.
    #[must_use]
    pub fn uniform(n_stages: u32, stage: StageCosts) -> Self {
        Self { stages: (0..n_stages).map(|_| stage).collect(), ..Self::default() }
    }

    /// Tests that the costs fit the number of stages and are sound.
    pub(crate) fn admit(&self, n_stages: u32) -> Result<(), CostError> {
        if u32::try_from(self.stages.len()) != Ok(n_stages) {
            return Err(CostError::Stages { n_costs: self.stages.len(), n_stages });
        }
        for (stage, costs) in (0..).map(Stage).zip(&self.stages) {
            let StageCosts { forward_s, input_grad_s, weight_grad_s, recompute_s, .. } = *costs;
            for value in [forward_s, input_grad_s, weight_grad_s, recompute_s] {
                time(value).map_err(|value| CostError::Time { stage, value })?;
            }
        }
        let MarkerCosts { unshard_s, reshard_s, reduce_grad_s, wait_reduce_grad_s } = self.markers;
        let ends = [self.load_s, self.reduce_copies_s, self.reduce_tied_s, self.reduce_s, self.optimizer_s];
        for value in ends.into_iter().chain([unshard_s, reshard_s, reduce_grad_s, wait_reduce_grad_s]) {
            time(value).map_err(|value| CostError::EndTime { value })?;
        }
        if let Some(value) = self.overlap_hides.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(CostError::Overlap { value });
        }
        for link in self.links.values().chain([&self.link]) {
            time(link.latency_s).map_err(|value| CostError::Latency { value })?;
            if let Some(value) = link.bytes_per_s.filter(|&rate| rate.is_nan() || rate <= 0.0) {
                return Err(CostError::Bandwidth { value });
            }
        }
        Ok(())
    }

    pub(crate) fn stage(&self, stage: Stage) -> StageCosts {
        self.stages.get(stage.index()).copied().unwrap_or_default()
    }

    pub(crate) fn of_link(&self, from: PipeRank, to: PipeRank) -> LinkCosts {
        self.links.get(&(from, to)).copied().unwrap_or(self.link)
    }
}

fn time(value: f64) -> Result<(), f64> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(value) }
}

/// Pairs as keys do not exist in JSON: the map travels as a list.
mod link_list {
    use std::collections::BTreeMap;

    use brigade_topology::PipeRank;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::LinkCosts;

    type Links = BTreeMap<(PipeRank, PipeRank), LinkCosts>;

    pub(super) fn serialize<S: Serializer>(links: &Links, serializer: S) -> Result<S::Ok, S::Error> {
        links.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Links, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}
