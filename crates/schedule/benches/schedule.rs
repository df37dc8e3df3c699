//! Times of making, lowering, checking, replaying and searching plans.

use std::hint::black_box;

use brigade_schedule::{
    Auto, Candidate, Capacity, Costs, Effort, PipeRank, Placement, Problem, Schedule, Shape, StageCosts,
    StageModel, Stream, auto, check, check_plan, find_plan, lower, one_f_one_b, replay,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

/// 1F1B at p = 1024, m = 4096: 8.4 million computations, 25 million instructions.
fn large(c: &mut Criterion) {
    let shape = Shape { n_ranks: 1024, n_micro_batches: 4096 };
    let mut group = c.benchmark_group("1f1b_1024x4096");
    group.sample_size(10);
    group.bench_function("plan", |b| b.iter(|| one_f_one_b(black_box(shape))));
    let plan = one_f_one_b(shape).expect("a plan");
    group.bench_function("lower", |b| b.iter(|| lower(black_box(&plan))));
    let program = lower(&plan).expect("instructions");
    group.bench_function("check", |b| {
        b.iter_batched(|| program.clone(), |program| check(program, Capacity(1)), BatchSize::PerIteration);
    });
    group.bench_function("plan_lower_check", |b| {
        b.iter(|| check_plan(&one_f_one_b(black_box(shape)).expect("a plan"), Capacity(1)));
    });
    let checked = check(program, Capacity(8)).expect("a sound program");
    let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..StageCosts::default() };
    let costs = Costs::uniform(1024, unit);
    group.bench_function("replay", |b| b.iter(|| replay(black_box(&checked), &costs)));
    group.finish();
}

/// One rank of 10 000 with 100 000 micro-batches.
fn stream(c: &mut Criterion) {
    let shape = Shape { n_ranks: 10_000, n_micro_batches: 100_000 };
    let mut group = c.benchmark_group("stream_10000x100000");
    group.sample_size(10);
    for schedule in [Schedule::OneFOneB, Schedule::DualPipe] {
        let stream = Stream::new(schedule, shape).expect("a stream");
        group.bench_function(format!("{schedule}_instructions_of_a_rank"), |b| {
            b.iter(|| stream.instructions(black_box(PipeRank(17))).expect("a rank").count());
        });
    }
    group.finish();
}

fn search(c: &mut Criterion) {
    let mut group = c.benchmark_group("search");
    group.sample_size(10);
    let large = Shape { n_ranks: 512, n_micro_batches: 2048 };
    group.bench_function("zb_v_512x2048", |b| b.iter(|| Schedule::ZbV.plan(black_box(large))));
    for (name, n_ranks, n_micro_batches) in [("8x16", 8, 16), ("64x256", 64, 256)] {
        let v = Placement::v(n_ranks).expect("ranks");
        let linear = Placement::linear(n_ranks).expect("ranks");
        let of = |placement: Placement, scale: f64| Candidate {
            placement,
            stages: placement
                .ranks()
                .map(|_| StageModel {
                    forward_s: 10.0 * scale,
                    input_grad_s: 12.0 * scale,
                    weight_grad_s: 8.0 * scale,
                    activation: 1,
                    weight_grad: 1,
                })
                .collect(),
        };
        let problem = Problem {
            placement: v,
            n_micro_batches,
            stages: of(v, 1.0).stages,
            latency_s: 1.0,
            memory_limits: vec![2 * u64::from(n_ranks); v.ranks().count() / 2],
        };
        group.bench_function(format!("zb_v_{name}"), |b| {
            b.iter(|| find_plan(black_box(&problem), Effort::THOROUGH));
        });
        let auto_problem = Auto {
            n_micro_batches,
            latency_s: 1.0,
            memory_limits: problem.memory_limits.clone(),
            candidates: vec![of(linear, 2.0), of(v, 1.0)],
        };
        group.bench_function(format!("auto_{name}"), |b| {
            b.iter(|| auto(black_box(&auto_problem), Effort::THOROUGH));
        });
    }
    group.finish();
}

criterion_group!(benches, large, stream, search);
criterion_main!(benches);
