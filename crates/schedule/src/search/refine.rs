//! Refinement: small moves on the rows that a dispatch rule found.

use super::dispatch::Rows;
use super::model::{Kind, Model, Step};
use super::rules::Numbers;

/// No predecessor on another row or stage.
const NONE: usize = usize::MAX;

/// Rows of numbered steps, with what each needs from elsewhere. Made once for a problem: most of it does not hang on
/// the rows.
pub(crate) struct Rework<'a> {
    model: &'a Model,
    steps: Vec<Step>,
    time_s: Vec<f64>,
    rank_of: Vec<usize>,
    /// The step whose result this one needs, and how long that takes to arrive.
    needs: Vec<usize>,
    hop_s: Vec<f64>,
    /// The step that needs this one's result, beside the same rank's weight gradient.
    feeds: Vec<usize>,
    rows: Vec<Vec<usize>>,
    end_s: Vec<f64>,
    next: Vec<usize>,
    ready: Vec<usize>,
}

/// Tries `n_moves` small moves on `rows` and returns the best rows seen.
pub(crate) fn refine(work: &mut Rework<'_>, rows: Rows, n_moves: usize, numbers: &mut Numbers) -> Rows {
    let model = work.model;
    if n_moves == 0 || model.is_at_bound(rows.cost_s) {
        return rows;
    }
    let Some(mut current_s) = work.cost_s(&rows.rows) else { return rows };
    let (mut best_s, mut best_rows) = (current_s, work.rows.clone());
    let mut path = work.critical_path();
    let scale = super::rules::scale(model);
    for tried in 0..n_moves {
        let Some((rank, from, to)) = work.pick(&path, numbers) else { continue };
        shift(&mut work.rows[rank], from, to);
        let accepted = work.allowed(rank, from.min(to), from.max(to)).then(|| work.replay()).flatten();
        // Small losses pass at first, so that the search gets out of dead ends.
        let patience = if tried * 4 < n_moves * 3 { 0.25 * scale * numbers.unit() } else { 0.0 };
        let patience = if numbers.below(8) == 0 { patience } else { 0.0 };
        match accepted.filter(|&new_s| new_s <= current_s + patience) {
            Some(new_s) => {
                current_s = new_s;
                path = work.critical_path();
                if new_s < best_s * (1.0 - 1e-12) {
                    best_s = new_s;
                    best_rows.clone_from(&work.rows);
                    if model.is_at_bound(best_s) {
                        break;
                    }
                }
            }
            None => shift(&mut work.rows[rank], to, from),
        }
    }
    let row = |row: &Vec<usize>| row.iter().map(|&id| work.steps[id]).collect();
    Rows { rows: best_rows.iter().map(row).collect(), cost_s: best_s }
}

/// Moves the entry at `from` to `to`; the entries between move over.
fn shift(row: &mut [usize], from: usize, to: usize) {
    if from < to {
        row[from..=to].rotate_left(1);
    } else {
        row[to..=from].rotate_right(1);
    }
}

impl<'a> Rework<'a> {
    pub(crate) fn new(model: &'a Model) -> Self {
        let n_visits = model.n_visits();
        let mut steps = Vec::with_capacity(3 * n_visits);
        for kind in [Kind::Forward, Kind::InputGrad, Kind::WeightGrad] {
            for stage in 0..model.n_stages {
                steps.extend((0..model.n_of(stage)).map(|micro_batch| Step { kind, stage, micro_batch }));
            }
        }
        let n = steps.len();
        let (mut needs, mut feeds, mut hop_s) = (vec![NONE; n], vec![NONE; n], vec![0.0; n]);
        for (id, step) in steps.iter().enumerate() {
            let Step { stage, micro_batch, .. } = *step;
            let (need, from) = match (step.kind, model.previous(stage), model.next(stage)) {
                (Kind::Forward, Some(previous), _) => (model.visit(previous, micro_batch), previous),
                (Kind::Forward, None, _) => (NONE, stage),
                (Kind::InputGrad, _, Some(next)) => (n_visits + model.visit(next, micro_batch), next),
                (Kind::InputGrad | Kind::WeightGrad, ..) => (id - n_visits, stage),
            };
            needs[id] = need;
            if need != NONE {
                hop_s[id] = model.hop_s(from, stage);
                // A weight gradient stands on the row of what it needs: it never waits for another rank.
                if step.kind != Kind::WeightGrad {
                    feeds[need] = id;
                }
            }
        }
        let time_s = steps
            .iter()
            .map(|step| {
                let stage = &model.stages[step.stage];
                match step.kind {
                    Kind::Forward => stage.forward_s,
                    Kind::InputGrad => stage.input_grad_s,
                    Kind::WeightGrad => stage.weight_grad_s,
                }
            })
            .collect();
        Self {
            model,
            time_s,
            rank_of: steps.iter().map(|step| model.rank_of[step.stage]).collect(),
            steps,
            needs,
            hop_s,
            feeds,
            rows: vec![Vec::new(); model.n_ranks],
            end_s: vec![f64::NAN; n],
            next: vec![0; model.n_ranks],
            ready: Vec::with_capacity(model.n_ranks),
        }
    }

