//! The plans and texts of `torch.distributed.pipelining`.

use brigade_schedule::{
    Action, Capacity, Compute, Costs, Plan, Schedule, ScheduleError, Shape, StageCosts, check_plan,
    least_capacity, lower, replay,
};
use serde_json::Value;

use crate::golden::{Golden, list, number, text};

fn shape(case: &Value) -> Shape {
    Shape { n_ranks: number(&case["pp"]), n_micro_batches: number(&case["microbatches"]) }
}

/// The computations of rows in which `|` separates cells; idle slots and reductions are no computations.
fn computes(rows: &Value) -> Vec<Vec<Compute>> {
    list(rows)
        .iter()
        .map(|row| {
            let cells = text(row).split('|').filter(|cell| !cell.is_empty());
            let actions = cells.map(|cell| cell.parse().unwrap_or_else(|error| panic!("{error}")));
            actions.flat_map(|action: Action| action.computes()).collect()
        })
        .collect()
}

fn ours(plan: &Plan) -> Vec<Vec<Compute>> {
    plan.rows().iter().map(|row| row.iter().flat_map(Action::computes).collect()).collect()
}

fn csv(rows: &Value) -> String {
    list(rows).iter().map(|row| text(row).replace('|', ",") + "\n").collect()
}

/// The 1F1B table of PyTorch 2.15 is off by one on its last rank, as its own validator says: what its 1F1B
/// really runs is in the list `executed`.
#[test]
fn orders_of_computation_are_equal() {
    let golden = Golden::open("torch_schedules.json");
    for case in golden.cases("executed") {
        let schedule = match text(&case["schedule"]) {
            "1F1B" => Schedule::OneFOneB,
            "GPipe" => Schedule::GPipe,
            _ => continue,
        };
        let plan = schedule.plan(shape(case)).expect("a plan");
        assert_eq!(ours(&plan), computes(&case["compute"]), "{case}");
    }
    for case in golden.cases("cases") {
        let n_virtual = number(&case["local"]);
        let schedule = match text(&case["schedule"]) {
            "GPipe" => Schedule::GPipe,
            "Interleaved1F1B" => Schedule::Interleaved { n_virtual },
            "LoopedBFS" => Schedule::LoopedBfs { n_virtual },
            "DualPipeV" => Schedule::DualPipeV,
            _ => continue,
        };
        let plan = schedule.plan(shape(case)).expect("a plan");
        assert_eq!(ours(&plan), computes(&case["ranks"]), "{case}");
    }
}

/// Where PyTorch refuses a number of micro-batches, ours either runs it, or refuses it too and says what
/// would work.
#[test]
fn refusals_say_what_would_work() {
    for case in Golden::open("torch_schedules.json").cases("errors") {
        let n_virtual = number(&case["local"]);
        let schedule = match text(&case["schedule"]) {
            "1F1B" => Schedule::OneFOneB,
            "Interleaved1F1B" => Schedule::Interleaved { n_virtual },
            "InterleavedZeroBubble" => Schedule::InterleavedZb { n_virtual },
            "ZBVZeroBubble" => Schedule::ZbV,
            "DualPipeV" => Schedule::DualPipeV,
            _ => continue,
        };
        match schedule.plan(shape(case)) {
            Ok(plan) => {
                let least = least_capacity(&lower(&plan).expect("instructions"));
                assert!(least.is_ok(), "{case}: {least:?}");
            }
            Err(ScheduleError::TooFewMicroBatches { n_needed, n_ranks, .. }) => {
                let again = Shape { n_ranks, n_micro_batches: n_needed };
                assert!(schedule.plan(again).is_ok(), "{case}");
            }
            Err(error) => panic!("{case}: {error}"),
        }
    }
}

/// Every table that PyTorch calls valid passes our checker, and is read and written without loss.
#[test]
fn tables_are_read_written_and_checked() {
    for case in Golden::open("torch_schedules.json").cases("cases") {
        let plan = Plan::from_csv(&csv(&case["ranks"])).unwrap_or_else(|error| panic!("{case}: {error}"));
        let without_idle = |row: &str| row.split(',').filter(|c| !c.is_empty()).collect::<Vec<_>>().join(",");
        let expected: String = csv(&case["ranks"]).lines().map(|row| without_idle(row) + "\n").collect();
        assert_eq!(plan.to_csv(), expected, "{case}");
        let valid = case["valid"].as_bool().expect("a flag");
        let n_micro_batches = number(&case["microbatches"]);
        if valid || text(&case["schedule"]) == "GPipe" {
            assert_eq!(plan.n_micro_batches(), n_micro_batches, "{case}");
            check_plan(&plan, Capacity(n_micro_batches * number(&case["local"]) * 2))
                .unwrap_or_else(|error| panic!("{case}: {error}"));
        } else {
            assert_eq!(text(&case["schedule"]), "1F1B", "{case}");
            assert!(check_plan(&plan, Capacity(1)).is_err(), "{case}");
        }
    }
}

