//! The groups and neighbours of one rank, and all groups in the one order that every rank shares.

use crate::{FilterMatch, GridError, GroupKind, PipeRank, PipelineGrid, Rank, RankList};

impl PipelineGrid {
    /// Returns the pipeline that the rank belongs to, in pipeline order.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(3, 2)?, Rank(3))?;
    /// assert_eq!(grid.pipe_group().to_string(), "[1, 3, 5]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_pipe_parallel_group")]
    #[must_use]
    pub fn pipe_group(&self) -> RankList {
        self.pipe_group
    }

    /// Returns the replicas of the rank's place: those that average gradients with it.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(3, 2)?, Rank(3))?;
    /// assert_eq!(grid.data_group().to_string(), "[2, 3]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_data_parallel_group")]
    #[must_use]
    pub fn data_group(&self) -> RankList {
        self.data_group
    }

    /// Returns the slices of the rank's stage in its replica: the rank alone without a `model` axis.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data_model(2, 2, 2)?, Rank(5))?;
    /// assert_eq!(grid.slice_group().to_string(), "[4, 5]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_slice_parallel_group")]
    #[must_use]
    pub fn slice_group(&self) -> RankList {
        self.slice_group
    }

    /// Returns everything of the rank's replica, in ascending order: the ranks over which the norm of
    /// the gradients is summed.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data_model(2, 2, 2)?, Rank(5))?;
    /// assert!(grid.model_parallel_group().eq([0, 1, 4, 5].map(Rank)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_model_parallel_group")]
    #[must_use]
    pub fn model_parallel_group(&self) -> FilterMatch {
        self.replica_ranks(self.replica)
    }

    /// Returns the position of the rank in its [`model_parallel_group`](Self::model_parallel_group).
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data_model(2, 2, 2)?, Rank(5))?;
    /// assert_eq!(grid.model_parallel_rank(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_model_parallel_rank")]
    #[must_use]
    pub fn model_parallel_rank(&self) -> u64 {
        let mut position = 0;
        for axis in self.topology().axis_slice().iter().filter(|axis| &*axis.name != "data") {
            position = position * axis.size + axis.coord_of(self.rank());
        }
        position
    }

    /// Returns every rank.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(0))?;
    /// assert_eq!(grid.world_group().to_string(), "[0, 1, 2, 3]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn world_group(&self) -> RankList {
        RankList::new(0, 1, self.topology().world_size())
    }

    /// Returns the rank after this one in its pipeline; the first one after the last.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 2)?;
    /// assert_eq!(PipelineGrid::new(topology.clone(), Rank(1))?.next(), Rank(3));
    /// assert_eq!(PipelineGrid::new(topology, Rank(3))?.next(), Rank(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn next(&self) -> Rank {
        self.along_pipe(if self.is_last() { 0 } else { self.pipe_rank.0 + 1 })
    }

    /// Returns the rank before this one in its pipeline; the last one before the first.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(3, 2)?;
    /// assert_eq!(PipelineGrid::new(topology, Rank(1))?.previous(), Rank(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn previous(&self) -> Rank {
        self.along_pipe(if self.is_first() { self.n_pipe - 1 } else { self.pipe_rank.0 - 1 })
    }

    /// Returns, lazily, each rank of the world with the one after it in its pipeline, the last pipeline
    /// rank being paired with the first.
    ///
    /// # Source
    ///
    /// DeepSpeed, `PipelineParallelGrid._build_p2p_groups`.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(0))?;
    /// let pairs: Vec<_> = grid.peer_pairs().map(|(from, to)| (from.0, to.0)).collect();
    /// assert_eq!(pairs, [(0, 2), (1, 3), (2, 0), (3, 1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "p2p_groups")]
    pub fn peer_pairs(&self) -> impl DoubleEndedIterator<Item = (Rank, Rank)> + use<> {
        let n_pipe = u64::from(self.n_pipe);
        let stride = self.topology().axis("pipe").map_or(1, |axis| axis.stride);
        (0..self.topology().world_size()).map(move |rank| {
            let last = rank / stride % n_pipe == n_pipe - 1;
            (Rank(rank), Rank(if last { rank - (n_pipe - 1) * stride } else { rank + stride }))
        })
    }

    /// Returns the rank at another place of the pipeline. It stands where this one does on all other
    /// axes, unless `overrides` say otherwise.
    ///
    /// # Errors
    ///
    /// [`GridError::Lookup`] for a place past the end of the pipeline, an unknown or repeated axis, or a
    /// coordinate out of range.
    ///
    /// # Source
    ///
    /// DeepSpeed, `PipelineParallelGrid.stage_to_global`.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(3, 2)?, Rank(3))?;
    /// assert_eq!(grid.stage_to_rank(PipeRank(2), &[])?, Rank(5));
    /// assert_eq!(grid.stage_to_rank(PipeRank(2), &[("data", 0)])?, Rank(4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "stage_to_global")]
    pub fn stage_to_rank(&self, place: PipeRank, overrides: &[(&str, u64)]) -> Result<Rank, GridError> {
        let mut coord: Vec<(&str, u64)> = vec![("pipe", place.0.into())];
        coord.extend(overrides);
        let kept = self.topology().coord(self.rank())?;
        coord.extend(
            kept.iter()
                .filter(|(name, _)| *name != "pipe" && overrides.iter().all(|(given, _)| given != name)),
        );
        self.topology().rank(&coord).map_err(GridError::Lookup)
    }

    /// Returns every group of the grid, lazily, in one order that is the same on every rank: a program
    /// that creates its communicators in this order never deadlocks.
    ///
    /// The order is all model-parallel groups, then all data, all pipe and all slice groups, each kind
    /// by its first rank.
    ///
    /// # Source
    ///
    /// The order of DeepSpeed's `new_group` calls.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{GroupKind, PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(0))?;
    /// let pipes = grid.groups().filter(|(kind, _)| *kind == GroupKind::Pipe);
    /// let pipes: Vec<Vec<Rank>> = pipes.map(|(_, ranks)| ranks.collect()).collect();
    /// assert_eq!(pipes, [[Rank(0), Rank(2)], [Rank(1), Rank(3)]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn groups(&self) -> impl Iterator<Item = (GroupKind, FilterMatch)> + '_ {
        let replicas = (0..self.n_replicas()).map(|replica| self.replica_ranks(replica));
        let along = |axis: &str| self.topology().axis_comm_lists(axis).map(FilterMatch::from);
        // Without a `model` axis every rank is a slice group of its own.
        let n_alone = if self.topology().dim("model") == 0 { self.topology().world_size() } else { 0 };
        let alone = (0..n_alone).map(|rank| FilterMatch::from(RankList::new(rank, 1, 1)));
        replicas
            .map(|group| (GroupKind::ModelParallel, group))
            .chain(along("data").map(|group| (GroupKind::Data, group)))
            .chain(along("pipe").map(|group| (GroupKind::Pipe, group)))
            .chain(along("model").map(|group| (GroupKind::Slice, group)))
            .chain(alone.map(|group| (GroupKind::Slice, group)))
    }

    /// Callers guarantee that the replica exists.
    fn replica_ranks(&self, replica: u64) -> FilterMatch {
        let stride = self.topology().axis("data").map_or(1, |axis| axis.stride);
        let others = self.topology().axis_slice().iter().filter(|axis| &*axis.name != "data");
        FilterMatch::new(Rank(replica * stride), others)
    }

    /// Callers guarantee a place of the pipeline.
    fn along_pipe(&self, place: u32) -> Rank {
        self.pipe_group.at(place.into())
    }
}
