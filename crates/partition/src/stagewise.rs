//! The exact search when stages differ: by speed, memory, pins or what they send.

use crate::problem::Problem;
use crate::{Cuts, PartitionError};

/// The most entries that the table of one search may have: 16 MiB, and seconds rather than minutes.
const MAX_ENTRIES: usize = 1 << 22;

/// Marks an entry from which the end cannot be reached.
const NEVER: u32 = u32::MAX;

/// Searches the cuts of a problem in which every stage has a rank of its own.
///
/// `empties[s][p]` is the least number of empty stages with which stages `s..` can cover the layers from
/// place `p` on, each non-empty one at a cost of `minimum..=maximum` and within its memory.
struct Search<'a> {
    problem: &'a Problem,
    empties: Vec<u32>,
}

/// How far a search has to look.
#[derive(Clone, Copy)]
struct Window {
    minimum: u128,
    maximum: u128,
    /// The number of empty stages that are accepted.
    n_empty: u32,
}

/// Returns the cuts with, in this order: the fewest empty stages, the least heaviest cost, the greatest
/// lightest cost of a non-empty stage, the longest first stages.
///
/// Each criterion is settled for all cuts at once before the next one is looked at, by a table over all
/// stages and places, so the answer is the best of all cuts by that order.
pub(crate) fn solve(problem: &Problem) -> Result<Cuts, PartitionError> {
    let n_entries = problem.n_places().saturating_mul(problem.n_stages() + 1);
    if n_entries > MAX_ENTRIES {
        return Err(PartitionError::TooLarge { n_entries, max: MAX_ENTRIES });
    }
    let mut search = Search { problem, empties: vec![NEVER; n_entries] };
    let n_empty = search.fewest_empty().ok_or_else(|| problem.infeasible())?;
    let maximum = search.least_maximum(n_empty);
    let minimum = search.greatest_minimum(maximum, n_empty);
    let places = search.places(Window { minimum, maximum, n_empty });
    problem.cuts(&places.unwrap_or_else(|| unreachable!("the last search found cuts")))
}

