//! Learning-rate schedules: against Burn's schedulers, and against DeepSpeed's formulas.

use brigade_engine::LearningRateSchedule;
use burn::lr_scheduler::composed::{ComposedLrSchedulerConfig, SchedulerReduction};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;

fn schedule(text: &str) -> LearningRateSchedule {
    let schedule: LearningRateSchedule = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    schedule.check("schedule").unwrap_or_else(|error| panic!("{text}: {error}"));
    schedule
}

fn assert_near(found: f64, expected: f64, place: &str) {
    assert!((found - expected).abs() <= 1e-12 * expected.abs().max(1e-3), "{place}: {found}, not {expected}");
}

#[test]
fn schedules_give_the_rates_of_burns_schedulers() {
    let linear = LinearLrSchedulerConfig::new(0.3, 0.1, 10);
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.3, 12).with_min_lr(0.05);
    let noam = NoamLrSchedulerConfig::new(2.0).with_warmup_steps(5).with_model_size(64);
    let composed = |reduction| {
        let config = ComposedLrSchedulerConfig::new().with_reduction(reduction);
        config.linear(linear.clone()).exponential(ExponentialLrSchedulerConfig::new(0.5, 0.9)).init()
    };
    let part = r#"[{"linear": {"initial": 0.3, "end": 0.1, "n_steps": 10}}, {"exponential": {"initial": 0.5, "gamma": 0.9}}]"#;
    let of =
        |reduction: &str| format!(r#"{{"composed": {{"schedules": {part}, "reduction": "{reduction}"}}}}"#);
    // Where Burn's cosine rises again after its end, the rate here stays: compared up to the end.
    let cases: Vec<(String, u64, Result<ModuleLrScheduler, String>)> = vec![
        (r#""constant""#.to_owned(), 30, Ok(ModuleLrScheduler::new(0.3))),
        (r#"{"linear": {"end": 0.1, "n_steps": 10}}"#.to_owned(), 30, linear.init()),
        (r#"{"cosine": {"min": 0.05, "n_steps": 12}}"#.to_owned(), 12, cosine.init()),
        (
            r#"{"exponential": {"gamma": 0.9}}"#.to_owned(),
            30,
            ExponentialLrSchedulerConfig::new(0.3, 0.9).init(),
        ),
        (
            r#"{"step": {"n_steps": 4, "gamma": 0.1}}"#.to_owned(),
            30,
            StepLrSchedulerConfig::new(0.3, 4).init(),
        ),
        (r#"{"noam": {"factor": 2, "warmup_steps": 5, "model_size": 64}}"#.to_owned(), 30, noam.init()),
        (of("avg"), 30, composed(SchedulerReduction::Avg)),
        (of("sum"), 30, composed(SchedulerReduction::Sum)),
        (of("prod"), 30, composed(SchedulerReduction::Prod)),
    ];
    for (text, end, burns) in cases {
        let (ours, mut burns) = (schedule(&text), burns.expect("a scheduler"));
        for n in 0..=end {
            assert_near(ours.rate(0.3, n), burns.step().base(), &format!("{text} at {n}"));
        }
    }
    assert_near(
        schedule(r#"{"cosine": {"min": 0.05, "n_steps": 12}}"#).rate(0.3, 1000),
        0.05,
        "after the end",
    );
}

#[test]
fn parts_in_sequence_count_from_their_own_beginning() {
    let text = r#"{"sequential": {"schedules": [{"rate": 1}, {"linear": {"initial": 4, "end": 0, "n_steps": 4}}, "constant"],
                   "milestones": [2, 5]}}"#;
    let rates: Vec<f64> = (0..7).map(|n| schedule(text).rate(0.5, n)).collect();
    assert_eq!(rates, [1.0, 1.0, 4.0, 3.0, 2.0, 0.5, 0.5]);
}

#[test]
fn a_warm_up_goes_before_any_schedule() {
    let text = r#"{"warmup": {"start": 0.1, "n_steps": 4, "then": {"step": {"n_steps": 2, "gamma": 0.5}}}}"#;
    let rates: Vec<f64> = (0..9).map(|n| schedule(text).rate(0.5, n)).collect();
    let expected = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.25, 0.25, 0.125];
    for (n, (found, expected)) in rates.into_iter().zip(expected).enumerate() {
        assert_near(found, expected, &format!("at {n}"));
    }
}

/// DeepSpeed sets the first rate when it is made, and the next ones by iterations that count from 0.
#[test]
fn deepspeeds_schedulers_give_the_rates_worked_out_from_their_formulas() {
    let log = |iteration: f64, steps: f64| (iteration + 1.0).ln() / steps.ln();
    let cosine = |part: f64| 0.01 + 0.99 * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
    let cases: [(&str, &[(u64, f64)]); 11] = [
        (
            r#"{"warmup_lr": {"warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 4}}"#,
            &[(0, 0.1), (1, 0.1), (2, 0.1 + 0.4 * log(1.0, 4.0)), (4, 0.5), (5, 0.5), (99, 0.5)],
        ),
        (
            r#"{"warmup_lr": {"warmup_num_steps": 4, "warmup_type": "linear"}}"#,
            &[(0, 0.0), (1, 0.0), (2, 0.05), (4, 0.15), (5, 0.2), (6, 0.2)],
        ),
        // A warm-up of one step is one of two.
        (r#"{"warmup_lr": {"warmup_num_steps": 1}}"#, &[(0, 0.0), (1, 0.0), (2, 0.2), (3, 0.2)]),
        (
            r#"{"warmup_decay_lr": {"total_num_steps": 10, "warmup_max_lr": 0.5, "warmup_num_steps": 5, "warmup_type": "linear"}}"#,
            &[(0, 0.0), (3, 0.2), (5, 0.4), (6, 0.5), (7, 0.4), (10, 0.1), (11, 0.0), (50, 0.0)],
        ),
        (
            r#"{"warmup_cosine_lr": {"total_num_steps": 12, "warmup_min_ratio": 0.5, "warmup_num_steps": 4, "cos_min_ratio": 0.01}}"#,
            &[
                (0, 0.0),
                (1, 0.1),
                (3, 0.2 * (0.5 + 0.5 * log(2.0, 4.0))),
                (5, 0.2 * cosine(0.125)),
                (8, 0.2 * cosine(0.5)),
                (12, 0.002),
                (40, 0.002),
            ],
        ),
        (
            r#"{"one_cycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 4}}"#,
            &[(0, 0.1), (1, 0.2), (4, 0.5), (6, 0.3), (8, 0.1), (9, 0.1), (100, 0.1)],
        ),
        (
            r#"{"one_cycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 4, "cycle_second_step_size": 2,
                "decay_step_size": 5, "decay_lr_rate": 2}}"#,
            &[(5, 0.3), (6, 0.1), (11, 0.1 / 3.0), (16, 0.1 / 5.0)],
        ),
        (
            r#"{"one_cycle": {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_first_step_size": 4, "cycle_first_stair_count": 2}}"#,
            &[(1, 0.0), (2, 0.5), (3, 0.5), (4, 1.0), (5, 0.5), (6, 0.5), (7, 0.0)],
        ),
        (
            r#"{"lr_range_test": {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 10, "lr_range_test_step_rate": 5}}"#,
            &[(0, 0.1), (1, 0.15), (10, 0.6), (15, 0.85)],
        ),
        (
            r#"{"lr_range_test": {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 10, "lr_range_test_staircase": true}}"#,
            &[(9, 0.1), (10, 0.2), (19, 0.2), (20, 0.3)],
        ),
        // More warm-up than training: nothing is left to go down.
        (
            r#"{"warmup_decay_lr": {"total_num_steps": 2, "warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"}}"#,
            &[(4, 0.375), (5, 0.0), (6, 0.0)],
        ),
    ];
    for (text, expected) in cases {
        for &(n, expected) in expected {
            assert_near(schedule(text).rate(0.2, n), expected, &format!("{text} at {n}"));
        }
    }
}

#[test]
fn no_schedule_gives_what_is_no_rate() {
    let all = [
        r#"{"linear": {"n_steps": 3}}"#,
        r#"{"cosine": {"n_steps": 3}}"#,
        r#"{"exponential": {"gamma": 0.5}}"#,
        r#"{"noam": {"factor": 1, "model_size": 1, "warmup_steps": 1}}"#,
        r#"{"warmup_cosine_lr": {"total_num_steps": 1, "warmup_num_steps": 1}}"#,
        r#"{"warmup_decay_lr": {"total_num_steps": 1, "warmup_num_steps": 1}}"#,
        r#"{"one_cycle": {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_first_step_size": 1}}"#,
    ];
    for text in all {
        for n in [0, 1, 2, 3, 4, 5, 1000, u64::from(u32::MAX), u64::MAX] {
            let rate = schedule(text).rate(0.1, n);
            assert!(rate.is_finite() && rate >= 0.0, "{text} at {n}: {rate}");
        }
    }
}
