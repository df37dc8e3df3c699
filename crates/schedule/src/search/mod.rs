//! Search for a plan: dispatch rules with many parameters and regular rows as seeds; the best are refined.

use std::ops::ControlFlow;

mod dispatch;
mod model;
mod problem;
mod refine;
mod rounds;
mod rules;
mod seeds;

use dispatch::{Rows, Rule, dispatch};
use model::Model;
pub use model::StageModel;
pub use problem::{Effort, Found, Problem, find_plan};
pub(crate) use problem::{Goal, find};
use refine::Rework;
use rules::{N_PLAIN, Numbers, plain, random, vary};

/// The best rows that `effort` finds; nothing when no rule and no seed gets to the end.
fn search(model: &Model, effort: Effort) -> Option<Rows> {
    let n_rules = effort.n_rules(model);
    let mut numbers = Numbers(1);
    let mut found: Vec<(Rule, Rows)> = Vec::new();
    for chain in 0..=N_CHAINS {
        // The last climb goes on from the best of the others, with as many trials as all of them.
        let start = found.first().filter(|_| chain == N_CHAINS).cloned();
        let n = match chain {
            0 => (n_rules / 2 / N_CHAINS).max(1),
            N_CHAINS => n_rules / 2,
            _ => n_rules / 2 / N_CHAINS,
        };
        found.extend(climb(model, chain, n, start, &mut numbers));
        found.sort_by(|a, b| a.1.cost_s.total_cmp(&b.1.cost_s));
        if found.first().is_some_and(|(_, rows)| model.is_at_bound(rows.cost_s)) {
            break;
        }
    }
    let mut starts: Vec<Rows> = found.into_iter().map(|(_, rows)| rows).take(N_CLIMBED).collect();
    if starts.first().is_some_and(|rows| model.is_at_bound(rows.cost_s)) {
        return starts.into_iter().next();
    }
    let mut work = Rework::new(model);
    let mut seeded: Vec<Rows> = Vec::new();
    seeds::seeds(model, &mut work, |rows| {
        let is_best = model.is_at_bound(rows.cost_s);
        seeded.push(rows);
        seeded.sort_by(|a, b| a.cost_s.total_cmp(&b.cost_s));
        seeded.truncate(N_SEEDS);
        if is_best { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if seeded.first().is_some_and(|rows| model.is_at_bound(rows.cost_s)) {
        return seeded.into_iter().next();
    }
    starts.extend(seeded);
    let n_moves = effort.n_moves(model);
    let mut best: Option<Rows> = None;
    for rows in starts {
        let rows = refine::refine(&mut work, rows, n_moves, &mut numbers);
        if best.as_ref().is_none_or(|best| rows.cost_s < best.cost_s) {
            best = Some(rows);
        }
        if best.as_ref().is_some_and(|best| model.is_at_bound(best.cost_s)) {
            return best;
        }
    }
    best.map(|rows| refine::refine(&mut work, rows, N_LAST * n_moves, &mut numbers))
}

/// How many times as long as the others the best rows are refined in the end.
const N_LAST: usize = 3;

/// One climb: rules at first plain or random, or those near `start`; then near the best one.
fn climb(
    model: &Model,
    chain: usize,
    n_trials: usize,
    start: Option<(Rule, Rows)>,
    numbers: &mut Numbers,
) -> Option<(Rule, Rows)> {
    let n_apart = if start.is_some() { 0 } else { n_trials / 3 };
    let mut best = start;
    for trial in 0..n_trials {
        let best_s = best.as_ref().map_or(f64::INFINITY, |(_, rows)| rows.cost_s);
        if model.is_at_bound(best_s) {
            break;
        }
        let rule = match &best {
            _ if chain == 0 && trial < N_PLAIN => plain(model, trial),
            Some((rule, _)) if trial >= n_apart && trial % 4 != 0 => vary(model, rule, numbers),
            _ => random(model, numbers),
        };
        if let Some(rows) = dispatch(model, &rule, best_s) {
            best = Some((rule, rows));
        }
    }
    best
}

/// How many climbs start anew.
const N_CHAINS: usize = 4;

/// How many results of climbs, and how many seeds, are refined.
const N_CLIMBED: usize = 2;
const N_SEEDS: usize = 4;
