//! Coordinates: where a rank stands on each axis.

use std::fmt;

use crate::{ProcessTopology, Rank};

/// Tells where a rank stands on each axis of its topology.
///
/// It holds the rank and works out each coordinate when asked, so taking one allocates nothing.
///
/// # Examples
///
/// ```
/// use brigade_topology::{ProcessTopology, Rank};
///
/// let topology = ProcessTopology::pipe_data(2, 3)?;
/// let coord = topology.coord(Rank(4))?;
/// assert_eq!(coord.get("pipe"), Some(1));
/// assert!(coord.iter().eq([("pipe", 1), ("data", 1)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ProcessCoord")]
#[derive(Clone, Copy)]
pub struct Coord<'a> {
    topology: &'a ProcessTopology,
    rank: Rank,
}

impl<'a> Coord<'a> {
    /// Callers guarantee that the rank lies in the world.
    pub(crate) fn new(topology: &'a ProcessTopology, rank: Rank) -> Self {
        Self { topology, rank }
    }

    /// Returns the coordinate on an axis, or `None` for an axis that the topology does not have.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.coord(Rank(5))?.get("data"), Some(2));
    /// assert_eq!(topology.coord(Rank(5))?.get("model"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get(&self, axis: &str) -> Option<u64> {
        self.topology.axis(axis).map(|axis| axis.coord_of(self.rank))
    }

    /// Returns the rank that stands here.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.coord(Rank(5))?.rank(), Rank(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns each axis with the coordinate on it, slowest first.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 3)?;
    /// let values: Vec<u64> = topology.coord(Rank(5))?.iter().map(|(_, value)| value).collect();
    /// assert_eq!(values, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&'a str, u64)> + ExactSizeIterator + use<'a> {
        let rank = self.rank;
        self.topology.axis_slice().iter().map(move |axis| (&*axis.name, axis.coord_of(rank)))
    }
}

/// Two coordinates are equal when they name the same place on the same axes.
impl PartialEq for Coord<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Coord<'_> {}

/// Writes `pipe=1, data=2`.
impl fmt::Display for Coord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, value)) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Coord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coord({self})")
    }
}
