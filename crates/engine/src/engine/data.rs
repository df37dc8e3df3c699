//! Micro-batches from the user's data, agreed on by all ranks before anything runs.

use brigade_topology::Rank;
use brigade_wire::Tree;

use super::PipelineEngine;
use super::source::DataOn;
use crate::data::{DataItem, cut, n_samples, piece_sizes};
use crate::error::{Cause, Site, StepError, guard};
use crate::hub::Contribution;
use crate::interpreter::Batch;
use crate::normaliser::{Counts, Factors, Normaliser};
use crate::tensor::AnyTensor;
use crate::value::Value;

/// What a call takes from its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Feed {
    Pairs,
    Inputs,
}

/// What one item of the data is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One micro-batch.
    MicroBatch,
    /// A whole batch, which the engine splits.
    WholeBatch,
}

/// What a call asks of its data.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) call: &'a str,
    pub(super) n_micro_batches: u32,
    pub(super) feed: Feed,
    pub(super) form: Form,
}

/// What all ranks have agreed to run.
pub(super) struct Agreed {
    pub(super) batch: Batch,
    /// Fewer than asked for where a batch to split has fewer samples.
    pub(super) n_micro_batches: u32,
    /// What each micro-batch of each replica counts.
    pub(super) counts: Counts,
}

/// One item of the data on this rank.
struct Drawn {
    input: Tree<AnyTensor>,
    target: Tree<AnyTensor>,
    samples: u64,
    id: Option<u64>,
}

/// What a rank that feeds the pipeline has for this call.
#[derive(Debug)]
struct Offer {
    rank: Rank,
    found: usize,
    /// Samples, 0 where unknown, and id of each item.
    items: Vec<(u64, Option<u64>)>,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// [`Self::fetch`] of inputs with their targets, through the function that is set for them.
    pub(super) fn fetch_pairs<B: Into<DataItem<I, T>>>(
        &mut self,
        request: Request<'_>,
        data: &mut impl Iterator<Item = B>,
    ) -> Result<Option<Agreed>, StepError> {
        let mut function = self.batch_fn.take();
        let mut items = data.map(|item| {
            let DataItem { input, target, id } = item.into();
            let (input, target) = match &mut function {
                Some(function) => function(input, target),
                None => (input, target),
            };
            DataItem { input, target, id }
        });
        let fetched = self.fetch(request, &mut items);
        self.batch_fn = function;
        fetched
    }

    /// Fetches this rank's share of a batch and agrees with the others on what there is.
    pub(super) fn fetch<U: Value>(
        &self,
        request: Request<'_>,
        data: &mut impl Iterator<Item = DataItem<I, U>>,
    ) -> Result<Option<Agreed>, StepError> {
        let Request { call, n_micro_batches, form, .. } = request;
        let rank = &self.module.rank;
        let site = || rank.site(&format!("{call}, fetching the data"));
        let items = match form {
            Form::MicroBatch => n_micro_batches,
            Form::WholeBatch => 1,
        };
        let wanted = usize::try_from(items).unwrap_or(usize::MAX);
        let drawn = self.draw(request, wanted, data, &site)?;
        let mut words = vec![u64::from(drawn.is_some())];
        words.push(drawn.as_ref().map_or(0, |drawn| u64::try_from(drawn.len()).unwrap_or(u64::MAX)));
        for item in drawn.iter().flatten() {
            words.extend([item.samples, u64::from(item.id.is_some()), item.id.unwrap_or(0)]);
        }
        let what = match form {
            Form::MicroBatch => "",
            Form::WholeBatch => " split from one batch",
        };
        let on = match self.data_on {
            DataOn::FirstAndLast => "",
            DataOn::First => ", data on the first stage",
        };
        let identity = &self.identity;
        let call = format!("{call} with {n_micro_batches} micro-batches{what}{on} on {identity}");
        let all = rank.exchange(Contribution { call, words, messages: Vec::new() }, site)?;
        let offers: Vec<Offer> =
            all.iter().enumerate().filter_map(|(peer, c)| Offer::decode(peer, &c.words)).collect();
        let fail = |(at, cause)| rank.fail(Site { rank: at, ..site() }, cause);
        if !agree(&offers, wanted).map_err(fail)? {
            return Ok(None);
        }
        let replicas = self.module.grid.iter().map(|ranks| {
            let mut offers = offers.iter().filter(|offer| ranks.contains(&offer.rank));
            let first = offers.next();
            match first.and_then(|first| offers.find_map(|other| first.differs(other))) {
                Some(difference) => Err(fail(difference)),
                None => Ok(first.map(|offer| offer.items.as_slice()).unwrap_or_default()),
            }
        });
        let replicas = replicas.collect::<Result<Vec<_>, StepError>>()?;
        let samples: Vec<Vec<u64>> =
            replicas.iter().map(|items| items.iter().map(|(samples, _)| *samples).collect()).collect();
        self.batch(request, drawn.unwrap_or_default(), samples).map(Some)
    }

