//! The automatic choice is at least as good as every schedule by name.

use brigade_schedule::{
    Auto, Candidate, Capacity, Costs, Effort, LinkCosts, Placement, Plan, Schedule, ScheduleError, Shape,
    StageCosts, StageModel, auto, check_plan, replay,
};

/// Stages that differ: the first and the last are heavier.
fn stages(placement: Placement, times: [f64; 3]) -> Vec<StageModel> {
    let n_rounds = placement.n_stages() / placement.n_ranks();
    let n_virtual = f64::from(n_rounds);
    let last = placement.n_stages() - 1;
    (0..placement.n_stages())
        .map(|stage| {
            let heavier = if stage == 0 || stage == last { 1.25 } else { 1.0 };
            let [forward_s, input_grad_s, weight_grad_s] = times.map(|time_s| time_s * heavier / n_virtual);
            StageModel {
                forward_s,
                input_grad_s,
                weight_grad_s,
                activation: 4 / u64::from(n_rounds),
                weight_grad: 1,
            }
        })
        .collect()
}

fn measure(plan: &Plan, stages: &[StageModel], latency_s: f64) -> (f64, Vec<u64>) {
    let stage = |model: &StageModel| StageCosts {
        forward_s: model.forward_s,
        input_grad_s: model.input_grad_s,
        weight_grad_s: model.weight_grad_s,
        activation_bytes: model.activation,
        weight_grad_bytes: model.weight_grad,
        ..StageCosts::default()
    };
    let link = LinkCosts { latency_s, bytes_per_s: None };
    let costs = Costs { stages: stages.iter().map(stage).collect(), link, ..Costs::default() };
    let checked = check_plan(plan, Capacity(1000)).expect("a sound plan");
    let timeline = replay(&checked, &costs).expect("costs fit");
    (timeline.makespan_s(), timeline.ranks().iter().map(|rank| rank.peak_bytes).collect())
}

#[test]
fn no_named_schedule_is_better_at_the_same_memory() {
    for (n_ranks, n_micro_batches) in [(2, 5), (4, 8), (4, 3), (6, 12)] {
        for times in [[1.0, 1.0, 1.0], [10.0, 12.0, 5.0]] {
            for limit in [4, 10, 4 * u64::from(n_ranks), 8 * u64::from(n_ranks)] {
                let placements = [
                    Placement::linear(n_ranks).expect("ranks"),
                    Placement::looped(n_ranks, 2).expect("ranks"),
                    Placement::v(n_ranks).expect("ranks"),
                    Placement::bidirectional(n_ranks).expect("ranks"),
                ];
                let candidate =
                    |&placement: &Placement| Candidate { placement, stages: stages(placement, times) };
                let problem = Auto {
                    n_micro_batches,
                    latency_s: 0.5,
                    memory_limits: (0..n_ranks).map(|_| limit).collect(),
                    candidates: placements.iter().map(candidate).collect(),
                };
                let found = auto(&problem, Effort::QUICK).expect("a plan");
                let (makespan_s, peaks) =
                    measure(&found.plan, &problem.candidates[found.candidate].stages, problem.latency_s);
                assert!((makespan_s - found.makespan_s).abs() < 1e-9 * makespan_s);
                assert!(peaks.iter().all(|&peak| peak <= limit));
                assert!(found.gap() > -1e-9);
                for schedule in Schedule::ALL.into_iter().filter(|&s| s != Schedule::ForwardOnly) {
                    let Ok(plan) = schedule.plan(Shape { n_ranks, n_micro_batches }) else { continue };
                    let costs = stages(plan.placement(), times);
                    if !placements.contains(&plan.placement()) {
                        continue;
                    }
                    let (theirs_s, peaks) = measure(&plan, &costs, problem.latency_s);
                    if peaks.iter().all(|&peak| peak <= limit) {
                        assert!(
                            found.makespan_s <= theirs_s * (1.0 + 1e-12),
                            "{schedule}, p {n_ranks} m {n_micro_batches} limit {limit}: {} above {theirs_s}",
                            found.makespan_s
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn too_little_memory_is_named() {
    let placement = Placement::linear(2).expect("ranks");
    let problem = Auto {
        n_micro_batches: 4,
        latency_s: 0.0,
        memory_limits: vec![4, 3],
        candidates: vec![Candidate { placement, stages: stages(placement, [1.0; 3]) }],
    };
    let error = auto(&problem, Effort::QUICK).expect_err("rank 1 holds nothing");
    assert!(matches!(error, ScheduleError::TooLittleMemory { limit: 3, needed: 4, .. }), "{error}");
}
