//! What the last stage found out, brought to every rank: losses, what they count, and metrics.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use super::PipelineEngine;
use crate::error::{Cause, StepError};
use crate::hub::Contribution;
use crate::loss::{Loss, MetricEntry, Reduction};
use crate::message::{Direction, Message, Tag};
use crate::normaliser::{Counts, sum};
use crate::report::{Metric, StepTimes, encode};
use crate::timing::Timing;
use crate::value::Value;

/// The losses of one or several runs over all replicas, in the order of the micro-batches.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    values: Vec<f64>,
    /// What each counts, in the unit of the normaliser.
    counts: Vec<f64>,
    metrics: Vec<MetricEntry>,
}

/// All losses put together by one rule.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) loss: f64,
    pub(super) micro_batch_losses: Vec<f64>,
    pub(super) metrics: BTreeMap<String, Metric>,
}

impl Losses {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Puts the micro-batches of a later run after these.
    pub(super) fn extend(&mut self, later: Self) {
        let before = u64::try_from(self.len()).unwrap_or(u64::MAX);
        self.values.extend(later.values);
        self.counts.extend(later.counts);
        self.metrics.extend(later.metrics.into_iter().map(|mut entry| {
            entry.micro_batch = entry.micro_batch.saturating_add(before);
            entry
        }));
    }

    /// What all micro-batches count together.
    pub(super) fn total(&self) -> f64 {
        sum(&self.counts)
    }

    /// The mean loss, which is no number when nothing counts, and the metrics.
    pub(super) fn summary(self) -> Result<Summary, Cause> {
        let total = self.total();
        // What counts nothing may have a loss that is no number: the mean over no token, for instance.
        let weighted = self.values.iter().zip(&self.counts).filter(|(_, count)| **count != 0.0);
        let loss = weighted.fold(0.0, |sum, (loss, count)| sum + loss * count) / total;
        let metrics = reduce(&self.metrics, &self.counts)?;
        Ok(Summary { loss, micro_batch_losses: self.values, metrics })
    }
}

fn reduce(entries: &[MetricEntry], counts: &[f64]) -> Result<BTreeMap<String, Metric>, Cause> {
    let mut by_name: BTreeMap<&str, Vec<&MetricEntry>> = BTreeMap::new();
    for entry in entries {
        by_name.entry(&entry.name).or_default().push(entry);
    }
    let one = |(name, entries): (&str, Vec<&MetricEntry>)| {
        let reduction = entries.first().map_or(Reduction::List, |entry| entry.reduction);
        if entries.iter().any(|entry| entry.reduction != reduction) {
            return Err(Cause::MetricDiffers { name: name.to_owned() });
        }
        let count = |entry: &MetricEntry| {
            usize::try_from(entry.micro_batch).ok().and_then(|at| counts.get(at)).copied().unwrap_or(0.0)
        };
        let metric = match reduction {
            Reduction::List => Metric::List(entries.iter().map(|entry| entry.value).collect()),
            Reduction::Sum => Metric::Number(entries.iter().fold(0.0, |sum, entry| sum + entry.value)),
            Reduction::Mean => {
                let counted = entries.iter().map(|entry| (entry.value, count(entry)));
                let counted = counted.filter(|(_, count)| *count != 0.0);
                let (sum, total) =
                    counted.fold((0.0, 0.0), |(sum, total), (value, n)| (sum + value * n, total + n));
                Metric::Number(sum / total)
            }
        };
        Ok((name.to_owned(), metric))
    };
    by_name.into_iter().map(one).collect()
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Shares the losses of the last stage, and every rank's times, with every rank.
    pub(super) fn share(
        &self,
        call: &str,
        losses: Vec<Option<Loss>>,
        counts: &Counts,
        timing: Option<&Timing>,
    ) -> Result<(Losses, StepTimes), StepError> {
        let rank = &self.module.rank;
        // A loss has a number over all replicas: several ranks may hold the last stage.
        let first = self.module.replica.saturating_mul(losses.len());
        let mut found = Vec::new();
        let mut messages = Vec::new();
        for (at, loss) in losses.into_iter().enumerate() {
            let Some(Loss { value, weight, metrics }) = loss else { continue };
            let number = u64::try_from(first.saturating_add(at)).unwrap_or(u64::MAX);
            found.extend([number, to_f64(value).to_bits(), weight.unwrap_or(0.0).to_bits()]);
            if metrics.names().len() > 0 {
                let tree = metrics.into_tree(number);
                messages.push(Message::activations(Tag::parcel(Direction::Metrics), tree).0);
            }
        }
        let mut words = vec![u64::try_from(found.len()).unwrap_or(0)];
        words.extend(found);
        words.extend(timing.map(encode).unwrap_or_default());
        let site = || rank.site("sharing the losses");
        let call = Contribution { call: format!("{call}, end"), words, messages };
        let all = rank.exchange(call, site)?;
        let mut by_number = BTreeMap::new();
        let mut metrics = Vec::new();
        let mut times = Vec::new();
        for (contribution, &peer) in all.iter().zip(self.module.grid.iter().flatten()) {
            let n_words = contribution.words.first().copied().unwrap_or(0);
            let (found, rest) = contribution.words[1..].split_at(usize::try_from(n_words).unwrap_or(0));
            by_number.extend(found.chunks_exact(3).map(|word| (word[0], (word[1], word[2]))));
            times.push(rest);
            for message in &contribution.messages {
                let tree = message.clone().into_tree();
                let tree = tree.map_err(|source| rank.fail(site(), Cause::Message { peer, source }))?;
                metrics.extend(MetricEntry::list(tree));
            }
        }
        metrics.sort_by_key(|entry| entry.micro_batch);
        let (values, weights): (Vec<f64>, Vec<f64>) = by_number
            .into_values()
            .map(|(loss, weight)| (f64::from_bits(loss), f64::from_bits(weight)))
            .unzip();
        let counts = if counts.each.is_empty() { weights } else { counts.each.clone() };
        let n_stages = self.module.placement.n_stages();
        Ok((Losses { values, counts, metrics }, StepTimes::decode(n_stages, times.into_iter())))
    }

    /// What all micro-batches count together; a mean over nothing is the failure of every rank.
    pub(super) fn counted(&self, losses: &Losses) -> Result<f64, StepError> {
        let rank = &self.module.rank;
        let total = losses.total();
        if total == 0.0 {
            return Err(rank.fail(rank.site("the mean of the losses"), Cause::NothingCounts));
        }
        Ok(total)
    }

    /// The mean loss and the metrics, or the failure of every rank.
    pub(super) fn summary(&self, losses: Losses) -> Result<Summary, StepError> {
        let rank = &self.module.rank;
        losses.summary().map_err(|cause| rank.fail(rank.site("the mean of the losses"), cause))
    }
}

/// The value of a tensor of one element, exactly.
fn to_f64(loss: Tensor<1>) -> f64 {
    loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}
