//! The search when ranks hold several stages: it balances the sums over each rank's stages.

use crate::problem::Problem;
use crate::{Cuts, PartitionError};

/// How many steps one attempt at a maximum may take. Every instance that is small enough to be checked
/// by hand is settled in far fewer.
const MAX_STEPS: u64 = 50_000;

/// Tells how an attempt ended.
enum Outcome {
    Found(Vec<usize>),
    /// There are no such cuts.
    Impossible,
    /// The steps ran out.
    GaveUp,
}

/// One attempt to find cuts whose ranks cost at most `maximum` each.
///
/// It places stage after stage, tries first the end at which the rank has its proportionate share, and
/// turns back when a rank is over the maximum or its memory, or when the room that is left on the ranks
/// with stages to come is less than the work that is left.
struct Attempt<'a> {
    problem: &'a Problem,
    maximum: u128,
    /// How many more stages may stay empty.
    empty_left: usize,
    steps_left: u64,
    places: Vec<usize>,
    costs: Vec<u128>,
    bytes: Vec<u128>,
    /// How many stages each rank still gets.
    to_come: Vec<u32>,
    /// How many stages each rank gets in all.
    in_all: Vec<u32>,
}

/// Returns cuts whose heaviest rank is as light as the search can make it: the lightest possible unless
/// an attempt ran out of steps.
pub(crate) fn solve(problem: &Problem) -> Result<Cuts, PartitionError> {
    let n_empty = fewest_empty(problem)?;
    let mut low = lower_bound(problem);
    let mut step = (low / 64).max(1);
    let mut tried = low;
    // Widen until cuts are found: with room to spare they are found at once.
    let (mut best, mut high) = loop {
        match Attempt::new(problem, tried, n_empty).run() {
            Outcome::Found(places) => {
                let heaviest = heaviest(problem, &places);
                break (places, heaviest);
            }
            Outcome::Impossible if tried == u128::MAX => return Err(problem.infeasible()),
            Outcome::Impossible => low = tried + 1,
            Outcome::GaveUp if tried == u128::MAX => return Err(PartitionError::SearchTooLong),
            Outcome::GaveUp => {}
        }
        // Beyond the cost of everything on one rank no maximum is a condition any more.
        tried = if step > unlimited(problem) { u128::MAX } else { tried.saturating_add(step) };
        step = step.saturating_mul(2);
    };
    // An attempt that gave up is taken for a failure: what is kept is always the best that was found.
    // From then on the last tenth of a per cent is not looked for.
    let mut exact = true;
    while low < high && (exact || high - low > high >> 10) {
        let middle = low + (high - low) / 2;
        match Attempt::new(problem, middle, n_empty).run() {
            Outcome::Found(places) => {
                high = heaviest(problem, &places);
                best = places;
            }
            Outcome::Impossible => low = middle + 1,
            Outcome::GaveUp => (low, exact) = (middle + 1, false),
        }
    }
    problem.cuts(&best)
}

/// Returns the least number of empty stages that the search can do with.
fn fewest_empty(problem: &Problem) -> Result<usize, PartitionError> {
    if !problem.allow_empty {
        return Ok(0);
    }
    let mut error = problem.infeasible();
    for n_empty in (problem.n_stages() + 1).saturating_sub(problem.n_places())..=problem.n_stages() {
        match Attempt::new(problem, u128::MAX, n_empty).run() {
            Outcome::Found(_) => return Ok(n_empty),
            Outcome::GaveUp => error = PartitionError::SearchTooLong,
            Outcome::Impossible => {}
        }
    }
    Err(error)
}

