//! The end of a batch: gradients of all copies of a parameter become one, and all copies its new value.
//!
//! A parameter has several copies where layers share it, where two ranks hold one stage, and where there
//! are replicas. Their gradients add up in one order: over the uses in the order of the layers, in each
//! use over the holders of its stage, and the sums of the replicas in their order. The loss of every
//! micro-batch already counts its share of the mean over all replicas, so sums need no factor. A copy
//! that has no gradient says so, and takes part.

mod check;
mod copies;
mod groups;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};

use brigade_topology::Rank;
use burn::module::Module;
use burn::optim::GradientsParams;
use crossbeam::channel::{Receiver, Sender};

use self::copies::{Copy, add, copies, values, with_values};
use self::traffic::{Term, Traffic};
use crate::error::{Cause, StepError, guard};
use crate::hub::LinkKey;
use crate::message::{Direction, Message, Tag};
use crate::stage::RankModule;
use crate::tensor::AnyTensor;
use crate::world::RankHandle;

pub(crate) use self::copies::{
    NewValue, copies as rank_copies, in_order, parameters as layer_parameters, with_values as replace_values,
};
pub(crate) use self::groups::{Group, Groups, ParameterInfo, Place};
pub(crate) use self::traffic::Grid;
pub use self::traffic::OptimizerSharding;

/// What a phase receives from one rank.
type Inbox = BTreeMap<Rank, std::vec::IntoIter<Option<AnyTensor>>>;

/// One rank's part in the end of a batch.
pub(crate) struct Reducer {
    rank: RankHandle,
    copies: BTreeMap<Place, Copy>,
    traffic: Traffic,
    gradients_in: BTreeMap<Rank, usize>,
    senders: BTreeMap<Rank, Sender<Message>>,
    receivers: BTreeMap<Rank, Receiver<Message>>,
}

impl Reducer {
    /// Works out this rank's traffic and fetches its ends of the links for it.
    pub(crate) fn new(
        rank: &RankHandle,
        module: &RankModule,
        groups: &Groups,
        grid: &Grid,
        sharding: OptimizerSharding,
    ) -> Result<Self, Cause> {
        let here = rank.rank();
        let traffic = Traffic::new(groups, grid, here, sharding);
        let gradients_in = traffic.gradients_in(here);
        let (mut senders, mut receivers) = (BTreeMap::new(), BTreeMap::new());
        let plan = rank.next_plan();
        // Capacity: a phase has one message from a rank to another, and a sender that is a phase ahead
        // waits until its receiver has taken it. All ranks send first in each phase, so the last of
        // them never waits for one that is ahead.
        let capacity = 1;
        let to = [&traffic.gradients_out, &traffic.totals_out, &traffic.values_out];
        for &to in to.into_iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>() {
            let key = LinkKey { plan, from: here, to, lane: None };
            senders.insert(to, rank.hub().sender(key, capacity)?);
        }
        let from = gradients_in.keys().chain(traffic.totals_in.keys()).chain(traffic.values_in.keys());
        for &from in from.collect::<BTreeSet<_>>() {
            let key = LinkKey { plan, from, to: here, lane: None };
            receivers.insert(from, rank.hub().receiver(key, capacity)?);
        }
        let copies = copies(module);
        Ok(Self { rank: rank.clone(), copies, traffic, gradients_in, senders, receivers })
    }

    /// Adds the gradients of all copies up. Afterwards the ranks that update a parameter have its total
    /// under the first of their copies, and no other copy has a gradient.
    pub(crate) fn sum(&self, gradients: &mut GradientsParams) -> Result<(), StepError> {
        for (&to, places) in &self.traffic.gradients_out {
            let parcel = places.iter().map(|place| self.copies[place].take_gradient(gradients));
            self.send(Direction::Gradients, to, parcel.collect())?;
        }
        let counts = self.gradients_in.iter().map(|(&from, &count)| (from, count));
        let mut inbox = self.receive(Direction::Gradients, counts)?;
        for sum in &self.traffic.sums {
            let mut total = None;
            for replica in &sum.terms {
                let mut of_replica = None;
                for holders in replica {
                    let mut of_use = None;
                    for term in holders {
                        let gradient = self.term(*term, gradients, &mut inbox);
                        self.accumulate(&mut of_use, gradient)?;
                    }
                    self.accumulate(&mut of_replica, of_use)?;
                }
                self.accumulate(&mut total, of_replica)?;
            }
            self.put(gradients, sum.target, total)?;
        }
        for (&to, places) in &self.traffic.totals_out {
            let parcel = places.iter().map(|place| self.copies[place].gradient(gradients));
            self.send(Direction::Totals, to, parcel.collect())?;
        }
        let counts = self.traffic.totals_in.iter().map(|(&from, places)| (from, places.len()));
        let mut inbox = self.receive(Direction::Totals, counts)?;
        for (from, places) in &self.traffic.totals_in {
            for &place in places {
                let total = inbox.get_mut(from).and_then(Iterator::next).flatten();
                self.put(gradients, place, total)?;
            }
        }
        Ok(())
    }

    /// The parameters that this rank will update, since they have a gradient.
    pub(crate) fn to_update(&self, gradients: &GradientsParams) -> BTreeSet<Place> {
        let has = |place: &&Place| self.copies[place].gradient(gradients).is_some();
        self.traffic.updated.iter().filter(has).copied().collect()
    }

