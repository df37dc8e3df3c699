//! Text forms: what is written is read back, and faults are found where they stand.

use brigade_schedule::{ActionFault, Plan, PlanParseError, Schedule, Shape};
use proptest::prelude::*;

#[test]
fn plans_survive_text_and_json() {
    for schedule in Schedule::ALL {
        for (n_ranks, n_micro_batches) in [(1, 1), (2, 5), (4, 3), (3, 8)] {
            let Ok(plan) = schedule.plan(Shape { n_ranks, n_micro_batches }) else { continue };
            assert_eq!(plan.to_string().parse::<Plan>().as_ref(), Ok(&plan));
            assert_eq!(Plan::from_csv(&plan.to_csv()).as_ref(), Ok(&plan));
            let json = serde_json::to_string(&plan).expect("to JSON");
            assert_eq!(serde_json::from_str::<Plan>(&json).expect("from JSON"), plan);
        }
    }
}

#[test]
fn schedules_survive_text_and_json() {
    for schedule in Schedule::ALL {
        assert_eq!(schedule.to_string().parse(), Ok(schedule));
        let json = serde_json::to_string(&schedule).expect("to JSON");
        assert_eq!(serde_json::from_str::<Schedule>(&json).expect("from JSON"), schedule);
    }
    for wrong in ["", "2f2b", "1f1b:2", "interleaved:", "interleaved:x"] {
        assert!(wrong.parse::<Schedule>().is_err(), "{wrong}");
    }
}

#[test]
fn a_fault_names_row_and_column() {
    let text = "placement linear:2; micro-batches 1\n0F0,0B0\n1F0,,1X0\n";
    match text.parse::<Plan>() {
        Err(PlanParseError::Cell { row: 2, column: 3, source }) => {
            assert_eq!((source.text.as_str(), source.fault), ("1X0", ActionFault::Word));
        }
        other => panic!("expected a faulty cell, found {other:?}"),
    }
}

#[test]
fn json_cannot_make_a_plan_without_rows() {
    let json = r#"{"placement":"linear:2","n_micro_batches":1,"rows":[[]]}"#;
    let error = serde_json::from_str::<Plan>(json).expect_err("one row for two ranks");
    assert!(error.to_string().contains("each of 2 ranks"), "{error}");
}

#[test]
fn a_huge_plan_is_refused_before_anything_is_reserved() {
    let text = "placement looped:1x4294967295; micro-batches 4294967295\n\n";
    assert!(matches!(text.parse::<Plan>(), Err(PlanParseError::Plan(_))));
    for n in [u32::MAX, 1 << 20] {
        let shape = Shape { n_ranks: n, n_micro_batches: n };
        assert!(Schedule::ALL.into_iter().all(|schedule| schedule.plan(shape).is_err()));
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        if let Ok(action) = text.parse::<brigade_schedule::Action>() {
            let again = action.to_string().parse();
            prop_assert_eq!(again, Ok(action));
        }
    }

    #[test]
    fn near_actions_are_read_or_refused(text in "[(]?[0-9]{0,3}[FBIWSENDRCV_]{1,7}[0-9]{0,11}[;0-9BF)]{0,6}(OVERLAP_F_B)?") {
        if let Ok(action) = text.parse::<brigade_schedule::Action>() {
            let again = action.to_string().parse();
            prop_assert_eq!(again, Ok(action));
        }
    }
}
