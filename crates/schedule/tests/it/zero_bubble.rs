//! Plans of the zero-bubble kind against those of the sail-sg implementation, at the same memory limit.

use std::cmp::Ordering;

use brigade_schedule::{
    Action, Capacity, CheckedPlan, Compute, Costs, Effort, LinkCosts, MicroBatch, Placement, Plan, Problem,
    ScheduleError, Shape, Stage, StageCosts, StageModel, Timeline, check_plan, find_plan, replay,
    seq_one_f_one_b,
};
use serde_json::Value;

use crate::golden::{Golden, list, number, text};

fn real(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("expected a number, found {value}"))
}

fn whole(value: &Value) -> u64 {
    let value = real(value).abs();
    (0..1 << 20).find(|&n: &u32| f64::from(n) >= value).map_or(u64::MAX, u64::from)
}

/// One case: the problem, and the order that the reference found for it, if it found one.
struct Case {
    placement: Placement,
    n_micro_batches: u32,
    stages: Vec<StageModel>,
    latency_s: f64,
    reference: Option<Plan>,
}

impl Case {
    fn new(case: &Value, placement: Placement) -> Self {
        let per_stage = |key: &str, stage: u32| match case["per_stage"][key].get(stage.to_string()) {
            Some(value) => real(value),
            None => match case["per_stage"][key].as_array() {
                Some(values) => real(&values[Stage(stage).index()]),
                None => real(&case[key]),
            },
        };
        // Lists without memory count an activation as one until its weight gradient is done.
        let memory = |key: &str| if case[key].is_null() { 1 } else { whole(&case[key]) };
        let stage = |stage| StageModel {
            forward_s: per_stage("f", stage),
            input_grad_s: per_stage("b", stage),
            weight_grad_s: per_stage("w", stage),
            activation: memory("mem_f"),
            weight_grad: memory("mem_w"),
        };
        let n_micro_batches = number(&case["microbatches"]);
        Self {
            placement,
            n_micro_batches,
            stages: (0..placement.n_stages()).map(stage).collect(),
            latency_s: real(&case["comm"]),
            reference: case["order"].is_array().then(|| reference(case, placement)),
        }
    }

    /// Runs a plan at the case's costs.
    fn run(&self, plan: &Plan) -> (CheckedPlan, Timeline) {
        let checked = check_plan(plan, Capacity(8 * self.n_micro_batches)).expect("a sound plan");
        let stage = |model: &StageModel| StageCosts {
            forward_s: model.forward_s,
            input_grad_s: model.input_grad_s,
            weight_grad_s: model.weight_grad_s,
            activation_bytes: model.activation,
            weight_grad_bytes: model.weight_grad,
            ..StageCosts::default()
        };
        let link = LinkCosts { latency_s: self.latency_s, bytes_per_s: None };
        let costs = Costs { stages: self.stages.iter().map(stage).collect(), link, ..Costs::default() };
        let timeline = replay(&checked, &costs).expect("costs fit");
        (checked, timeline)
    }

    fn find(&self, limit: u64) -> Result<Plan, ScheduleError> {
        let problem = Problem {
            placement: self.placement,
            n_micro_batches: self.n_micro_batches,
            stages: self.stages.clone(),
            latency_s: self.latency_s,
            memory_limits: self.placement.ranks().take(self.n_ranks()).map(|_| limit).collect(),
        };
        let found = find_plan(&problem, Effort::THOROUGH)?;
        let (_, timeline) = self.run(&found.plan);
        assert!((timeline.makespan_s() - found.makespan_s).abs() <= 1e-9 * found.makespan_s);
        assert!(timeline.makespan_s() >= found.lower_bound_s * (1.0 - 1e-9));
        assert!(peak(&timeline) <= limit, "{} units of memory, above {limit}", peak(&timeline));
        Ok(found.plan)
    }

    fn n_ranks(&self) -> usize {
        usize::try_from(self.placement.n_ranks()).expect("a small number")
    }

    /// The reference may go above its own limit; then both have what it takes. Returns the two makespans.
    fn compare(&self, limit: Option<u64>) -> (f64, f64) {
        let reference = self.reference.as_ref().expect("an order");
        let (_, theirs) = self.run(reference);
        let limit = limit.unwrap_or(0).max(peak(&theirs));
        let (_, ours) = self.run(&self.find(limit).expect("a plan"));
        (ours.makespan_s(), theirs.makespan_s())
    }
}

fn peak(timeline: &Timeline) -> u64 {
    timeline.ranks().iter().map(|rank| rank.peak_bytes).max().unwrap_or(0)
}

/// The order of the reference as a plan. Its B is the input gradient; its chunk 1 is the later stage of a rank.
fn reference(case: &Value, placement: Placement) -> Plan {
    let n_ranks = placement.n_ranks();
    let rows = (0..).zip(list(&case["order"])).map(|(rank, row)| {
        let compute = |step: &str| {
            let (kind, visit) = step.split_at(1);
            let (micro_batch, chunk) = visit.split_once('.').unwrap_or((visit, "0"));
            let micro_batch = MicroBatch(micro_batch.parse().expect("a micro-batch"));
            let stage = Stage(if chunk == "0" { rank } else { 2 * n_ranks - 1 - rank });
            Action::from(match kind {
                "F" => Compute::forward(stage, micro_batch),
                "B" => Compute::input_grad(stage, micro_batch),
                "W" => Compute::weight_grad(stage, micro_batch),
                other => panic!("unknown step {other}"),
            })
        };
        text(row).split(' ').map(compute).collect()
    });
    Plan::new(placement, number(&case["microbatches"]), rows.collect()).expect("a plan")
}

