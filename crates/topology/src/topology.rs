//! `ProcessTopology`: named axes and the arithmetic between ranks and coordinates.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::check_name;
use crate::{Coord, FilterMatch, LookupError, Rank, RankList, TopologyError};

/// Numbers the processes of a world by their coordinates on named axes, row-major: the last axis is the
/// fastest.
///
/// ```text
/// axes pipe=2, data=3        data 0  1  2
///                    pipe 0      0  1  2
///                         1      3  4  5
/// ```
///
/// It stores the axes and nothing else. Every question is answered by arithmetic, so a world of 2^40
/// ranks costs what one of four does.
///
/// # Source
///
/// DeepSpeed, `runtime/pipe/topology.py`, `ProcessTopology`, which keeps a table of all ranks instead.
///
/// # Examples
///
/// ```
/// use brigade_topology::{ProcessTopology, Rank};
///
/// let topology = ProcessTopology::new(&[("pipe", 2), ("data", 3)])?;
/// assert_eq!(topology.world_size(), 6);
/// assert_eq!(topology.rank(&[("data", 2), ("pipe", 1)])?, Rank(5));
/// assert_eq!(topology.coord(Rank(4))?.get("data"), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(String, u64)>", into = "Vec<(String, u64)>")]
pub struct ProcessTopology {
    axes: Vec<Axis>,
    world_size: u64,
}

/// One axis; `stride` is the distance between the ranks of neighbouring coordinates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axis {
    pub(crate) name: Box<str>,
    pub(crate) size: u64,
    pub(crate) stride: u64,
}

impl Axis {
    /// Returns the coordinate of a rank on this axis.
    pub(crate) fn coord_of(&self, rank: Rank) -> u64 {
        rank.0 / self.stride % self.size
    }
}

impl ProcessTopology {
    /// Builds a topology from its axes, slowest first.
    ///
    /// No axis at all is a world of one rank.
    ///
    /// # Errors
    ///
    /// [`TopologyError::DuplicateAxis`], [`TopologyError::InvalidName`],
    /// [`TopologyError::ReservedName`] for a bad name, [`TopologyError::EmptyAxis`] for a size of 0 and
    /// [`TopologyError::TooLarge`] when the ranks cannot be counted in 64 bits.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, TopologyError};
    ///
    /// let topology = ProcessTopology::new(&[("pipe", 4), ("data", 2), ("expert", 8)])?;
    /// assert_eq!(topology.world_size(), 64);
    /// assert!(matches!(ProcessTopology::new(&[("x", 2), ("x", 2)]), Err(TopologyError::DuplicateAxis { .. })));
    /// # Ok::<(), TopologyError>(())
    /// ```
    pub fn new(axes: &[(&str, u64)]) -> Result<Self, TopologyError> {
        let mut built: Vec<Axis> = Vec::with_capacity(axes.len());
        for &(name, size) in axes {
            check_name(name)?;
            if built.iter().any(|axis| &*axis.name == name) {
                return Err(TopologyError::DuplicateAxis { name: name.to_owned() });
            }
            if size == 0 {
                return Err(TopologyError::EmptyAxis { name: name.to_owned() });
            }
            built.push(Axis { name: name.into(), size, stride: 1 });
        }
        let mut world_size = 1_u64;
        for axis in built.iter_mut().rev() {
            axis.stride = world_size;
            world_size = world_size
                .checked_mul(axis.size)
                .ok_or_else(|| TopologyError::TooLarge { name: axis.name.to_string() })?;
        }
        Ok(Self { axes: built, world_size })
    }

