//! Tied weights: which ranks hold a copy of one weight, and in which order they are served.

use std::collections::BTreeMap;

use crate::{Placement, ProcessTopology, Rank, RankList, Stage, TieError};

/// Tells which stages and ranks share one weight.
///
/// Every replica of the pipeline has its own group of ranks, all of one shape; they are worked out when
/// asked for, so a tie costs the same in a world of any size.
///
/// # Examples
///
/// ```
/// use brigade_topology::{Placement, ProcessTopology, Rank, Stage, tied_modules};
///
/// let topology = ProcessTopology::pipe_data(4, 2)?;
/// let uses = [("embed", Stage(0)), ("embed", Stage(3)), ("embed", Stage(3))];
/// let ties = tied_modules(&topology, &Placement::linear(4)?, &uses)?;
/// assert_eq!(ties[0].stages(), [Stage(0), Stage(3)]);
/// assert_eq!(ties[0].ranks_of(Rank(7)), Some(vec![Rank(1), Rank(7)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieGroup {
    name: String,
    index: usize,
    uses: Vec<(String, Stage)>,
    stages: Vec<Stage>,
    /// The places in the pipeline that hold a copy, in ascending order.
    places: Vec<u64>,
    topology: ProcessTopology,
}

/// Groups the uses of tied layers, given as (key, stage) in layer order, by key.
///
/// The groups come in the order of their keys, whatever the order of the uses: every rank gets the same
/// list, and communicators made in its order never deadlock. Uses of one key on one rank, be it on one
/// stage or on two that the placement brings together, are merged: each rank appears once.
///
/// # Errors
///
/// [`TieError::NoPipeAxis`], [`TieError::PlacementMismatch`] when the placement is for a pipeline of
/// another length, and [`TieError::StageOutOfRange`].
///
/// # Source
///
/// DeepSpeed, `PipelineModule._index_tied_modules`.
///
/// # Examples
///
/// ```
/// use brigade_topology::{Placement, ProcessTopology, Stage, tied_modules};
///
/// let topology = ProcessTopology::pipe_data(3, 1)?;
/// let uses = [("b", Stage(0)), ("b", Stage(1)), ("a", Stage(1)), ("a", Stage(2))];
/// let ties = tied_modules(&topology, &Placement::linear(3)?, &uses)?;
/// assert_eq!(ties.iter().map(|tie| tie.name()).collect::<Vec<_>>(), ["a", "b"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "_index_tied_modules")]
pub fn tied_modules(
    topology: &ProcessTopology,
    placement: &Placement,
    uses: &[(&str, Stage)],
) -> Result<Vec<TieGroup>, TieError> {
    let mut by_key: BTreeMap<&str, Vec<(&str, Stage)>> = BTreeMap::new();
    for &(key, stage) in uses {
        by_key.entry(key).or_default().push((key, stage));
    }
    let groups = by_key.into_values().enumerate();
    groups.map(|(index, uses)| TieGroup::new(topology, placement, index, &uses)).collect()
}