/// Returns a cost that no rank can be below in any cuts: the mean, or the dearest layer where it is
/// cheapest.
pub(crate) fn lower_bound(problem: &Problem) -> u128 {
    let rates = || problem.stages.iter().map(|rule| rule.rate);
    let cheapest = rates().min().unwrap_or(1);
    let total = problem.work.last().copied().unwrap_or(0);
    let mut ranks: Vec<usize> = problem.stages.iter().map(|rule| rule.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let n_ranks = u128::try_from(ranks.len()).unwrap_or(u128::MAX).max(1);
    let largest = problem.work.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    cheapest * total.div_ceil(n_ranks).max(largest)
}

fn unlimited(problem: &Problem) -> u128 {
    let dearest = problem.stages.iter().map(|rule| rule.rate).max().unwrap_or(1);
    let cuts = problem.cut.iter().fold(0_u128, |sum, &cut| sum.saturating_add(cut));
    dearest.saturating_mul(problem.work.last().copied().unwrap_or(0).saturating_add(cuts.saturating_mul(2)))
}

/// Returns the cost of each rank.
pub(crate) fn rank_costs(problem: &Problem, places: &[usize]) -> Vec<u128> {
    let mut costs = vec![0_u128; problem.n_ranks];
    for (stage, ends) in places.windows(2).enumerate() {
        let cost = &mut costs[problem.stages[stage].rank];
        *cost = cost.saturating_add(problem.cost(stage, ends[0], ends[1]));
    }
    costs
}

fn heaviest(problem: &Problem, places: &[usize]) -> u128 {
    rank_costs(problem, places).into_iter().max().unwrap_or(0)
}

impl<'a> Attempt<'a> {
    fn new(problem: &'a Problem, maximum: u128, n_empty: usize) -> Self {
        let mut to_come = vec![0; problem.n_ranks];
        for rule in &problem.stages {
            to_come[rule.rank] += 1;
        }
        Self {
            problem,
            maximum,
            empty_left: n_empty,
            steps_left: MAX_STEPS,
            places: vec![0],
            costs: vec![0; problem.n_ranks],
            bytes: vec![0; problem.n_ranks],
            in_all: to_come.clone(),
            to_come,
        }
    }

    fn run(mut self) -> Outcome {
        // A frame for each stage: the ends still to try, best last, and the rank's state before it.
        let mut frames: Vec<(Vec<usize>, u128, u128)> = vec![self.open()];
        while let Some((ends, cost, bytes)) = frames.last_mut() {
            let stage = self.places.len() - 1;
            let rank = self.problem.stages[stage].rank;
            (self.costs[rank], self.bytes[rank]) = (*cost, *bytes);
            let Some(end) = ends.pop() else {
                frames.pop();
                let end = self.places.pop();
                if let Some(before) = stage.checked_sub(1) {
                    self.to_come[self.problem.stages[before].rank] += 1;
                    self.empty_left += usize::from(end == self.places.last().copied());
                }
                continue;
            };
            if self.steps_left == 0 {
                return Outcome::GaveUp;
            }
            self.steps_left -= 1;
            let start = self.places[stage];
            self.costs[rank] = cost.saturating_add(self.problem.cost(stage, start, end));
            self.bytes[rank] = bytes.saturating_add(self.problem.bytes(stage, start, end));
            self.to_come[rank] -= 1;
            if !self.can_go_on(end) {
                self.to_come[rank] += 1;
                continue;
            }
            self.empty_left -= usize::from(end == start);
            self.places.push(end);
            if stage + 1 == self.problem.n_stages() {
                return Outcome::Found(self.places);
            }
            frames.push(self.open());
        }
        Outcome::Impossible
    }

    /// Returns the ends of the next stage, best last, and the state of its rank.
    fn open(&self) -> (Vec<usize>, u128, u128) {
        let stage = self.places.len() - 1;
        let start = self.places[stage];
        let rule = &self.problem.stages[stage];
        let (cost, bytes) = (self.costs[rule.rank], self.bytes[rule.rank]);
        let (lowest, highest) = self.problem.bounds[stage + 1];
        let first = lowest.max(start + usize::from(self.empty_left == 0));
        // Each stage to come that is not to be empty needs a place of its own.
        let to_come = self.problem.n_stages() - stage - 1;
        let last_place = self.problem.n_places() - 1;
        let leaves_enough =
            |end: usize| to_come <= last_place - end + self.empty_left - usize::from(end == start);
        let fits = |&end: &usize| {
            cost.saturating_add(self.problem.work_cost(stage, start, end)) <= self.maximum
                && rule
                    .limit
                    .is_none_or(|limit| bytes.saturating_add(self.problem.bytes(stage, start, end)) <= limit)
        };
        let total = |end: usize| cost.saturating_add(self.problem.cost(stage, start, end));
        let mut ends: Vec<usize> = (first..=highest).take_while(fits).collect();
        ends.retain(|&end| total(end) <= self.maximum && leaves_enough(end));
        let in_all = self.in_all[rule.rank];
        let done = in_all - self.to_come[rule.rank] + 1;
        let goal = self.maximum / u128::from(in_all) * u128::from(done);
        // Ends that take the rank nearest to its share come last, empty stages first.
        ends.sort_by_key(|&end| (end > start, std::cmp::Reverse(total(end).abs_diff(goal)), end));
        (ends, cost, bytes)
    }

    /// Tells whether the work from a place on can still fit.
    fn can_go_on(&self, place: usize) -> bool {
        let work = self.problem.work.last().copied().unwrap_or(0) - self.problem.work[place];
        let cheapest = self.problem.stages.iter().map(|rule| rule.rate).min().unwrap_or(1);
        let mut room = 0_u128;
        for (rank, &to_come) in self.to_come.iter().enumerate() {
            if to_come > 0 {
                room = room.saturating_add(self.maximum - self.costs[rank].min(self.maximum));
            }
        }
        room >= work.saturating_mul(cheapest)
    }
}
