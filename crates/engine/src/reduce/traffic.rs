//! What one rank sends, adds up and receives at the end of a batch, worked out before the first one.
//!
//! ```text
//! gradients of all copies ──► reducer of the group: sum ──► totals ──► updaters ──► new values ──► copies
//! ```
//! Both ends of a message derive its contents from the same groups in the same order, so that a message
//! needs no names, and a transport between processes can post its receives ahead.

use std::collections::{BTreeMap, BTreeSet};

use brigade_topology::{PipeRank, Rank};

use super::groups::{Group, Groups, Place};

/// World ranks by replica and pipeline rank.
pub(crate) type Grid = Vec<Vec<Rank>>;

/// Who keeps the optimizer's state of a parameter and updates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OptimizerSharding {
    /// Every replica updates all its parameters, all with the same numbers.
    #[default]
    Replicated,
    /// Each parameter is updated by one replica, which alone keeps its state; the others take the new
    /// values. The numbers are the same bit for bit, the state on each rank is about `1 / replicas`.
    #[doc(alias = "ZeRO-1")]
    #[doc(alias = "zero_optimization")]
    Sharded,
}

/// One gradient that goes into a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) from: Rank,
    pub(crate) place: Place,
}

/// A sum that this rank makes: over replicas, in them over the uses in the order of the layers, in them
/// over the holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) target: Place,
    pub(crate) terms: Vec<Vec<Vec<Term>>>,
}

/// Places by the rank that they go to or come from.
pub(crate) type Parcels<T> = BTreeMap<Rank, Vec<T>>;

/// One rank's part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) gradients_out: Parcels<Place>,
    pub(crate) sums: Vec<Sum>,
    pub(crate) totals_out: Parcels<Place>,
    pub(crate) totals_in: Parcels<Place>,
    pub(crate) values_out: Parcels<Place>,
    /// For each value that comes, the copies of this rank that take it.
    pub(crate) values_in: Parcels<Vec<Place>>,
    /// Values of this rank that other copies on it take.
    pub(crate) values_here: Vec<(Place, Vec<Place>)>,
    /// The parameters, by their number among all, whose total this rank is the first to know.
    pub(crate) counted: Vec<(usize, Place)>,
    /// The parameters that this rank updates.
    pub(crate) updated: Vec<Place>,
    /// Running statistics of this rank that other copies take.
    pub(crate) statistics: BTreeSet<Place>,
    /// Whether this rank gives or takes running statistics.
    pub(crate) has_statistics: bool,
}

impl Traffic {
    pub(crate) fn new(groups: &Groups, grid: &Grid, here: Rank, sharding: OptimizerSharding) -> Self {
        let mut traffic = Self::default();
        for (number, group) in groups.iter().enumerate() {
            if group.info.is_statistic {
                traffic.statistic(group, grid, here);
                continue;
            }
            let reducer = at(grid, group.reducer, group.owner());
            if reducer == here {
                traffic.counted.push((number, group.place()));
            }
            traffic.sum(group, grid, here, reducer);
            for replica in 0..grid.len() {
                let updater = at(grid, replica, group.owner());
                match sharding {
                    OptimizerSharding::Sharded if replica != group.reducer => continue,
                    OptimizerSharding::Sharded => traffic.values(group, grid, here, updater),
                    OptimizerSharding::Replicated => {
                        traffic.total(group, here, reducer, updater);
                        traffic.values(group, &grid[replica..=replica], here, updater);
                    }
                }
                if updater == here {
                    traffic.updated.push(group.place());
                }
            }
        }
        traffic
    }

    fn sum(&mut self, group: &Group, grid: &Grid, here: Rank, reducer: Rank) {
        let terms: Vec<Vec<Vec<Term>>> = (0..grid.len())
            .map(|replica| {
                let uses = group.uses.iter().map(|each| {
                    let place = each.place;
                    let term = |&holder| Term { from: at(grid, replica, holder), place };
                    each.holders.iter().map(term).collect()
                });
                uses.collect()
            })
            .collect();
        let all = terms.iter().flatten().flatten();
        if all.clone().count() < 2 {
            return;
        }
        if reducer == here {
            self.sums.push(Sum { target: group.place(), terms });
        } else {
            let mine = all.filter(|term| term.from == here).map(|term| term.place);
            let mine: Vec<Place> = mine.collect();
            if !mine.is_empty() {
                self.gradients_out.entry(reducer).or_default().extend(mine);
            }
        }
    }

    fn total(&mut self, group: &Group, here: Rank, reducer: Rank, updater: Rank) {
        if reducer == updater {
            return;
        }
        if reducer == here {
            self.totals_out.entry(updater).or_default().push(group.place());
        }
        if updater == here {
            self.totals_in.entry(reducer).or_default().push(group.place());
        }
    }

    /// Forward passes of each copy have changed it: all take that of the owner in the first replica.
    fn statistic(&mut self, group: &Group, grid: &Grid, here: Rank) {
        let n_before = self.n_values();
        let source = at(grid, 0, group.owner());
        self.values(group, grid, here, source);
        if self.n_values() > n_before {
            self.has_statistics = true;
            if source == here {
                self.statistics.insert(group.place());
            }
        }
    }

    /// Number of parameters in the messages and the hand-overs of new values.
    fn n_values(&self) -> usize {
        let sent: usize = self.values_out.values().map(Vec::len).sum();
        let taken: usize = self.values_in.values().map(Vec::len).sum();
        sent + taken + self.values_here.len()
    }

