//! `PipelineGrid`: what one rank knows of its pipeline, its replicas and its slices.

use crate::{GridError, PipeRank, ProcessTopology, Rank, RankList};

/// Answers, for one rank, where it stands and whom it talks to.
///
/// ```text
/// pipe=2, data=2, model=2, seen from rank 5
///
///   pipe group            1 5        one replica's pipeline, through one slice
///   data group            5 7        the replicas of one slice of one stage
///   slice group           4 5        the slices of one stage of one replica
///   model-parallel group  0 1 4 5    everything of one replica: gradient norms are summed over it
///   world group           0 .. 7
/// ```
///
/// The topology has a `pipe` and a `data` axis; `model` and any others may be there too.
///
/// # Source
///
/// DeepSpeed, `runtime/pipe/topology.py`, `PipelineParallelGrid`, and the `mpu` interface of
/// Megatron-LM that it offers.
///
/// # Examples
///
/// ```
/// use brigade_topology::{PipeRank, PipelineGrid, ProcessTopology, Rank};
///
/// let grid = PipelineGrid::new(ProcessTopology::pipe_data(4, 2)?, Rank(5))?;
/// assert_eq!((grid.pipe_rank(), grid.replica()), (PipeRank(2), 1));
/// assert_eq!(grid.pipe_group().to_string(), "[1, 3, 5, 7]");
/// assert_eq!((grid.previous(), grid.next()), (Rank(3), Rank(7)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "PipelineParallelGrid")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineGrid {
    topology: ProcessTopology,
    rank: Rank,
    pub(crate) pipe_rank: PipeRank,
    pub(crate) n_pipe: u32,
    pub(crate) replica: u64,
    slice: u64,
    pub(crate) pipe_group: RankList,
    pub(crate) data_group: RankList,
    pub(crate) slice_group: RankList,
}

/// Names a kind of group of ranks.
///
/// # Examples
///
/// ```
/// use brigade_topology::{GroupKind, PipelineGrid, ProcessTopology, Rank};
///
/// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 1)?, Rank(0))?;
/// let kinds: Vec<_> = grid.groups().map(|(kind, _)| kind).collect();
/// assert_eq!(kinds[0], GroupKind::ModelParallel);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKind {
    /// Everything of one replica.
    ModelParallel,
    /// The replicas of one place.
    Data,
    /// The pipeline through one place.
    Pipe,
    /// The slices of one stage of one replica.
    Slice,
}

impl PipelineGrid {
    /// Places a rank in its topology.
    ///
    /// # Errors
    ///
    /// [`GridError::MissingAxis`] without a `pipe` or a `data` axis, [`GridError::PipeTooLong`] when the
    /// pipe axis does not fit 32 bits, and [`GridError::Lookup`] for a rank out of range.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{GridError, PipelineGrid, ProcessTopology, Rank};
    ///
    /// assert!(PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(3)).is_ok());
    /// let alone = PipelineGrid::new(ProcessTopology::new(&[("pipe", 4)])?, Rank(3));
    /// assert_eq!(alone, Err(GridError::MissingAxis { name: "data" }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(topology: ProcessTopology, rank: Rank) -> Result<Self, GridError> {
        for name in ["pipe", "data"] {
            if topology.dim(name) == 0 {
                return Err(GridError::MissingAxis { name });
            }
        }
        let n_pipe = topology.dim("pipe");
        let n_pipe = u32::try_from(n_pipe).map_err(|_| GridError::PipeTooLong { n_pipe })?;
        let coord = topology.coord(rank)?;
        let on = |axis: &str| coord.get(axis).unwrap_or(0);
        // Within a size that fits 32 bits, so does the coordinate.
        let pipe_rank = PipeRank(u32::try_from(on("pipe")).unwrap_or(u32::MAX));
        let (replica, slice) = (on("data"), on("model"));
        let pipe_group = topology.axis_comm_list_of("pipe", rank)?;
        let data_group = topology.axis_comm_list_of("data", rank)?;
        let slice_group = match topology.dim("model") {
            0 => RankList::new(rank.0, 1, 1),
            _ => topology.axis_comm_list_of("model", rank)?,
        };
        Ok(Self { topology, rank, pipe_rank, n_pipe, replica, slice, pipe_group, data_group, slice_group })
    }

    /// Places a rank in the topology of a world whose size is known, and checks that they agree.
    ///
    /// # Errors
    ///
    /// [`GridError::WorldMismatch`], and the errors of [`new`](Self::new).
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{GridError, PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::in_world(ProcessTopology::pipe_data(2, 2)?, 5, Rank(0));
    /// assert_eq!(grid, Err(GridError::WorldMismatch { topology: 4, world_size: 5 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_world(topology: ProcessTopology, world_size: u64, rank: Rank) -> Result<Self, GridError> {
        if topology.world_size() == world_size {
            Self::new(topology, rank)
        } else {
            Err(GridError::WorldMismatch { topology: topology.world_size(), world_size })
        }
    }

    /// Returns the topology.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(0))?;
    /// assert_eq!(grid.topology().world_size(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn topology(&self) -> &ProcessTopology {
        &self.topology
    }

    /// Returns the rank in the world.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(3))?;
    /// assert_eq!(grid.rank(), Rank(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_global_rank")]
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the place in the pipeline. With one stage a rank it is the number of the stage.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(3))?;
    /// assert_eq!(grid.pipe_rank(), PipeRank(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_stage_id")]
    #[doc(alias = "get_pipe_parallel_rank")]
    #[must_use]
    pub fn pipe_rank(&self) -> PipeRank {
        self.pipe_rank
    }

    /// Returns the number of the replica.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(3))?;
    /// assert_eq!(grid.replica(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_data_parallel_id")]
    #[doc(alias = "get_data_parallel_rank")]
    #[must_use]
    pub fn replica(&self) -> u64 {
        self.replica
    }

    /// Returns the number of the slice: 0 without a `model` axis.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data_model(2, 2, 2)?, Rank(3))?;
    /// assert_eq!(grid.slice(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_slice_parallel_rank")]
    #[must_use]
    pub fn slice(&self) -> u64 {
        self.slice
    }

    /// Returns the number of ranks of one pipeline.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(3, 2)?, Rank(0))?;
    /// assert_eq!(grid.n_pipe(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_pipe_parallel_world_size")]
    #[must_use]
    pub fn n_pipe(&self) -> u32 {
        self.n_pipe
    }

    /// Returns the number of replicas.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(3, 2)?, Rank(0))?;
    /// assert_eq!(grid.n_replicas(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_data_parallel_world_size")]
    #[must_use]
    pub fn n_replicas(&self) -> u64 {
        self.data_group.len()
    }

    /// Returns the number of slices: 1 without a `model` axis.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// let grid = PipelineGrid::new(ProcessTopology::pipe_data(3, 2)?, Rank(0))?;
    /// assert_eq!(grid.n_slices(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_slice_parallel_world_size")]
    #[must_use]
    pub fn n_slices(&self) -> u64 {
        self.slice_group.len()
    }

    /// Tells whether the rank is the first of its pipeline.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// assert!(PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(1))?.is_first());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "is_first_stage")]
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.pipe_rank.0 == 0
    }

    /// Tells whether the rank is the last of its pipeline.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipelineGrid, ProcessTopology, Rank};
    ///
    /// assert!(PipelineGrid::new(ProcessTopology::pipe_data(2, 2)?, Rank(2))?.is_last());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "is_last_stage")]
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.pipe_rank.0 + 1 == self.n_pipe
    }
}