/// Analyses sets of tied weights, each weight given as (name, stage).
///
/// Each group is named after the first of its weights in alphabetical order, a name that does not depend
/// on the number of stages. The groups come in the order of these names, whatever the order of the sets
/// and within them: every rank gets the same list. [`TieGroup::index`] leads back to the set.
///
/// Weights of one set on one rank are merged: each rank appears once.
///
/// # Errors
///
/// [`TieError::Empty`] for a set without a weight, and the errors of [`tied_modules`].
///
/// # Source
///
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `analyze_tie_ranks`, which repeats a rank that
/// holds two weights of a set and lets a bad stage pass when it comes first.
///
/// # Examples
///
/// ```
/// use brigade_topology::{Placement, ProcessTopology, Rank, Stage, analyze_tie_ranks};
///
/// let topology = ProcessTopology::pipe_data(2, 2)?;
/// let sets: [&[_]; 1] = [&[("head.weight", Stage(1)), ("embed.weight", Stage(0))]];
/// let ties = analyze_tie_ranks(&topology, &Placement::linear(2)?, &sets)?;
/// assert_eq!(ties[0].name(), "embed.weight");
/// let ranks: Vec<_> = ties[0].replicas().collect();
/// assert_eq!(ranks, [[Rank(0), Rank(2)], [Rank(1), Rank(3)]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn analyze_tie_ranks(
    topology: &ProcessTopology,
    placement: &Placement,
    sets: &[&[(&str, Stage)]],
) -> Result<Vec<TieGroup>, TieError> {
    let group = |(index, uses): (usize, &&[(&str, Stage)])| {
        let mut sorted = uses.to_vec();
        sorted.sort_unstable();
        TieGroup::new(topology, placement, index, &sorted)
    };
    let mut groups = sets.iter().enumerate().map(group).collect::<Result<Vec<_>, _>>()?;
    groups.sort_by(|one, other| one.uses.cmp(&other.uses));
    Ok(groups)
}

impl TieGroup {
    fn new(
        topology: &ProcessTopology,
        placement: &Placement,
        index: usize,
        uses: &[(&str, Stage)],
    ) -> Result<Self, TieError> {
        let n_pipe = topology.dim("pipe");
        if n_pipe == 0 {
            return Err(TieError::NoPipeAxis);
        }
        if u64::from(placement.n_ranks()) != n_pipe {
            return Err(TieError::PlacementMismatch { n_ranks: placement.n_ranks(), n_pipe });
        }
        let name = uses.first().map(|&(name, _)| name.to_owned()).ok_or(TieError::Empty { index })?;
        let mut stages = Vec::with_capacity(uses.len());
        let mut places = Vec::with_capacity(uses.len());
        for &(weight, stage) in uses {
            let holders = placement.holders_of(stage).map_err(|_| TieError::StageOutOfRange {
                weight: weight.to_owned(),
                stage,
                n_stages: placement.n_stages(),
            })?;
            stages.push(stage);
            places.extend(holders.map(u64::from));
        }
        stages.sort_unstable();
        stages.dedup();
        places.sort_unstable();
        places.dedup();
        let uses = uses.iter().map(|&(name, stage)| (name.to_owned(), stage)).collect();
        Ok(Self { name, index, uses, stages, places, topology: topology.clone() })
    }