    /// The new value goes from its updater to every other copy in `grid`.
    fn values(&mut self, group: &Group, grid: &[Vec<Rank>], here: Rank, updater: Rank) {
        let mut takers: BTreeMap<Rank, Vec<Place>> = BTreeMap::new();
        for ranks in grid {
            for (holder, place) in group.copies() {
                let rank = ranks[holder.index()];
                if (rank, place) != (updater, group.place()) {
                    takers.entry(rank).or_default().push(place);
                }
            }
        }
        for (rank, places) in takers {
            match (rank == here, updater == here) {
                (true, true) => self.values_here.push((group.place(), places)),
                (true, false) => self.values_in.entry(updater).or_default().push(places),
                (false, true) => self.values_out.entry(rank).or_default().push(group.place()),
                (false, false) => {}
            }
        }
    }

    /// How many gradients each other rank sends here to be added up.
    pub(crate) fn gradients_in(&self, here: Rank) -> BTreeMap<Rank, usize> {
        let mut counts = BTreeMap::new();
        for term in self.sums.iter().flat_map(|sum| sum.terms.iter().flatten().flatten()) {
            if term.from != here {
                *counts.entry(term.from).or_insert(0) += 1;
            }
        }
        counts
    }
}

fn at(grid: &Grid, replica: usize, pipe_rank: PipeRank) -> Rank {
    grid[replica][pipe_rank.index()]
}

#[cfg(test)]
mod tests {
    use brigade_topology::{Placement, Stage};

    use super::super::groups::ParameterInfo;
    use super::*;
    use crate::tie::Tie;

    /// Ties on stages 0, 1 and 3, twice on stage 1, over `n_replicas` replicas.
    fn traffics(n_replicas: usize, sharding: OptimizerSharding) -> (Grid, Vec<Traffic>) {
        let tie = [Tie::new::<String>("k", [])];
        let ties: [&[Tie]; 5] = [&tie, &tie, &tie, &[], &tie];
        let stages = [0, 1, 1, 2, 3].map(Stage);
        let info = |path: &str, n| ParameterInfo::trained(path, &[n]);
        let parameters = vec![vec![info("weight", 4), info("bias", 2)]; 5];
        let placement = Placement::linear(4).expect("stages");
        let groups = Groups::new(&ties, &parameters, &stages, &placement, n_replicas).expect("sound");
        let world = u32::try_from(4 * n_replicas).expect("small");
        let ranks: Vec<Rank> = (0..world).map(Rank::from).collect();
        let grid: Grid = ranks.chunks(4).map(<[Rank]>::to_vec).collect();
        let here = ranks.iter().map(|&rank| Traffic::new(&groups, &grid, rank, sharding));
        (grid.clone(), here.collect())
    }

    #[test]
    fn every_message_has_two_ends_that_agree_on_it() {
        for n_replicas in 1..=3 {
            for sharding in [OptimizerSharding::Replicated, OptimizerSharding::Sharded] {
                let (grid, all) = traffics(n_replicas, sharding);
                let ranks: Vec<Rank> = grid.into_iter().flatten().collect();
                for (from, one) in ranks.iter().zip(&all) {
                    for (to, other) in ranks.iter().zip(&all) {
                        let sent = one.gradients_out.get(to).map(Vec::len);
                        assert_eq!(sent, other.gradients_in(*to).get(from).copied(), "{from} to {to}");
                        assert_eq!(one.totals_out.get(to), other.totals_in.get(from), "{from} to {to}");
                        let sent = one.values_out.get(to).map(Vec::len);
                        assert_eq!(sent, other.values_in.get(from).map(Vec::len), "{from} to {to}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_copy_is_in_one_sum_and_takes_one_value() {
        for n_replicas in 1..=3 {
            for sharding in [OptimizerSharding::Replicated, OptimizerSharding::Sharded] {
                let (_, all) = traffics(n_replicas, sharding);
                let n_terms = |sum: &Sum| sum.terms.iter().flatten().flatten().count();
                let in_sums: usize = all.iter().flat_map(|t| &t.sums).map(n_terms).sum();
                // Two parameters that four layers share; those of the one layer of its own are summed
                // over replicas only.
                let alone = if n_replicas > 1 { 2 * n_replicas } else { 0 };
                assert_eq!(in_sums, 2 * 4 * n_replicas + alone);
                let counted: usize = all.iter().map(|t| t.counted.len()).sum();
                assert_eq!(counted, 4, "each parameter is counted once");
                let updated: usize = all.iter().map(|t| t.updated.len()).sum();
                let updaters = if sharding == OptimizerSharding::Sharded { 1 } else { n_replicas };
                assert_eq!(updated, 4 * updaters);
                let taken = |t: &Traffic| {
                    t.values_in.values().flatten().map(Vec::len).sum::<usize>()
                        + t.values_here.iter().map(|(_, places)| places.len()).sum::<usize>()
                };
                let taken: usize = all.iter().map(taken).sum();
                assert_eq!(taken + updated, 2 * 5 * n_replicas, "the others take the value");
            }
        }
    }

    #[test]
    fn a_pipeline_without_copies_sends_nothing() {
        let info = ParameterInfo::trained("weight", &[4]);
        let placement = Placement::linear(2).expect("stages");
        let parameters = vec![vec![info]; 2];
        let groups = Groups::new(&[&[], &[]], &parameters, &[Stage(0), Stage(1)], &placement, 1);
        let grid = vec![vec![Rank(0), Rank(1)]];
        for here in [Rank(0), Rank(1)] {
            let groups = groups.as_ref().expect("no ties");
            let traffic = Traffic::new(groups, &grid, here, OptimizerSharding::Sharded);
            assert!(traffic.gradients_out.is_empty() && traffic.sums.is_empty());
            assert!(traffic.totals_in.is_empty() && traffic.values_in.is_empty());
            assert_eq!((traffic.counted.len(), traffic.updated.len()), (1, 1));
        }
    }
}