    /// Takes rows and runs them; what they cost, or nothing when they wait for each other for ever.
    pub(crate) fn cost_s(&mut self, rows: &[Vec<Step>]) -> Option<f64> {
        let (model, n_visits) = (self.model, self.model.n_visits());
        let number = |step: &Step| {
            let kind = match step.kind {
                Kind::Forward => 0,
                Kind::InputGrad => 1,
                Kind::WeightGrad => 2,
            };
            kind * n_visits + model.visit(step.stage, step.micro_batch)
        };
        for (numbered, row) in self.rows.iter_mut().zip(rows) {
            numbered.clear();
            numbered.extend(row.iter().map(number));
        }
        self.replay()
    }

    /// Rows with what they cost; nothing when they wait for each other for ever.
    pub(crate) fn timed(&mut self, rows: Vec<Vec<Step>>) -> Option<Rows> {
        let cost_s = self.cost_s(&rows)?;
        Some(Rows { rows, cost_s })
    }

    /// Runs the rows; what they cost, or nothing when they wait for each other for ever.
    fn replay(&mut self) -> Option<f64> {
        self.end_s.fill(f64::NAN);
        self.next.fill(0);
        self.ready.clear();
        self.ready.extend(0..self.model.n_ranks);
        let mut n_done = 0;
        while let Some(rank) = self.ready.pop() {
            let row = &self.rows[rank];
            let mut at = self.next[rank];
            let mut now_s = at.checked_sub(1).map_or(0.0, |last| self.end_s[row[last]]);
            while let Some(&id) = row.get(at) {
                let need = self.needs[id];
                if need != NONE {
                    let there_s = self.end_s[need] + self.hop_s[id];
                    if there_s.is_nan() {
                        break;
                    }
                    now_s = now_s.max(there_s);
                }
                now_s += self.time_s[id];
                self.end_s[id] = now_s;
                at += 1;
                let feed = self.feeds[id];
                if feed != NONE {
                    let other = self.rank_of[feed];
                    if other != rank && self.rows[other].get(self.next[other]) == Some(&feed) {
                        self.ready.push(other);
                    }
                }
            }
            n_done += at - self.next[rank];
            self.next[rank] = at;
        }
        let span = |row: &Vec<usize>| match (row.first(), row.last()) {
            (Some(&first), Some(&last)) => (self.end_s[first] - self.time_s[first], self.end_s[last]),
            _ => (0.0, 0.0),
        };
        (n_done == self.steps.len()).then(|| self.model.cost_s(self.rows.iter().map(span)))
    }

    /// The steps, as rank and position, that the makespan hangs on: each ends when the next one starts.
    fn critical_path(&self) -> Vec<(usize, usize)> {
        let mut position = vec![0; self.steps.len()];
        for row in &self.rows {
            for (at, &id) in row.iter().enumerate() {
                position[id] = at;
            }
        }
        let last = self.rows.iter().filter_map(|row| row.last().copied());
        let mut id = last.max_by(|&a, &b| self.end_s[a].total_cmp(&self.end_s[b]));
        let mut path = Vec::new();
        while let Some(at) = id {
            let rank = self.rank_of[at];
            path.push((rank, position[at]));
            let start_s = self.end_s[at] - self.time_s[at];
            let before = position[at].checked_sub(1).map(|before| self.rows[rank][before]);
            let need = Some(self.needs[at]).filter(|&need| need != NONE);
            let slack_s = |id: usize, hop_s: f64| start_s - self.end_s[id] - hop_s;
            id = match (before, need) {
                (Some(before), Some(need)) => {
                    Some(if slack_s(before, 0.0) <= slack_s(need, self.hop_s[at]) { before } else { need })
                }
                (before, need) => before.or(need),
            };
        }
        path
    }

    /// A move near the critical path: rank, position from, position to.
    fn pick(&self, path: &[(usize, usize)], numbers: &mut Numbers) -> Option<(usize, usize, usize)> {
        let (rank, at) = *path.get(numbers.below(path.len()))?;
        let length = self.rows[rank].len();
        let most = if numbers.below(3) == 0 { 12 } else { 3 };
        let reach = 1 + numbers.below(most);
        let (from, to) = match numbers.below(3) {
            0 => (at, at.checked_sub(reach)?),
            1 => (at.checked_sub(reach)?, at),
            _ => (at, at + reach),
        };
        (to < length && from != to).then_some((rank, from, to))
    }

    /// Whether a row keeps order and memory after a move within `low..=high`.
    fn allowed(&self, rank: usize, low: usize, high: usize) -> bool {
        let row = &self.rows[rank];
        let n_visits = self.model.n_visits();
        // Within the moved range, a step must not come before one that it needs on this rank: the same stage's
        // earlier micro-batch of the same kind, its own earlier kinds, or a local neighbour stage.
        for (offset, &id) in row[low..=high].iter().enumerate() {
            let later = &row[low + offset + 1..=high];
            let step = self.steps[id];
            let before = (step.micro_batch > 0).then(|| id - 1);
            let own = (id >= n_visits).then(|| id - n_visits);
            let forward = (id >= 2 * n_visits).then(|| id - 2 * n_visits);
            let need = Some(self.needs[id]);
            if later.iter().any(|&other| [before, own, forward, need].contains(&Some(other))) {
                return false;
            }
        }
        let limit = self.model.limit[rank];
        let mut memory = 0;
        for &id in row.iter().take(high + 1) {
            let stage = &self.model.stages[self.steps[id].stage];
            match self.steps[id].kind {
                Kind::Forward => memory += stage.activation,
                Kind::InputGrad => memory -= stage.activation - stage.weight_grad,
                Kind::WeightGrad => memory -= stage.weight_grad,
            }
            if memory > limit {
                return false;
            }
        }
        true
    }
}
