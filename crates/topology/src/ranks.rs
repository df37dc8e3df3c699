//! Lists of ranks by arithmetic: a start, a step and a length instead of a vector.

use std::fmt;

use crate::Rank;

/// A list of ranks at a fixed distance from each other, such as one group of an axis.
///
/// It is three numbers, whatever its length: iterating, indexing and finding a rank in it need no
/// memory.
///
/// # Examples
///
/// ```
/// use brigade_topology::{ProcessTopology, Rank};
///
/// let topology = ProcessTopology::pipe_data(4, 2)?;
/// let pipes: Vec<_> = topology.axis_comm_lists("pipe").collect();
/// assert_eq!(pipes[1].to_string(), "[1, 3, 5, 7]");
/// assert_eq!(pipes[1].position(Rank(5)), Some(2));
/// # Ok::<(), brigade_topology::TopologyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RankList {
    start: u64,
    step: u64,
    len: u64,
}

impl RankList {
    /// Callers guarantee that the last rank fits 64 bits.
    pub(crate) fn new(start: u64, step: u64, len: u64) -> Self {
        // A list of one has no step: equal lists are then equal values.
        Self { start, step: if len > 1 { step } else { 1 }, len }
    }

    /// Returns the start, the step and the length.
    pub(crate) fn parts(self) -> (u64, u64, u64) {
        (self.start, self.step, self.len)
    }

    /// Callers guarantee that the position exists.
    pub(crate) fn at(self, position: u64) -> Rank {
        Rank(self.start + position * self.step)
    }

    /// Returns how many ranks the list holds.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(4, 2)?;
    /// assert_eq!(topology.axis_comm_lists("pipe").next().map(|list| list.len()), Some(4));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the list holds no rank.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(4, 2)?;
    /// assert!(topology.axis_comm_lists("pipe").all(|list| !list.is_empty()));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the rank at a position.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(4, 2)?;
    /// let group = topology.axis_comm_lists("pipe").next();
    /// assert_eq!(group.and_then(|list| list.get(3)), Some(Rank(6)));
    /// assert_eq!(group.and_then(|list| list.get(4)), None);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn get(&self, position: u64) -> Option<Rank> {
        (position < self.len).then(|| self.at(position))
    }

    /// Returns the position of a rank, or `None` when it is not in the list.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(4, 2)?;
    /// let group = topology.axis_comm_lists("pipe").next();
    /// assert_eq!(group.and_then(|list| list.position(Rank(4))), Some(2));
    /// assert_eq!(group.and_then(|list| list.position(Rank(5))), None);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn position(&self, rank: Rank) -> Option<u64> {
        let offset = rank.0.checked_sub(self.start)?;
        let position = offset / self.step;
        (offset.is_multiple_of(self.step) && position < self.len).then_some(position)
    }

    /// Returns whether the list holds a rank.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(4, 2)?;
    /// assert!(topology.axis_comm_lists("pipe").any(|list| list.contains(Rank(5))));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn contains(&self, rank: Rank) -> bool {
        self.position(rank).is_some()
    }

    /// Returns the ranks in ascending order.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 2)?;
    /// let first = topology.axis_comm_lists("data").next();
    /// assert!(first.into_iter().flat_map(|list| list.iter()).eq([Rank(0), Rank(1)]));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Rank> + use<> {
        let list = *self;
        (0..self.len).map(move |position| list.at(position))
    }

    /// Returns the ranks as a vector, for a group that is known to be small.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 2)?;
    /// let first = topology.axis_comm_lists("pipe").next();
    /// assert_eq!(first.map(|list| list.to_vec()), Some(vec![Rank(0), Rank(2)]));
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn to_vec(&self) -> Vec<Rank> {
        self.iter().collect()
    }
}

/// Writes `[0, 2, 4]`.
impl fmt::Display for RankList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (position, rank) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{rank}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for RankList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankList({} + {} * 0..{})", self.start, self.step, self.len)
    }
}