/// No more than a rounding error.
const EXACT: f64 = 1e-12;

/// Runs all cases of a list and fails with all that are worse.
fn never_worse(list: &str, placement: fn(u32) -> Placement, limit: fn(&Value) -> Option<u64>) {
    let mut worse = Vec::new();
    let (mut n_earlier, mut n_equal, mut n_later) = (0, 0, 0);
    for value in Golden::open("zb.json").cases(list) {
        let case = Case::new(value, placement(number(&value["stages"])));
        if case.reference.is_none() {
            // The reference gave up; ours finds a plan, or says that one micro-batch does not fit.
            let found = case.find(limit(value).unwrap_or(u64::MAX >> 1));
            assert!(matches!(found, Ok(_) | Err(ScheduleError::TooLittleMemory { .. })), "{value}");
            continue;
        }
        let (ours, theirs) = case.compare(limit(value));
        if let Some(makespan) = value["sim"]["makespan"].as_f64() {
            assert!((theirs - makespan).abs() <= 1e-9 * makespan, "replay of {value} gives {theirs}");
        }
        match ours.total_cmp(&theirs) {
            _ if (ours - theirs).abs() <= EXACT * theirs => n_equal += 1,
            Ordering::Less => n_earlier += 1,
            _ => n_later += 1,
        }
        if ours > theirs * (1.0 + EXACT) {
            let keys =
                ["stages", "microbatches", "f", "b", "w", "comm", "mem_limit", "mem_config", "max_mem"];
            let what: Vec<String> = keys.iter().map(|key| format!("{key} {}", value[*key])).collect();
            worse.push(format!("{}: {ours} above {theirs}", what.join(" ")));
        }
    }
    report(list, [n_earlier, n_equal, n_later]);
    assert!(worse.is_empty(), "{list}: {} worse\n{}", worse.len(), worse.join("\n"));
}

#[expect(clippy::print_stdout, reason = "a golden test says how many cases it ran")]
fn report(list: &str, [n_earlier, n_equal, n_later]: [u32; 3]) {
    println!(
        "zb.json {list}: ours ends earlier in {n_earlier} cases, at the same time in {n_equal}, later in {n_later}"
    );
}

fn linear(n_ranks: u32) -> Placement {
    Placement::linear(n_ranks).expect("ranks")
}

fn v(n_ranks: u32) -> Placement {
    Placement::v(n_ranks).expect("ranks")
}

/// Without a limit the memory is that of all micro-batches.
#[test]
fn linear_plans() {
    never_worse("zb", linear, |case| {
        let all = whole(&case["mem_f"]) * u64::from(number(&case["microbatches"]));
        Some(case["mem_limit"].as_f64().map_or(all, |_| whole(&case["mem_limit"])))
    });
}

/// Without a limit the memory is that of 1F1B.
#[test]
fn v_plans() {
    never_worse("zbv", v, |case| {
        let one_f_one_b = 2 * whole(&case["mem_f"]) * u64::from(number(&case["stages"]));
        Some(case["mem_limit"].as_f64().map_or(one_f_one_b, |_| whole(&case["mem_limit"])))
    });
}

/// V-Half and V-Min have the memory that the reference takes.
#[test]
fn v_half_and_v_min_plans() {
    never_worse("zbv_greedy", v, |_| None);
}

/// The reference's longest search, under a limit of live activations.
#[test]
fn searched_v_plans() {
    never_worse("v_auto", v, |case| Some(whole(&case["max_mem"])));
}

/// Sequence-split 1F1B is the reference's order, piece by piece.
#[test]
fn sequence_split_orders_are_equal() {
    for case in Golden::open("zb.json").cases("seq_1f1b") {
        let n_pieces = number(&case["seq_splits"]);
        let shape =
            Shape { n_ranks: number(&case["stages"]), n_micro_batches: number(&case["microbatches"]) };
        let plan = seq_one_f_one_b(shape, n_pieces).expect("a plan");
        let rows = (0..).map(Stage).zip(list(&case["order"])).map(|(stage, row)| {
            let compute = |step: &str| {
                let at = step.find(|c: char| c.is_ascii_digit()).expect("a number");
                let (micro_batch, piece) = step[at..].split_once('-').expect("a piece");
                let number = |text: &str| text.parse::<u32>().expect("a number");
                let micro_batch = MicroBatch(number(micro_batch) * n_pieces + number(piece));
                Action::from(match &step[..at] {
                    "F" => Compute::forward(stage, micro_batch),
                    "BW" => Compute::backward(stage, micro_batch),
                    other => panic!("unknown step {other}"),
                })
            };
            text(row).split(' ').map(compute).collect::<Vec<_>>()
        });
        assert!(rows.eq(plan.rows().iter().cloned()), "{case}");
    }
}