impl Search<'_> {
    fn entry(&self, stage: usize, place: usize) -> u32 {
        self.empties[stage * self.problem.n_places() + place]
    }

    fn fewest_empty(&mut self) -> Option<u32> {
        let anything = Window { minimum: 0, maximum: u128::MAX, n_empty: NEVER - 1 };
        self.fill(anything);
        Some(self.entry(0, 0)).filter(|&n_empty| n_empty != NEVER)
    }

    fn least_maximum(&mut self, n_empty: u32) -> u128 {
        let problem = self.problem;
        let total = problem.work.last().copied().unwrap_or(0);
        let cheapest = problem.stages.iter().map(|rule| rule.rate).min().unwrap_or(1);
        let n_stages = u128::try_from(problem.n_stages()).unwrap_or(u128::MAX);
        // No cuts are below `low`; those found at `high` are not above it.
        let mut low = cheapest * (total / n_stages);
        let mut step = (low / 8).max(1);
        let mut high = loop {
            match self.places(Window { minimum: 0, maximum: low, n_empty }) {
                Some(places) => break self.heaviest(&places),
                None => low = low.saturating_add(step),
            }
            step = step.saturating_mul(2);
        };
        // The steps may have jumped over the least maximum: it is above the one tried before.
        let mut low = low.saturating_sub(step / 2).min(high);
        while low < high {
            let maximum = low + (high - low) / 2;
            match self.places(Window { minimum: 0, maximum, n_empty }) {
                Some(places) => high = self.heaviest(&places),
                None => low = maximum + 1,
            }
        }
        high
    }

    fn greatest_minimum(&mut self, maximum: u128, n_empty: u32) -> u128 {
        let (mut low, mut high) = (0, maximum);
        while low < high {
            let minimum = high - (high - low) / 2;
            match self.places(Window { minimum, maximum, n_empty }) {
                Some(places) => low = self.lightest(&places).unwrap_or(high),
                None => high = minimum - 1,
            }
        }
        low
    }

    fn heaviest(&self, places: &[usize]) -> u128 {
        let stages = places.windows(2).enumerate();
        stages.map(|(stage, ends)| self.problem.cost(stage, ends[0], ends[1])).max().unwrap_or(0)
    }

    /// Returns the least cost of a stage that is not empty.
    fn lightest(&self, places: &[usize]) -> Option<u128> {
        let stages = places.windows(2).enumerate().filter(|(_, ends)| ends[0] < ends[1]);
        stages.map(|(stage, ends)| self.problem.cost(stage, ends[0], ends[1])).min()
    }

    /// Returns the cuts with the longest first stages within a window, or `None` when it holds none.
    fn places(&mut self, window: Window) -> Option<Vec<usize>> {
        self.fill(window);
        if self.entry(0, 0) > window.n_empty {
            return None;
        }
        let (mut place, mut left) = (0, window.n_empty);
        let mut places = vec![place];
        for stage in 0..self.problem.n_stages() {
            let fits = |end: usize| {
                let here = u32::from(end == place);
                let rest = self.entry(stage + 1, end);
                rest <= left.saturating_sub(here) && here <= left && self.accepts(stage, place, end, window)
            };
            let end = self.ends(stage, place, window).rev().find(|&end| fits(end))?;
            left -= u32::from(end == place);
            place = end;
            places.push(place);
        }
        Some(places)
    }

    /// Returns the places at which a stage may end by its work and its memory, which grow with it.
    fn ends(&self, stage: usize, start: usize, window: Window) -> std::ops::Range<usize> {
        let (first, highest) = self.allowed(stage, start);
        let within = |&end: &usize| self.has_room(stage, start, end, window);
        // Both conditions hold up to some place and no further.
        let mut beyond = first;
        let mut step = 1;
        while beyond <= highest && within(&beyond) {
            beyond += step;
            step *= 2;
        }
        let mut known = beyond.saturating_sub(step / 2).max(first);
        let mut beyond = beyond.min(highest + 1).max(first);
        while known < beyond {
            let middle = known + (beyond - known) / 2;
            if within(&middle) { known = middle + 1 } else { beyond = middle }
        }
        first..known
    }

    /// Returns the first and the last place where a stage may end, by pins and emptiness alone.
    fn allowed(&self, stage: usize, start: usize) -> (usize, usize) {
        let least = usize::from(!self.problem.allow_empty);
        let (lowest, highest) = self.problem.bounds[stage + 1];
        (lowest.max(start + least), highest)
    }

    /// Tells whether the work between two places is within the maximum and their memory within the limit.
    fn has_room(&self, stage: usize, start: usize, end: usize, window: Window) -> bool {
        let problem = self.problem;
        problem.work_cost(stage, start, end) <= window.maximum && problem.fits(stage, start, end)
    }

    /// Tells whether the cost of a stage lies in a window. An empty stage may cost anything up to the
    /// maximum.
    fn accepts(&self, stage: usize, start: usize, end: usize, window: Window) -> bool {
        let cost = self.problem.cost(stage, start, end);
        cost <= window.maximum && (cost >= window.minimum || start == end)
    }

    fn fill(&mut self, window: Window) {
        let problem = self.problem;
        let n_places = problem.n_places();
        self.empties.fill(NEVER);
        let n_stages = problem.n_stages();
        self.empties[n_stages * n_places + n_places - 1] = 0;
        let mut open = vec![n_places; n_places + 1];
        for stage in (0..n_stages).rev() {
            // For each place the first one from there on from which the end is reached.
            for place in (0..n_places).rev() {
                open[place] = if self.entry(stage + 1, place) == NEVER { open[place + 1] } else { place };
            }
            let (lowest, highest) = problem.bounds[stage];
            // Both ends of what a stage may hold only move right with its start, as the work between two
            // places shrinks: stages up to `light` are too light whatever they send.
            let (mut light, mut beyond) = (0, 0);
            let sending = problem.dearest_sending(stage);
            for start in lowest..=highest {
                let (first, last) = self.allowed(stage, start);
                beyond = beyond.max(first);
                while beyond <= last && self.has_room(stage, start, beyond, window) {
                    beyond += 1;
                }
                light = light.max(first.max(start + 1));
                while light < beyond && problem.work_cost(stage, start, light) + sending < window.minimum {
                    light += 1;
                }
                let mut best = NEVER;
                let empty = (first == start && start < beyond).then_some(start);
                let filled = std::iter::successors(Some(open[light.min(n_places)]), |&end| {
                    (end < n_places).then(|| open[end + 1])
                });
                for end in empty.into_iter().chain(filled.take_while(|&end| end < beyond)) {
                    let rest = self.entry(stage + 1, end);
                    let n_empty = rest.saturating_add(u32::from(start == end));
                    if n_empty < best && self.accepts(stage, start, end, window) {
                        best = n_empty;
                        if best == 0 {
                            break;
                        }
                    }
                }
                self.empties[stage * n_places + start] = best;
            }
        }
    }
}
