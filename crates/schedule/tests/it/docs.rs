//! The table of schedules in the crate's README is made from replays, and is up to date.

use std::fmt::Write;
use std::path::Path;

use brigade_schedule::{Capacity, Costs, Schedule, Shape, StageCosts, check, least_capacity, lower, replay};

const START: &str = "<!-- table of schedules: made by the test docs::table_is_up_to_date -->\n";
const END: &str = "<!-- end of the table -->\n";

/// The schedules of the table; those with a choice of stages a rank at 2.
fn shown() -> impl Iterator<Item = Schedule> {
    Schedule::ALL.into_iter().filter(|schedule| matches!(schedule.n_virtual(), None | Some(2)))
}

fn row(schedule: Schedule, shape: Shape) -> String {
    let plan = schedule.plan(shape).expect("a plan");
    // How often a micro-batch comes to a rank.
    let n_virtual = plan.placement().n_stages() / plan.placement().n_ranks();
    let program = lower(&plan).expect("instructions");
    let least = least_capacity(&program).expect("a sound program");
    let checked = check(program, Capacity(shape.n_micro_batches * n_virtual * 2)).expect("a sound program");
    let time_s = 1.0 / f64::from(n_virtual);
    let stage = StageCosts {
        forward_s: time_s,
        input_grad_s: time_s,
        weight_grad_s: time_s,
        ..StageCosts::default()
    };
    let timeline = replay(&checked, &Costs::uniform(plan.placement().n_stages(), stage)).expect("costs fit");
    let peaks = || timeline.ranks().iter().map(|rank| f64::from(rank.peak_in_flight) / f64::from(n_virtual));
    let (least_peak, most_peak) = (peaks().fold(f64::MAX, f64::min), peaks().fold(0.0, f64::max));
    format!(
        "| {schedule} | {} | {:.2} | {:.1} % | {:.2} | {least_peak} to {most_peak} | {} |",
        plan.placement(),
        timeline.makespan_s(),
        100.0 * timeline.bubble_wall_share(),
        timeline.bubble_span_s(),
        least.0,
    )
}

fn table() -> String {
    let mut table = String::new();
    for (n_ranks, n_micro_batches) in [(4, 8), (8, 16)] {
        let shape = Shape { n_ranks, n_micro_batches };
        writeln!(table, "\np = {n_ranks}, m = {n_micro_batches}:\n").expect("a string");
        table.push_str(
            "| schedule | placement | makespan | bubble, wall | bubble, span | peak in flight | link capacity |\n\
             | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for schedule in shown() {
            writeln!(table, "{}", row(schedule, shape)).expect("a string");
        }
    }
    table.push('\n');
    table
}

/// `BRIGADE_BLESS=1` writes the table instead of testing it.
#[test]
fn table_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("the README");
    let (before, rest) = readme.split_once(START).expect("the start of the table");
    let (found, after) = rest.split_once(END).expect("the end of the table");
    let made = table();
    if std::env::var_os("BRIGADE_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{START}{made}{END}{after}")).expect("to write the README");
        return;
    }
    assert_eq!(found, made, "run BRIGADE_BLESS=1 cargo test -p brigade-schedule docs");
}
