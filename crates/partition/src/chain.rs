//! The exact search behind `balanced`; the module `proof` shows why each step is right.

use std::ops::{Add, Div, Sub};

/// A whole number that sums of weights are kept in.
pub(crate) trait Sum:
    Copy + Ord + Add<Output = Self> + Sub<Output = Self> + Div<Output = Self> + From<u8>
{
    /// Converts a count of stages.
    fn from_count(count: usize) -> Self;
}

impl Sum for u64 {
    fn from_count(count: usize) -> Self {
        Self::try_from(count).unwrap_or(Self::MAX)
    }
}

impl Sum for u128 {
    fn from_count(count: usize) -> Self {
        Self::try_from(count).unwrap_or(Self::MAX)
    }
}

/// A list of layers, as sums from the left, that is to be cut into more than zero and fewer stages than
/// there are layers.
pub(crate) struct Chain<'a, S> {
    prefix: &'a [S],
    n_stages: usize,
}

/// For each layer, the fewest and the most stages that can cover the rest of the list from it on;
/// `None` when none can.
struct Reach<S> {
    fewest: Vec<u32>,
    most: Vec<u32>,
    /// The weight of the heaviest of all stages that are lighter than the minimum.
    below: S,
}

/// Marks a layer from which the end cannot be reached.
const UNREACHABLE: u32 = u32::MAX;

impl<'a, S: Sum> Chain<'a, S> {
    /// Callers guarantee `0 < n_stages < prefix.len()` and sums that do not decrease.
    pub(crate) fn new(prefix: &'a [S], n_stages: usize) -> Self {
        Self { prefix, n_stages }
    }

    fn n_layers(&self) -> usize {
        self.prefix.len() - 1
    }

    fn total(&self) -> S {
        self.prefix[self.n_layers()]
    }

    /// Returns the boundaries of the best cuts.
    pub(crate) fn best(&self) -> Vec<usize> {
        let heaviest = self.least_maximum();
        let mut reach = Reach::new(self.prefix.len());
        // `low` is the lightest stage of some cuts; no cuts have one above `high`. The answer is mostly
        // about as far below the mean as the heaviest stage is above it, so steps start at that size.
        let mean = self.total() / S::from_count(self.n_stages);
        let (mut low, mut high) = (S::from(0), mean);
        let mut step = Some(heaviest - mean + S::from(1));
        while low < high {
            let middle = match step {
                Some(step) if step < high - low => high - step,
                _ => high - (high - low) / S::from(2),
            };
            match self.boundaries(middle, heaviest, &mut reach) {
                Some(found) => (low, step) = (self.lightest(&found), None),
                // The lightest stage is a stage, so none of the weights between these two.
                // A step beyond what is left is never made again, and would not fit when doubled.
                None => {
                    step = step.filter(|&step| step < high - low).map(|step| step + step);
                    high = reach.below;
                }
            }
        }
        self.boundaries(low, heaviest, &mut reach).unwrap_or_else(|| {
            unreachable!("cuts whose stages weigh at most the least maximum exist by its definition")
        })
    }

    /// Returns the least `m` such that stages of at most `m` each cover the list.
    fn least_maximum(&self) -> S {
        let heaviest_layer = self.prefix.windows(2).map(|pair| pair[1] - pair[0]).max();
        let mean = self.total() / S::from_count(self.n_stages);
        let mut low = heaviest_layer.unwrap_or(S::from(0)).max(mean);
        // Filling stages up to one mean plus one layer always suffices.
        let mut high = low + low + S::from(1);
        while low < high {
            let middle = low + (high - low) / S::from(2);
            if self.fits(middle) { high = middle } else { low = middle + S::from(1) }
        }
        low
    }

    /// Tells whether stages of at most `maximum` each cover the list, by filling each as far as it goes.
    fn fits(&self, maximum: S) -> bool {
        let mut start = 0;
        for _ in 0..self.n_stages {
            start = self.furthest(start, maximum);
            if start == self.n_layers() {
                return true;
            }
        }
        false
    }

