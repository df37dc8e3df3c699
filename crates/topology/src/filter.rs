//! `FilterMatch`: the ranks at given coordinates, one after another.

use crate::topology::Axis;
use crate::{Rank, RankList};

/// Iterates over the ranks at given coordinates, in ascending order.
///
/// It counts on the axes that were left free, so its memory depends on the number of axes only, and
/// skipping (`nth`) costs the same as a single step.
///
/// # Examples
///
/// ```
/// use brigade_topology::{ProcessTopology, Rank};
///
/// let topology = ProcessTopology::new(&[("pipe", 1 << 20), ("data", 1 << 20)])?;
/// let mut column = topology.filter_match(&[("data", 5)])?;
/// assert_eq!(column.n_ranks(), 1 << 20);
/// assert_eq!(column.nth(1_000_000), Some(Rank((1_000_000 << 20) + 5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FilterMatch {
    base: u64,
    /// Size and stride of each free axis, slowest first.
    free: Vec<(u64, u64)>,
    next: u64,
    end: u64,
}

impl FilterMatch {
    pub(crate) fn empty() -> Self {
        Self { base: 0, free: Vec::new(), next: 0, end: 0 }
    }

    /// Callers guarantee that `base` has coordinate 0 on every free axis.
    pub(crate) fn new<'a>(base: Rank, free: impl Iterator<Item = &'a Axis>) -> Self {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for axis in free {
            match merged.last_mut() {
                // Neighbouring free axes count as one.
                Some((size, stride)) if *stride == axis.size * axis.stride => {
                    *size *= axis.size;
                    *stride = axis.stride;
                }
                _ => merged.push((axis.size, axis.stride)),
            }
        }
        let end = merged.iter().map(|(size, _)| size).product();
        Self { base: base.0, free: merged, next: 0, end }
    }

    /// Returns how many ranks are still to come.
    ///
    /// # Examples
    ///
    /// ```
    /// let topology = brigade_topology::ProcessTopology::pipe_data(2, 3)?;
    /// assert_eq!(topology.filter_match(&[("pipe", 1)])?.n_ranks(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn n_ranks(&self) -> u64 {
        self.end - self.next
    }

    fn at(&self, position: u64) -> Rank {
        let mut rest = position;
        let mut rank = self.base;
        for &(size, stride) in self.free.iter().rev() {
            rank += rest % size * stride;
            rest /= size;
        }
        Rank(rank)
    }
}

impl From<RankList> for FilterMatch {
    fn from(list: RankList) -> Self {
        let (start, step, len) = list.parts();
        Self { base: start, free: vec![(len, step)], next: 0, end: len }
    }
}

impl Iterator for FilterMatch {
    type Item = Rank;

    fn next(&mut self) -> Option<Rank> {
        self.nth(0)
    }

    fn nth(&mut self, n: usize) -> Option<Rank> {
        let skipped = u64::try_from(n).unwrap_or(u64::MAX);
        if skipped >= self.n_ranks() {
            self.next = self.end;
            return None;
        }
        let rank = self.at(self.next + skipped);
        self.next += skipped + 1;
        Some(rank)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let exact = usize::try_from(self.n_ranks()).ok();
        (exact.unwrap_or(usize::MAX), exact)
    }
}

impl DoubleEndedIterator for FilterMatch {
    fn next_back(&mut self) -> Option<Rank> {
        if self.next == self.end {
            return None;
        }
        self.end -= 1;
        Some(self.at(self.end))
    }
}

impl std::iter::FusedIterator for FilterMatch {}
