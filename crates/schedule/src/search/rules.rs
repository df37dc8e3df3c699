//! The parameters that dispatch rules are tried with: plain ones, random ones, and neighbours of good ones.

use super::dispatch::Rule;
use super::model::Model;

/// A small generator of numbers (SplitMix64): the same search gives the same plan everywhere.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to 1.
    pub(super) fn unit(&mut self) -> f64 {
        let bits = u32::try_from(self.next() >> 32).unwrap_or(0);
        f64::from(bits) / 4_294_967_296.0
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or(0) % n.max(1)
    }
}

/// How many rules are tried before chance comes in.
pub(super) const N_PLAIN: usize = 48;

/// The mean time of a step: the scale of all biases.
pub(super) fn scale(model: &Model) -> f64 {
    let sum: f64 = model.stages.iter().map(|s| s.forward_s + s.input_grad_s + s.weight_grad_s).sum();
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "stages are far below 2^53")]
    let n_steps = 3.0 * model.n_stages as f64;
    sum / n_steps
}

fn rule(model: &Model, forward: f64, later: f64, weight_grad: f64, urgent: f64) -> Rule {
    let scale = scale(model);
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "stages of a rank are few")]
    let locals = || (0..model.n_virtual).map(|local| local as f64);
    Rule {
        forward: locals().map(|local| scale * (forward + later * local)).collect(),
        input_grad: locals().map(|local| scale * 0.01 * local).collect(),
        weight_grad: scale * weight_grad,
        weight_grad_urgent: scale * urgent,
        repeat: 0.0,
        foresight_s: scale,
        most_ahead: vec![usize::MAX; model.n_ranks],
        last_first: false,
    }
}

/// The rules that are tried first.
pub(super) fn plain(model: &Model, trial: usize) -> Rule {
    let forward = [0.02, 0.5, -0.5, 1.0][trial % 4];
    let weight_grad = [0.03, 0.5, 0.98, 1.5][trial / 4 % 4];
    let later = [-0.01, 0.3, -1.0][trial / 16 % 3];
    rule(model, forward, later, weight_grad, 0.01)
}

pub(super) fn random(model: &Model, numbers: &mut Numbers) -> Rule {
    let mut range = |low: f64, high: f64| low + (high - low) * numbers.unit();
    let mut rule = rule(model, range(-1.5, 1.5), range(-1.5, 1.5), range(0.0, 1.6), range(-1.0, 1.0));
    let scale = scale(model);
    for bias in &mut rule.input_grad {
        *bias = scale * range(-0.5, 0.5);
    }
    rule.last_first = numbers.below(2) == 0;
    if numbers.below(2) == 0 {
        rule.repeat = scale * 2.0 * numbers.unit();
    }
    rule.foresight_s = scale * [0.0, 0.5, 1.1, 2.2][numbers.below(4)];
    if numbers.below(2) == 0 {
        rule.most_ahead = most_ahead(model, numbers);
    }
    rule
}

/// Limits that fall or rise from rank to rank.
fn most_ahead(model: &Model, numbers: &mut Numbers) -> Vec<usize> {
    let top = 1 + numbers.below((2 * model.n_ranks + 1).min(model.n_micro_batches + 1));
    let slope = numbers.below(3);
    (0..model.n_ranks).map(|rank| top.saturating_sub(rank * slope / 2).max(1)).collect()
}

/// A rule near a good one.
pub(super) fn vary(model: &Model, rule: &Rule, numbers: &mut Numbers) -> Rule {
    let mut rule = rule.clone();
    let scale = scale(model);
    let step = scale * [0.02, 0.1, 0.4, 1.0][numbers.below(4)];
    for _ in 0..1 + numbers.below(2) {
        let change = step * (2.0 * numbers.unit() - 1.0);
        match numbers.below(7) {
            0 => {
                let at = numbers.below(model.n_virtual);
                rule.forward[at] += change;
            }
            1 => {
                let at = numbers.below(model.n_virtual);
                rule.input_grad[at] += change;
            }
            2 => rule.weight_grad += change,
            3 => rule.weight_grad_urgent += change,
            4 => rule.repeat += change,
            5 => rule.last_first = !rule.last_first,
            _ => {
                let at = numbers.below(model.n_ranks);
                let most = rule.most_ahead[at].min(model.n_micro_batches);
                rule.most_ahead[at] = if numbers.below(2) == 0 { most + 1 } else { most.max(2) - 1 };
            }
        }
    }
    rule
}