    /// Builds a topology from a list of names and a list of sizes, as DeepSpeed takes them.
    ///
    /// # Errors
    ///
    /// [`TopologyError::LengthMismatch`] when the lists differ in length, and the errors of
    /// [`new`](Self::new).
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, TopologyError};
    ///
    /// let topology = ProcessTopology::from_lists(&["pipe", "data"], &[2, 2])?;
    /// assert_eq!(topology, ProcessTopology::pipe_data(2, 2)?);
    /// let mismatch = ProcessTopology::from_lists(&["pipe"], &[2, 2]);
    /// assert_eq!(mismatch, Err(TopologyError::LengthMismatch { n_names: 1, n_sizes: 2 }));
    /// # Ok::<(), TopologyError>(())
    /// ```
    pub fn from_lists(names: &[&str], sizes: &[u64]) -> Result<Self, TopologyError> {
        if names.len() != sizes.len() {
            return Err(TopologyError::LengthMismatch { n_names: names.len(), n_sizes: sizes.len() });
        }
        let axes: Vec<_> = names.iter().copied().zip(sizes.iter().copied()).collect();
        Self::new(&axes)
    }

    /// Builds the topology of `n_data` replicas of a pipeline of `n_pipe` ranks, the replicas of one
    /// stage being neighbours.
    ///
    /// # Errors
    ///
    /// [`TopologyError::EmptyAxis`] and [`TopologyError::TooLarge`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 2)?;
    /// assert_eq!(topology.rank(&[("pipe", 1), ("data", 0)])?, Rank(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "PipeDataParallelTopology")]
    pub fn pipe_data(n_pipe: u64, n_data: u64) -> Result<Self, TopologyError> {
        Self::new(&[("pipe", n_pipe), ("data", n_data)])
    }

    /// Builds the topology of pipelines, replicas and slices, the slices of one layer being neighbours.
    ///
    /// The arguments come in axis order, slowest first; DeepSpeed's class of that name takes
    /// `(num_pp, num_mp, num_dp)` and orders the axes as here.
    ///
    /// # Errors
    ///
    /// [`TopologyError::EmptyAxis`] and [`TopologyError::TooLarge`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data_model(2, 2, 4)?;
    /// assert_eq!(topology.rank(&[("pipe", 1), ("data", 0), ("model", 3)])?, Rank(11));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "PipeModelDataParallelTopology")]
    pub fn pipe_data_model(n_pipe: u64, n_data: u64, n_model: u64) -> Result<Self, TopologyError> {
        Self::new(&[("pipe", n_pipe), ("data", n_data), ("model", n_model)])
    }

    /// Returns the number of ranks.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_topology::ProcessTopology::pipe_data(3, 4)?.world_size(), 12);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn world_size(&self) -> u64 {
        self.world_size
    }

    /// Returns the names of the axes, slowest first.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(3, 4)?;
    /// assert!(topology.axis_names().eq(["pipe", "data"]));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[doc(alias = "get_axis_names")]
    pub fn axis_names(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.axes.iter().map(|axis| &*axis.name)
    }

    /// Returns the axes with their sizes, slowest first.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(3, 4)?;
    /// assert!(topology.axes().eq([("pipe", 3), ("data", 4)]));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = (&str, u64)> + ExactSizeIterator {
        self.axes.iter().map(|axis| (&*axis.name, axis.size))
    }

    /// Returns the size of an axis, and 0 for an axis that the topology does not have.
    ///
    /// No axis ever has size 0, so 0 always means "no such axis"; code that divides by the answer
    /// treats a missing axis as one of size 1 with `dim(axis).max(1)`.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(3, 4)?;
    /// assert_eq!(topology.dim("data"), 4);
    /// assert_eq!(topology.dim("model"), 0);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[doc(alias = "get_dim")]
    #[must_use]
    pub fn dim(&self, axis: &str) -> u64 {
        self.axis(axis).map_or(0, |axis| axis.size)
    }

    /// Returns the rank at a coordinate, given on every axis and in any order.
    ///
    /// # Errors
    ///
    /// [`LookupError::UnknownAxis`], [`LookupError::MissingAxis`], [`LookupError::RepeatedAxis`] and
    /// [`LookupError::CoordOutOfRange`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.rank(&[("pipe", 1), ("data", 2)])?, Rank(5));
    /// let missing = topology.rank(&[("pipe", 1)]).map_err(|error| error.to_string());
    /// assert!(missing.is_err_and(|text| text.contains("\"data\" is missing")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_rank")]
    pub fn rank(&self, coord: &[(&str, u64)]) -> Result<Rank, LookupError> {
        let rank = self.partial_rank(coord)?;
        if coord.len() == self.axes.len() {
            return Ok(rank);
        }
        // No name is repeated or unknown, so fewer of them than axes leave one out.
        let missing = self.axes.iter().find(|axis| coord.iter().all(|&(name, _)| name != &*axis.name));
        match missing {
            Some(axis) => {
                Err(LookupError::MissingAxis { name: axis.name.to_string(), axes: self.joined_names() })
            }
            None => Ok(rank),
        }
    }

    /// Returns the coordinate of a rank.
    ///
    /// # Errors
    ///
    /// [`LookupError::RankOutOfRange`] for a rank past the end of the world.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.coord(Rank(5))?.to_string(), "pipe=1, data=2");
    /// assert!(topology.coord(Rank(6)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_coord")]
    pub fn coord(&self, rank: Rank) -> Result<Coord<'_>, LookupError> {
        self.check_rank(rank)?;
        Ok(Coord::new(self, rank))
    }

    /// Returns the groups of ranks that differ on one axis only, lazily: what a collective along that
    /// axis runs over. A missing axis has no groups.
    ///
    /// The groups come in ascending order of their first rank, which is the same on every rank.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(2, 3)?;
    /// let groups: Vec<String> = topology.axis_comm_lists("data").map(|group| group.to_string()).collect();
    /// assert_eq!(groups, ["[0, 1, 2]", "[3, 4, 5]"]);
    /// assert_eq!(topology.axis_comm_lists("model").count(), 0);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[doc(alias = "get_axis_comm_lists")]
    pub fn axis_comm_lists(&self, axis: &str) -> impl DoubleEndedIterator<Item = RankList> + use<> {
        let (size, stride) = self.axis(axis).map_or((0, 1), |axis| (axis.size, axis.stride));
        let n_groups = self.world_size.checked_div(size).unwrap_or(0);
        (0..n_groups).map(move |group| comm_list(size, stride, group))
    }

    /// Returns one group of [`axis_comm_lists`](Self::axis_comm_lists), or `None` past the last one.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.axis_comm_list("pipe", 2).map(|group| group.to_string()).as_deref(), Some("[2, 5]"));
    /// assert_eq!(topology.axis_comm_list("pipe", 3), None);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn axis_comm_list(&self, axis: &str, group: u64) -> Option<RankList> {
        let axis = self.axis(axis)?;
        (group < self.world_size / axis.size).then(|| comm_list(axis.size, axis.stride, group))
    }

    /// Returns the group of an axis that a rank belongs to.
    ///
    /// # Errors
    ///
    /// [`LookupError::UnknownAxis`] and [`LookupError::RankOutOfRange`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.axis_comm_list_of("pipe", Rank(4))?.to_vec(), [Rank(1), Rank(4)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn axis_comm_list_of(&self, axis: &str, rank: Rank) -> Result<RankList, LookupError> {
        self.check_rank(rank)?;
        let axis = self.require_axis(axis)?;
        Ok(RankList::new(rank.0 - axis.coord_of(rank) * axis.stride, axis.stride, axis.size))
    }

    /// Returns the ranks whose coordinates equal the given ones, lazily and in ascending order. No
    /// coordinate at all matches every rank; one past the end of its axis matches none.
    ///
    /// # Errors
    ///
    /// [`LookupError::UnknownAxis`] and [`LookupError::RepeatedAxis`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data_model(2, 2, 2)?;
    /// assert!(topology.filter_match(&[("data", 1)])?.eq([2, 3, 6, 7].map(Rank)));
    /// assert_eq!(topology.filter_match(&[("data", 9)])?.next(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn filter_match(&self, filter: &[(&str, u64)]) -> Result<FilterMatch, LookupError> {
        match self.partial_rank(filter) {
            Ok(base) => {
                let free =
                    self.axes.iter().filter(|axis| filter.iter().all(|&(name, _)| name != &*axis.name));
                Ok(FilterMatch::new(base, free))
            }
            Err(LookupError::CoordOutOfRange { .. }) => Ok(FilterMatch::empty()),
            Err(error) => Err(error),
        }
    }

    /// Returns the ranks at one coordinate of an axis, lazily and in ascending order. A coordinate past
    /// the end of the axis has none.
    ///
    /// # Errors
    ///
    /// [`LookupError::UnknownAxis`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// assert!(topology.axis_list("data", 1)?.eq([Rank(1), Rank(4)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_axis_list")]
    pub fn axis_list(&self, axis: &str, coord: u64) -> Result<FilterMatch, LookupError> {
        self.filter_match(&[(axis, coord)])
    }

    pub(crate) fn axis(&self, name: &str) -> Option<&Axis> {
        self.axes.iter().find(|axis| &*axis.name == name)
    }

    pub(crate) fn axis_slice(&self) -> &[Axis] {
        &self.axes
    }

    pub(crate) fn require_axis(&self, name: &str) -> Result<&Axis, LookupError> {
        self.axis(name)
            .ok_or_else(|| LookupError::UnknownAxis { name: name.to_owned(), axes: self.joined_names() })
    }

    pub(crate) fn check_rank(&self, rank: Rank) -> Result<(), LookupError> {
        if rank.0 < self.world_size {
            Ok(())
        } else {
            Err(LookupError::RankOutOfRange { rank, world_size: self.world_size })
        }
    }

    /// Returns the lowest rank that matches some coordinates.
    ///
    /// A coordinate past its axis is reported last: whatever else is wrong with the list counts first.
    fn partial_rank(&self, coord: &[(&str, u64)]) -> Result<Rank, LookupError> {
        let mut rank = 0;
        let mut out_of_range = None;
        for (position, &(name, value)) in coord.iter().enumerate() {
            let axis = self.require_axis(name)?;
            if coord.iter().take(position).any(|&(earlier, _)| earlier == name) {
                return Err(LookupError::RepeatedAxis { name: name.to_owned() });
            }
            if value < axis.size {
                rank += value * axis.stride;
            } else {
                out_of_range = Some((axis, value));
            }
        }
        match out_of_range {
            None => Ok(Rank(rank)),
            Some((axis, value)) => {
                Err(LookupError::CoordOutOfRange { name: axis.name.to_string(), value, size: axis.size })
            }
        }
    }

    fn fmt_ranks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for rank in (0..self.world_size).map(Rank) {
            let separator = if rank.0 == 0 { "" } else { ", " };
            write!(f, "{separator}ProcessCoord({}): {rank}", Coord::new(self, rank))?;
        }
        f.write_str("}")
    }

    fn joined_names(&self) -> String {
        let names: Vec<&str> = self.axis_names().collect();
        if names.is_empty() { "no axes".to_owned() } else { names.join(", ") }
    }
}

/// Callers guarantee that the group exists.
fn comm_list(size: u64, stride: u64, group: u64) -> RankList {
    let (outer, inner) = (group / stride, group % stride);
    RankList::new(outer * stride * size + inner, stride, size)
}

/// Writes the axes as `pipe=2, data=3`; with `{:#}` every rank with its coordinate, as DeepSpeed does.
impl fmt::Display for ProcessTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return self.fmt_ranks(f);
        }
        for (position, (name, size)) in self.axes().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{name}={size}")?;
        }
        Ok(())
    }
}

impl TryFrom<Vec<(String, u64)>> for ProcessTopology {
    type Error = TopologyError;

    fn try_from(axes: Vec<(String, u64)>) -> Result<Self, TopologyError> {
        let axes: Vec<_> = axes.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        Self::new(&axes)
    }
}

impl From<ProcessTopology> for Vec<(String, u64)> {
    fn from(topology: ProcessTopology) -> Self {
        topology.axes.into_iter().map(|axis| (axis.name.into(), axis.size)).collect()
    }
}