    /// Returns the last boundary that keeps a stage from `start` within `maximum`, by doubling steps.
    fn furthest(&self, start: usize, maximum: S) -> usize {
        let limit = self.prefix[start] + maximum;
        let mut step = 1;
        while start + step < self.prefix.len() && self.prefix[start + step] <= limit {
            step *= 2;
        }
        let end = self.prefix.len().min(start + step);
        let base = start + step / 2;
        base + self.prefix[base..end].partition_point(|&sum| sum <= limit) - 1
    }

    fn lightest(&self, boundaries: &[usize]) -> S {
        let weights = boundaries.windows(2).map(|pair| self.prefix[pair[1]] - self.prefix[pair[0]]);
        weights.min().unwrap_or(S::from(0))
    }

    /// Returns the boundaries of the cuts with the longest first stages among those whose stages weigh
    /// `minimum` to `maximum`, or `None` when there are none.
    fn boundaries(&self, minimum: S, maximum: S, reach: &mut Reach<S>) -> Option<Vec<usize>> {
        reach.fill(self.prefix, minimum, maximum);
        if !reach.covers(0, self.n_stages) {
            return None;
        }
        let mut boundaries = Vec::with_capacity(self.n_stages + 1);
        let mut start = 0;
        boundaries.push(start);
        // The last place from which as many stages as are left, or more, can reach the end. It moves right
        // as fewer are left, so no place is looked at twice.
        let (mut last, mut next) = (0, 1);
        for left in (0..self.n_stages).rev() {
            while next < self.prefix.len() && (reach.is_dead(next) || reach.covers_more(next, left)) {
                if !reach.is_dead(next) {
                    last = next;
                }
                next += 1;
            }
            let end = last.min(self.furthest(start, maximum));
            start = (start + 1..=end).rev().find(|&end| reach.covers(end, left))?;
            boundaries.push(start);
        }
        Some(boundaries)
    }
}

impl<S: Sum> Reach<S> {
    fn new(n_boundaries: usize) -> Self {
        let unreachable = vec![UNREACHABLE; n_boundaries];
        Self { fewest: unreachable.clone(), most: unreachable, below: S::from(0) }
    }

    /// Tells whether the end cannot be reached from a boundary.
    fn is_dead(&self, boundary: usize) -> bool {
        self.fewest[boundary] == UNREACHABLE
    }

    /// Tells whether `n_stages` stages or more can cover the list from a boundary on.
    fn covers_more(&self, boundary: usize, n_stages: usize) -> bool {
        u32::try_from(n_stages).is_ok_and(|n_stages| n_stages <= self.most[boundary])
    }

    /// Tells whether exactly `n_stages` stages can cover the list from a boundary on.
    fn covers(&self, boundary: usize, n_stages: usize) -> bool {
        let fewest = self.fewest[boundary];
        fewest != UNREACHABLE && {
            let n_stages = u32::try_from(n_stages).unwrap_or(UNREACHABLE);
            fewest <= n_stages && n_stages <= self.most[boundary]
        }
    }

    /// Fills in, from the end of the list to its start, what stages of `minimum` to `maximum` can cover.
    fn fill(&mut self, prefix: &[S], minimum: S, maximum: S) {
        let last = prefix.len() - 1;
        self.fewest[last] = 0;
        self.most[last] = 0;
        self.below = S::from(0);
        // A stage from `start` may end anywhere in `nearest..=furthest`; both only move left. Of the
        // places there from which the end can be reached, the last takes the fewest stages to it and the
        // first the most, as the module `proof` shows.
        let (mut nearest, mut furthest) = (last + 1, last);
        let (mut first, mut latest) = (last, last);
        for start in (0..last).rev() {
            let weight_to = |end: usize| prefix[end] - prefix[start];
            while weight_to(furthest) > maximum {
                furthest -= 1;
            }
            while nearest > start + 1 && weight_to(nearest - 1) >= minimum {
                nearest -= 1;
                if self.fewest[nearest] != UNREACHABLE {
                    first = nearest;
                }
            }
            if nearest > start + 1 {
                self.below = self.below.max(weight_to(nearest - 1));
            }
            latest = latest.min(furthest);
            while latest >= nearest && self.fewest[latest] == UNREACHABLE {
                latest -= 1;
            }
            let can_reach = nearest <= latest;
            self.fewest[start] = if can_reach { self.fewest[latest] + 1 } else { UNREACHABLE };
            self.most[start] = if can_reach { self.most[first] + 1 } else { UNREACHABLE };
        }
    }
}