    /// Returns the name of the tie: the key, or the first name of the set. It is the one name under
    /// which a checkpoint stores the weight, at any number of stages.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 1)?;
    /// let ties = tied_modules(&topology, &Placement::linear(2)?, &[("embed", Stage(1))])?;
    /// assert_eq!(ties[0].name(), "embed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the position of the group's set among the sets that were analysed; for tied modules, the
    /// position of its key among the sorted keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Stage, analyze_tie_ranks};
    ///
    /// let sets: [&[_]; 2] = [&[("z", Stage(0))], &[("a", Stage(1))]];
    /// let ties = analyze_tie_ranks(&ProcessTopology::pipe_data(2, 1)?, &Placement::linear(2)?, &sets)?;
    /// assert_eq!((ties[0].name(), ties[0].index()), ("a", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns every use of the weight, with its own name and stage.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 1)?;
    /// let uses = [("embed", Stage(1)), ("embed", Stage(1))];
    /// let ties = tied_modules(&topology, &Placement::linear(2)?, &uses)?;
    /// assert_eq!(ties[0].uses().count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn uses(&self) -> impl DoubleEndedIterator<Item = (&str, Stage)> + ExactSizeIterator {
        self.uses.iter().map(|(name, stage)| (name.as_str(), *stage))
    }

    /// Returns the stages that hold a copy, in ascending order, each once.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 1)?;
    /// let uses = [("embed", Stage(1)), ("embed", Stage(0)), ("embed", Stage(1))];
    /// let ties = tied_modules(&topology, &Placement::linear(2)?, &uses)?;
    /// assert_eq!(ties[0].stages(), [Stage(0), Stage(1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Tells whether one rank of each replica holds every copy, so that nothing has to be exchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Stage, tied_modules};
    ///
    /// // A V brings the first stage and the last one to one rank.
    /// let uses = [("embed", Stage(0)), ("embed", Stage(3))];
    /// let ties = tied_modules(&ProcessTopology::pipe_data(2, 1)?, &Placement::v(2)?, &uses)?;
    /// assert!(ties[0].is_local());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.places.len() == 1
    }

    /// Returns the number of replicas: of pipelines, that is, of which each has its own group.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data_model(2, 3, 2)?;
    /// let ties = tied_modules(&topology, &Placement::linear(2)?, &[("embed", Stage(0))])?;
    /// assert_eq!(ties[0].n_replicas(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn n_replicas(&self) -> u64 {
        self.topology.world_size() / self.topology.dim("pipe").max(1)
    }

    /// Returns the ranks of each replica's group, lazily; replicas in the order of their first rank, ranks
    /// in ascending order.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Rank, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(3, 2)?;
    /// let uses = [("embed", Stage(0)), ("embed", Stage(2))];
    /// let ties = tied_modules(&topology, &Placement::linear(3)?, &uses)?;
    /// assert_eq!(ties[0].replicas().nth(1), Some(vec![Rank(1), Rank(5)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replicas(&self) -> impl DoubleEndedIterator<Item = Vec<Rank>> + '_ {
        self.topology.axis_comm_lists("pipe").map(|pipe| self.ranks_on(pipe))
    }

    /// Returns the group that a rank exchanges this weight with, itself included, or `None` when it holds
    /// no copy.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Rank, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(3, 1)?;
    /// let uses = [("embed", Stage(0)), ("embed", Stage(2))];
    /// let ties = tied_modules(&topology, &Placement::linear(3)?, &uses)?;
    /// assert_eq!(ties[0].ranks_of(Rank(2)), Some(vec![Rank(0), Rank(2)]));
    /// assert_eq!(ties[0].ranks_of(Rank(1)), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ranks_of(&self, rank: Rank) -> Option<Vec<Rank>> {
        let pipe = self.topology.axis_comm_list_of("pipe", rank).ok()?;
        let place = pipe.position(rank)?;
        self.places.binary_search(&place).ok()?;
        Some(self.ranks_on(pipe))
    }

    /// Returns the rank of a group that owns the weight: the lowest. It counts the weight in a norm and
    /// writes it to a checkpoint; the others hold copies.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Rank, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(3, 2)?;
    /// let uses = [("embed", Stage(0)), ("embed", Stage(2))];
    /// let ties = tied_modules(&topology, &Placement::linear(3)?, &uses)?;
    /// assert_eq!(ties[0].owner_of(Rank(5)), Some(Rank(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn owner_of(&self, rank: Rank) -> Option<Rank> {
        self.ranks_of(rank)?.first().copied()
    }

    /// Tells whether a rank holds a copy that another rank owns, which a norm over the replica must not
    /// count again.
    ///
    /// # Source
    ///
    /// DeepSpeed marks such parameters with `ds_pipe_replicated`.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, ProcessTopology, Rank, Stage, tied_modules};
    ///
    /// let topology = ProcessTopology::pipe_data(3, 1)?;
    /// let uses = [("embed", Stage(0)), ("embed", Stage(2))];
    /// let ties = tied_modules(&topology, &Placement::linear(3)?, &uses)?;
    /// assert_eq!([0, 1, 2].map(|rank| ties[0].is_copy(Rank(rank))), [false, false, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ds_pipe_replicated")]
    #[must_use]
    pub fn is_copy(&self, rank: Rank) -> bool {
        self.owner_of(rank).is_some_and(|owner| owner != rank)
    }

    fn ranks_on(&self, pipe: RankList) -> Vec<Rank> {
        self.places.iter().filter_map(|&place| pipe.get(place)).collect()
    }
}