/// PyTorch reads an idle slot from blanks, a pair without parts, and a computation without its micro-batch.
/// Ours takes an empty cell for an idle slot only where cells stand in rows, and refuses the other two.
#[test]
fn actions_are_read_as_pytorch_reads_them() {
    for case in Golden::open("torch_schedules.json").cases("parse") {
        let parsed = text(&case["text"]).parse::<Action>();
        let theirs = &case["ok"];
        let whole = !theirs["sub"].is_null() || theirs["stage"].as_i64().is_some_and(|stage| stage >= 0);
        let needs_micro_batch = !matches!(
            theirs["type"].as_str(),
            Some("UNSHARD" | "RESHARD" | "REDUCE_GRAD" | "WAIT_REDUCE_GRAD" | "OVERLAP_F_B")
        );
        if whole && !(needs_micro_batch && theirs["microbatch"].is_null()) {
            assert_eq!(parsed.expect("an action").to_string(), text(&theirs["repr"]), "{case}");
        } else {
            assert!(parsed.is_err(), "{case}");
        }
    }
}

/// The cases of PyTorch's own validator.
#[test]
fn the_checker_agrees_with_the_validator() {
    for case in Golden::open("torch_schedules.json").cases("validate") {
        let rows: Vec<String> = list(&case["order"])
            .iter()
            .map(|row| list(row).iter().map(text).collect::<Vec<_>>().join(","))
            .collect();
        let n_ranks = usize::try_from(number(&case["pp"])).expect("a small number");
        let plan = Plan::from_csv(&rows.join("\n")).ok().filter(|plan| plan.rows().len() == n_ranks);
        let checked = plan.is_some_and(|plan| check_plan(&plan, Capacity(1)).is_ok());
        assert_eq!(checked, !case["ok"].is_null(), "{case}");
    }
}

/// PyTorch's own placement of sends and receives passes the checker as it stands.
#[test]
fn lowered_plans_are_sound() {
    for case in Golden::open("torch_schedules.json").cases("lowered") {
        for pass in ["send_recv", "wait_send"] {
            let rows = case[pass].get("ok").unwrap_or(&case[pass]);
            if rows.is_null() {
                continue;
            }
            let plan = Plan::from_csv(&csv(rows)).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(plan.to_csv(), csv(rows), "{pass} of {case}");
            let capacity = Capacity(plan.n_micro_batches() * 4);
            check_plan(&plan, capacity).unwrap_or_else(|error| panic!("{pass} of {case}: {error}"));
        }
    }
}

/// Plans of the zero-bubble kind need not be PyTorch's, but they end no later and hold no more.
#[test]
fn zero_bubble_plans_are_never_worse() {
    let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..StageCosts::default() };
    let measure = |plan: &Plan| {
        let capacity = Capacity(4 * plan.n_micro_batches() * plan.placement().stages_per_rank());
        let checked = check_plan(plan, capacity).unwrap_or_else(|error| panic!("{error}"));
        let costs = Costs::uniform(plan.placement().n_stages(), unit);
        let timeline = replay(&checked, &costs).expect("costs fit");
        let peak = timeline.ranks().iter().map(|rank| rank.peak_in_flight).max();
        (timeline.makespan_s(), peak.unwrap_or(0))
    };
    for case in Golden::open("torch_schedules.json").cases("cases") {
        let n_virtual = number(&case["local"]);
        let schedule = match text(&case["schedule"]) {
            "InterleavedZeroBubble" => Schedule::InterleavedZb { n_virtual },
            "ZBVZeroBubble" => Schedule::ZbV,
            _ => continue,
        };
        let ours = measure(&schedule.plan(shape(case)).expect("a plan"));
        let theirs = measure(&Plan::from_csv(&csv(&case["ranks"])).expect("a plan"));
        let what = (schedule, shape(case));
        assert!(ours.0 <= theirs.0, "{what:?}: makespan {} above {}", ours.0, theirs.0);
        assert!(ours.1 <= theirs.1, "{what:?}: {} in flight, above {}", ours.1, theirs.1);
    }
}