    /// Takes items from the data, if this rank feeds the pipeline.
    fn draw<U: Value>(
        &self,
        request: Request<'_>,
        wanted: usize,
        data: &mut impl Iterator<Item = DataItem<I, U>>,
        site: &impl Fn() -> Site,
    ) -> Result<Option<Vec<Drawn>>, StepError> {
        let rank = &self.module.rank;
        let takes_targets = self.module.holds_last() && request.feed == Feed::Pairs;
        let feeds = match self.data_on {
            DataOn::FirstAndLast => self.module.holds_first() || takes_targets,
            DataOn::First => self.module.holds_first(),
        };
        if !feeds {
            return Ok(None);
        }
        let mut drawn = Vec::new();
        while drawn.len() < wanted {
            let next = guard("the data source", || data.next()).map_err(|cause| rank.fail(site(), cause))?;
            let Some(DataItem { input, target, id }) = next else { break };
            let (input, target) = (self.erase(input, site)?, self.erase(target, site)?);
            let samples = match request.form {
                Form::MicroBatch => rows(&input).or_else(|| rows(&target)).unwrap_or(0),
                Form::WholeBatch => n_samples(&[("input", &input), ("target", &target)])
                    .map_err(|source| rank.fail(site(), Cause::Split(source)))?,
            };
            drawn.push(Drawn { input, target, samples: u64::try_from(samples).unwrap_or(u64::MAX), id });
        }
        Ok(Some(drawn))
    }

    /// Cuts whole batches, decides what each micro-batch counts, and brings targets to where they belong.
    fn batch(
        &self,
        request: Request<'_>,
        drawn: Vec<Drawn>,
        mut samples: Vec<Vec<u64>>,
    ) -> Result<Agreed, StepError> {
        let rank = &self.module.rank;
        let mut n_micro_batches = request.n_micro_batches;
        let mut pieces: Vec<(Tree<AnyTensor>, Tree<AnyTensor>)> = Vec::new();
        if request.form == Form::WholeBatch {
            // Every replica cuts its batch into as many pieces: their gradients are of one step.
            let least = samples.iter().flatten().copied().min().unwrap_or(0);
            n_micro_batches = u32::try_from(least).unwrap_or(u32::MAX).min(n_micro_batches);
            let m = usize::try_from(n_micro_batches).unwrap_or(usize::MAX);
            let sizes = |n: u64| piece_sizes(usize::try_from(n).unwrap_or(usize::MAX), m);
            for Drawn { input, target, samples, .. } in drawn {
                pieces.extend(cut(&input, &sizes(samples)).into_iter().zip(cut(&target, &sizes(samples))));
            }
            let to_u64 = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            for samples in &mut samples {
                let all = samples.iter().sum();
                *samples = sizes(all).into_iter().map(to_u64).collect();
            }
        } else {
            pieces.extend(drawn.into_iter().map(|drawn| (drawn.input, drawn.target)));
        }
        let samples = samples.concat();
        if self.normaliser == Normaliser::Samples && samples.contains(&0) {
            return Err(rank.fail(rank.site(request.call), Cause::NoSamples));
        }
        let counts = self.normaliser.counts(&samples, request.form == Form::WholeBatch);
        let (mut inputs, mut targets): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
        if request.feed == Feed::Pairs {
            targets = self.targets.deliver(rank, &self.module, targets)?;
        }
        if !self.module.holds_first() {
            inputs.clear();
        }
        let batch = Batch {
            inputs: inputs.into_iter().map(Some).collect(),
            targets: targets.into_iter().map(Some).collect(),
            factors: self.factors(&counts, n_micro_batches, 1.0),
        };
        Ok(Agreed { batch, n_micro_batches, counts })
    }