    /// The totals whose squares this rank adds to the norm, with their numbers among all parameters.
    pub(crate) fn counted<'a>(
        &'a self,
        gradients: &'a GradientsParams,
    ) -> impl Iterator<Item = (usize, AnyTensor)> + 'a {
        let counted = self.traffic.counted.iter();
        counted.filter_map(|(number, place)| Some((*number, self.copies[place].gradient(gradients)?)))
    }

    /// Gives all copies the values that their updaters have now; `updated` are those that have changed.
    pub(crate) fn share(
        &self,
        module: RankModule,
        updated: &BTreeSet<Place>,
    ) -> Result<RankModule, StepError> {
        let Traffic { values_out, values_in, values_here, .. } = &self.traffic;
        if values_out.is_empty() && values_in.is_empty() && values_here.is_empty() {
            return Ok(module);
        }
        let sources = values_out.values().flatten().chain(values_here.iter().map(|(from, _)| from));
        if self.traffic.has_statistics {
            // Burn keeps the last update of a running statistic apart until then.
            guard("a layer's validation form", || drop(module.valid()))
                .map_err(|cause| self.fail(Direction::Values, cause))?;
        }
        let sources: BTreeSet<u64> = sources
            .filter(|place| updated.contains(place) || self.traffic.statistics.contains(place))
            .map(|place| self.copies[place].id.val())
            .collect();
        let new = guard("a module's traversal", || values(&module, |id| sources.contains(&id.val())))
            .map_err(|cause| self.fail(Direction::Values, cause))?;
        let value = |place: &Place| new.get(&self.copies[place].id.val()).cloned();
        for (&to, places) in values_out {
            self.send(Direction::Values, to, places.iter().map(value).collect())?;
        }
        let mut taken = BTreeMap::new();
        let mut take = |places: &[Place], value: Option<AnyTensor>| {
            let Some(value) = value else { return };
            let value = NewValue { value, is_trained: None };
            taken.extend(places.iter().map(|place| (self.copies[place].id.val(), value.clone())));
        };
        for (from, places) in values_here {
            take(places, value(from));
        }
        let counts = values_in.iter().map(|(&from, places)| (from, places.len()));
        let mut inbox = self.receive(Direction::Values, counts)?;
        for (from, parcels) in values_in {
            for places in parcels {
                take(places, inbox.get_mut(from).and_then(Iterator::next).flatten());
            }
        }
        let module = guard("a module's traversal", || with_values(module, taken))
            .and_then(|module| module.map_err(Cause::Gradient));
        module.map_err(|cause| self.fail(Direction::Values, cause))
    }

    fn term(&self, term: Term, gradients: &mut GradientsParams, inbox: &mut Inbox) -> Option<AnyTensor> {
        if term.from == self.rank.rank() {
            self.copies[&term.place].take_gradient(gradients)
        } else {
            inbox.get_mut(&term.from).and_then(Iterator::next).flatten()
        }
    }

    fn accumulate(&self, sum: &mut Option<AnyTensor>, new: Option<AnyTensor>) -> Result<(), StepError> {
        let added = match (sum.take(), new) {
            (Some(sum), Some(new)) => {
                let added = guard("adding gradients up", || add(sum, new));
                let added = added.and_then(|added| added.map_err(Cause::Gradient));
                Some(added.map_err(|cause| self.fail(Direction::Gradients, cause))?)
            }
            (sum, new) => sum.or(new),
        };
        *sum = added;
        Ok(())
    }

    fn put(
        &self,
        gradients: &mut GradientsParams,
        place: Place,
        total: Option<AnyTensor>,
    ) -> Result<(), StepError> {
        let Some(total) = total else { return Ok(()) };
        let put = self.copies[&place].put_gradient(gradients, total);
        put.map_err(|error| self.fail(Direction::Totals, Cause::Gradient(error)))
    }

    fn send(&self, direction: Direction, to: Rank, parcel: Vec<Option<AnyTensor>>) -> Result<(), StepError> {
        let link = self.senders.get(&to).expect("there is a link to every rank that gets a parcel");
        let message = Message::gradients(Tag::parcel(direction), parcel);
        self.rank.hub().send(link, to, message, || self.rank.site(phase(direction)))
    }

    /// Takes one parcel from each rank, with as many tensors as agreed, or explicit nones.
    fn receive(
        &self,
        direction: Direction,
        counts: impl Iterator<Item = (Rank, usize)>,
    ) -> Result<Inbox, StepError> {
        let mut inbox = Inbox::new();
        for (peer, expected) in counts {
            let link = self.receivers.get(&peer).expect("there is a link from every rank that sends");
            let message = self.rank.hub().receive(link, peer, || self.rank.site(phase(direction)))?;
            let tag = Tag::parcel(direction);
            let cause = if message.tag == tag {
                match message.into_gradients() {
                    Ok(Some(parcel)) if parcel.len() == expected => {
                        inbox.insert(peer, parcel.into_iter());
                        continue;
                    }
                    Ok(parcel) => {
                        Cause::GradientCount { peer, expected, found: parcel.map_or(0, |p| p.len()) }
                    }
                    Err(source) => Cause::Message { peer, source },
                }
            } else {
                let (expected, found) = (tag.to_string(), message.tag.to_string());
                Cause::UnexpectedMessage { peer, expected, found }
            };
            return Err(self.fail(direction, cause));
        }
        Ok(inbox)
    }

    fn fail(&self, direction: Direction, cause: Cause) -> StepError {
        self.rank.fail(self.rank.site(phase(direction)), cause)
    }
}

/// The name of a phase in errors.
fn phase(direction: Direction) -> &'static str {
    match direction {
        Direction::Values => "sharing the new weights",
        _ => "ReduceGrads()",
    }
}