    /// What each micro-batch of this replica counts while the batch runs, divided by `whole`.
    pub(super) fn factors(&self, counts: &Counts, n_micro_batches: u32, whole: f64) -> Factors {
        if self.normaliser == Normaliser::Weights {
            return Factors::Returned;
        }
        let m = usize::try_from(n_micro_batches).unwrap_or(usize::MAX);
        let own = counts.each.iter().skip(self.module.replica.saturating_mul(m)).take(m);
        Factors::Known(own.map(|count| count / whole).collect())
    }

    fn erase<U: Value>(&self, value: U, site: &impl Fn() -> Site) -> Result<Tree<AnyTensor>, StepError> {
        let cause = |source| Cause::DataValue { what: "input or target", source };
        value.into_tree().map_err(|source| self.module.rank.fail(site(), cause(source)))
    }
}

impl Offer {
    fn decode(peer: usize, words: &[u64]) -> Option<Self> {
        let (&[feeds, found], items) = words.split_first_chunk()?;
        let rank = Rank(u64::try_from(peer).unwrap_or(u64::MAX));
        let items = items.chunks_exact(3).map(|item| (item[0], (item[1] == 1).then_some(item[2])));
        let found = usize::try_from(found).unwrap_or(usize::MAX);
        (feeds == 1).then(|| Self { rank, found, items: items.collect() })
    }

    /// The first item that is not the same on another rank of the same replica.
    fn differs(&self, other: &Self) -> Option<(Rank, Cause)> {
        let pairs = self.items.iter().zip(&other.items).enumerate();
        let cause = pairs.into_iter().find_map(|(item, (&(there, there_id), &(here, here_id)))| {
            if there_id != here_id {
                return Some(Cause::IdsDiffer { item, other: self.rank, there: there_id, here: here_id });
            }
            (there != here).then_some(Cause::SamplesDiffer { item, other: self.rank, there, here })
        });
        cause.map(|cause| (other.rank, cause))
    }
}

/// Tells whether there is a batch; a part of one, or other parts on other ranks, is an error of the rank
/// whose data ended first.
fn agree(offers: &[Offer], wanted: usize) -> Result<bool, (Rank, Cause)> {
    let lowest = offers.iter().min_by_key(|offer| offer.found);
    let highest = offers.iter().max_by_key(|offer| offer.found);
    let (Some(lowest), Some(highest)) = (lowest, highest) else { return Ok(false) };
    if lowest.found == wanted {
        return Ok(true);
    }
    if highest.found == 0 {
        return Ok(false);
    }
    let cause = if lowest.found == highest.found {
        Cause::DataEnded { wanted, found: lowest.found }
    } else {
        Cause::DataDiffers { other: highest.rank, there: highest.found, here: lowest.found }
    };
    Err((lowest.rank, cause))
}

/// The first dimension of the first tensor.
fn rows(tree: &Tree<AnyTensor>) -> Option<usize> {
    let mut first = None;
    tree.for_each(|tensor| {
        first = first.or_else(|| tensor.shape().as_slice().first().copied());
    });
    first
}
