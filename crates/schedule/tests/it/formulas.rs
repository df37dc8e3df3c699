//! Every schedule at every small size, against the formulas of the literature.

use brigade_schedule::{
    Action, Capacity, CheckedPlan, Compute, ComputeKind, Costs, Effort, MicroBatch, PipeRank, Placement,
    Plan, Problem, Schedule, Shape, StageCosts, StageModel, check, check_plan, data_parallel, find_plan,
    forward_only_on, least_capacity, lower, replay, seq_one_f_one_b,
};

pub(crate) const UNIT: StageCosts = StageCosts {
    forward_s: 1.0,
    input_grad_s: 1.0,
    weight_grad_s: 1.0,
    recompute_s: 0.0,
    activation_bytes: 1,
    weight_grad_bytes: 1,
    output_bytes: 0,
};

pub(crate) fn shapes() -> impl Iterator<Item = Shape> {
    (1..=8).flat_map(|n_ranks| (1..=16).map(move |n_micro_batches| Shape { n_ranks, n_micro_batches }))
}

/// Every schedule: none refuses a shape.
pub(crate) fn plans(shape: Shape) -> impl Iterator<Item = (Schedule, Plan)> {
    let plan = move |schedule: Schedule| {
        schedule.plan(shape).unwrap_or_else(|error| panic!("{schedule} {shape:?}: {error}"))
    };
    Schedule::ALL.into_iter().map(move |schedule| (schedule, plan(schedule)))
}

pub(crate) fn checked(schedule: Schedule, shape: Shape, capacity: Capacity) -> CheckedPlan {
    let plan = schedule.plan(shape).unwrap_or_else(|error| panic!("{schedule} {shape:?}: {error}"));
    check_plan(&plan, capacity).unwrap_or_else(|error| panic!("{schedule} {shape:?}: {error}"))
}

pub(crate) fn ranks(shape: Shape) -> impl Iterator<Item = PipeRank> {
    (0..shape.n_ranks).map(PipeRank)
}

#[test]
fn one_message_a_link_is_enough_without_virtual_stages() {
    for shape in shapes() {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ForwardOnly] {
            checked(schedule, shape, Capacity(1));
        }
    }
}

#[test]
fn several_stages_a_rank_divide_the_bubble() {
    for shape in shapes().filter(|shape| shape.n_micro_batches.is_multiple_of(shape.n_ranks)) {
        let (p, m) = (f64::from(shape.n_ranks), f64::from(shape.n_micro_batches));
        for n_virtual in 1..=3 {
            let v = f64::from(n_virtual);
            for schedule in [Schedule::Interleaved { n_virtual }, Schedule::LoopedBfs { n_virtual }] {
                let plan = checked(schedule, shape, Capacity(shape.n_micro_batches * n_virtual));
                let costs = Costs::uniform(shape.n_ranks * n_virtual, UNIT);
                let timeline = replay(&plan, &costs).expect("costs fit");
                assert_eq!(timeline.makespan_s(), 3.0 * (v * m + p - 1.0), "{schedule} {shape:?}");
            }
        }
    }
}

#[test]
fn gpipe_and_1f1b_take_the_time_of_their_formula() {
    for shape in shapes() {
        let (p, m) = (f64::from(shape.n_ranks), f64::from(shape.n_micro_batches));
        for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
            let plan = checked(schedule, shape, Capacity(shape.n_micro_batches));
            let timeline = replay(&plan, &Costs::uniform(shape.n_ranks, UNIT)).expect("costs fit");
            assert_eq!(timeline.makespan_s(), (m + p - 1.0) * 3.0, "{schedule} {shape:?}");
            assert_eq!(timeline.bubble_wall_s(), (p - 1.0) * 3.0, "{schedule} {shape:?}");
        }
    }
}

#[test]
fn in_flight_and_buffers_are_as_few_as_the_plan_needs() {
    for shape in shapes() {
        let m = shape.n_micro_batches;
        let gpipe = checked(Schedule::GPipe, shape, Capacity(1));
        let one_f_one_b = checked(Schedule::OneFOneB, shape, Capacity(1));
        let forward_only = checked(Schedule::ForwardOnly, shape, Capacity(1));
        for rank in ranks(shape) {
            assert_eq!((gpipe.in_flight(rank), gpipe.n_buffers(rank)), (m, m));
            let expected = (shape.n_ranks - rank.0).min(m);
            assert_eq!(one_f_one_b.in_flight(rank), expected, "{shape:?} {rank}");
            assert_eq!(one_f_one_b.n_buffers(rank), expected, "{shape:?} {rank}");
            assert_eq!(forward_only.n_buffers(rank), m.min(2), "{shape:?} {rank}");
        }
    }
}

#[test]
fn forward_of_the_first_micro_batch_starts_as_soon_as_it_can() {
    // Sends are not held back, so rank r starts after r forward passes.
    let shape = Shape { n_ranks: 8, n_micro_batches: 16 };
    let plan = checked(Schedule::OneFOneB, shape, Capacity(1));
    let timeline = replay(&plan, &Costs::uniform(8, UNIT)).expect("costs fit");
    for rank in ranks(shape) {
        let first = timeline.rank(rank).and_then(|rank| rank.spans.first()).expect("a span");
        assert_eq!(first.start_s, f64::from(rank.0));
    }
}

/// With F = I = W the wall bubble of ZB-H1 is `(p-1)(F+I-W)`, and ZB-H2 and ZB-V lose nothing within spans.
#[test]
fn zero_bubble_schedules_keep_their_promise() {
    for shape in shapes() {
        let (p, m) = (shape.n_ranks, shape.n_micro_batches);
        let bubbles = |schedule: Schedule| {
            let plan = checked(schedule, shape, Capacity(2 * m));
            let timeline =
                replay(&plan, &Costs::uniform(plan.placement().n_stages(), UNIT)).expect("costs fit");
            (timeline.bubble_wall_s(), timeline.bubble_span_s())
        };
        if m >= p {
            assert_eq!(bubbles(Schedule::ZbH1).0, f64::from(p - 1), "zb-h1 {shape:?}");
        }
        if m >= 2 * p - 1 {
            assert_eq!(bubbles(Schedule::ZbH2), (f64::from(p - 1), 0.0), "zb-h2 {shape:?}");
            assert_eq!(bubbles(Schedule::ZbV), (f64::from(p - 1), 0.0), "zb-v {shape:?}");
        }
    }
}

/// The rows of ZB-H1 do not hang on equal times: its bubble is `(p-1)(F+I-W)` wherever W is at most I.
#[test]
fn zb_h1_keeps_its_formula_at_other_times() {
    for shape in shapes().filter(|shape| shape.n_micro_batches >= shape.n_ranks) {
        let plan = checked(Schedule::ZbH1, shape, Capacity(2 * shape.n_micro_batches));
        for (forward_s, input_grad_s, weight_grad_s) in
            [(10.0, 14.0, 5.0), (10.0, 12.0, 8.0), (8.0, 14.0, 3.0)]
        {
            let stage = StageCosts { forward_s, input_grad_s, weight_grad_s, ..StageCosts::default() };
            let timeline = replay(&plan, &Costs::uniform(shape.n_ranks, stage)).expect("costs fit");
            let expected = f64::from(shape.n_ranks - 1) * (forward_s + input_grad_s - weight_grad_s);
            assert_eq!(timeline.bubble_wall_s(), expected, "{shape:?}");
        }
    }
}

#[test]
fn zero_bubble_schedules_keep_to_their_memory() {
    for shape in shapes() {
        let (p, m) = (shape.n_ranks, shape.n_micro_batches);
        let limits = [
            (Schedule::ZbH1, p.min(m)),
            (Schedule::ZbH2, (2 * p - 1).min(m)),
            (Schedule::ZbV, 2 * p.min(m)),
            (Schedule::VHalf, (2 * (p / 2 + 1)).min(2 * m)),
            (Schedule::VMin, (2 * ((p + 1) / 3 + 1)).min(2 * m)),
        ];
        for (schedule, limit) in limits {
            let plan = checked(schedule, shape, Capacity(2 * m));
            for rank in ranks(shape) {
                assert!(plan.in_flight(rank) <= limit, "{schedule} {shape:?} rank {rank}");
            }
        }
    }
}

#[test]
fn sequence_split_is_sound_and_holds_less() {
    for shape in shapes() {
        for n_pieces in 1..=3 {
            let plan = seq_one_f_one_b(shape, n_pieces).expect("a plan");
            let checked = check_plan(&plan, Capacity(1)).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            for rank in ranks(shape) {
                let expected = (shape.n_ranks - 1 - rank.0 + n_pieces).min(shape.n_micro_batches * n_pieces);
                assert_eq!(checked.in_flight(rank), expected, "{shape:?} {n_pieces} rank {rank}");
            }
        }
    }
}

#[test]
fn data_parallel_holds_one_micro_batch() {
    for n_micro_batches in 1..=16 {
        let checked =
            check_plan(&data_parallel(n_micro_batches).expect("a plan"), Capacity(0)).expect("sound");
        assert_eq!((checked.in_flight(PipeRank(0)), checked.n_buffers(PipeRank(0))), (1, 1));
        assert!(checked.links().is_empty());
    }
}

/// On a clock on which each pass takes one tick, as in DeepSpeed, 1F1B takes `2(m + p - 1)` ticks.
#[test]
fn one_f_one_b_takes_its_ticks() {
    let tick = StageCosts { input_grad_s: 0.5, weight_grad_s: 0.5, ..UNIT };
    for shape in shapes() {
        let plan = checked(Schedule::OneFOneB, shape, Capacity(shape.n_micro_batches));
        let timeline = replay(&plan, &Costs::uniform(shape.n_ranks, tick)).expect("costs fit");
        assert_eq!(timeline.makespan_s(), f64::from(2 * (shape.n_micro_batches + shape.n_ranks - 1)));
    }
}

/// DualPipeV: `(p-1)(FB + B - 3W)` of a stage's times, where a pair takes as long as its two passes.
#[test]
fn dual_pipe_v_has_the_bubble_of_its_formula() {
    for shape in shapes().filter(|shape| shape.n_micro_batches >= 2 * shape.n_ranks) {
        let plan = checked(Schedule::DualPipeV, shape, Capacity(2 * shape.n_micro_batches));
        let timeline = replay(&plan, &Costs::uniform(2 * shape.n_ranks, UNIT)).expect("costs fit");
        assert_eq!(timeline.bubble_wall_s(), f64::from(2 * (shape.n_ranks - 1)), "{shape:?}");
        let most = ranks(shape).map(|rank| plan.in_flight(rank)).max();
        assert!(most <= Some(2 * shape.n_ranks + 1), "{shape:?}");
    }
}

/// DualPipe: `(p/2-1)(FB + B - 3W)`, or less where I is above F, and `p + 1` micro-batches in flight, which other
/// numbers of ranks and micro-batches keep to as well; every rank sees every micro-batch once.
#[test]
fn dual_pipe_has_the_bubble_and_the_memory_of_its_formula() {
    let times = [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (3.0, 3.0, 2.0), (2.0, 3.0, 2.0), (10.0, 12.0, 9.0)];
    for shape in shapes() {
        let (p, m) = (shape.n_ranks, shape.n_micro_batches);
        let plan = checked(Schedule::DualPipe, shape, Capacity(2 * m));
        assert_eq!(plan.placement(), Placement::bidirectional(p).expect("ranks"));
        let most = ranks(shape).map(|rank| plan.in_flight(rank)).max();
        assert!(most <= Some(p + 1), "{shape:?}: {most:?}");
        for rank in ranks(shape) {
            assert_eq!(
                plan.plan().row(rank).iter().flat_map(Action::computes).filter(is_forward).count(),
                count(m)
            );
        }
        if !(p.is_multiple_of(2) && m.is_multiple_of(2) && m >= 2 * p) {
            continue;
        }
        assert_eq!(most, Some(p + 1), "{shape:?}");
        for (forward_s, input_grad_s, weight_grad_s) in times {
            let stage = StageCosts { forward_s, input_grad_s, weight_grad_s, ..StageCosts::default() };
            let timeline = replay(&plan, &Costs::uniform(p, stage)).expect("costs fit");
            let backward_s = input_grad_s + weight_grad_s;
            let formula = (forward_s + backward_s) + backward_s - 3.0 * weight_grad_s;
            let (found, expected) = (timeline.bubble_wall_s(), f64::from(p / 2 - 1) * formula);
            assert!(found <= expected, "{shape:?}: {found} above {expected}");
            assert!(found == expected || input_grad_s > forward_s, "{shape:?}: {found} below {expected}");
        }
    }
}

/// Each half of the ranks runs DualPipeV, of which there are streams and tables of other systems to compare with.
#[test]
fn dual_pipe_is_dual_pipe_v_from_both_ends() {
    for shape in
        shapes().filter(|shape| shape.n_ranks.is_multiple_of(2) && shape.n_micro_batches.is_multiple_of(2))
    {
        let Shape { n_ranks: p, n_micro_batches: m } = shape;
        let half =
            Schedule::DualPipeV.plan(Shape { n_ranks: p / 2, n_micro_batches: m / 2 }).expect("a plan");
        let whole = Schedule::DualPipe.plan(shape).expect("a plan");
        for rank in ranks(shape) {
            let from_above = rank.0 < p / 2;
            let of = if from_above { rank } else { PipeRank(p - 1 - rank.0) };
            let expected = half.row(of).iter().flat_map(Action::computes).map(|compute| {
                let goes_up = (compute.stage.0 < p / 2) != from_above;
                let micro_batch = MicroBatch(2 * compute.micro_batch.0 + u32::from(goes_up));
                Compute { micro_batch, ..compute }
            });
            assert!(whole.row(rank).iter().flat_map(Action::computes).eq(expected), "{shape:?} rank {rank}");
        }
    }
}

fn is_forward(compute: &Compute) -> bool {
    compute.kind == ComputeKind::Forward
}

fn count(n: u32) -> usize {
    usize::try_from(n).expect("a small number")
}

/// What DualPipe is for: against 1F1B on the same ranks, a shorter step for every shape, at one more micro-batch in
/// flight.
#[test]
fn dual_pipe_is_never_slower_than_1f1b() {
    for shape in shapes() {
        let makespan_s = |schedule| {
            let plan = checked(schedule, shape, Capacity(2 * shape.n_micro_batches));
            replay(&plan, &Costs::uniform(shape.n_ranks, UNIT)).expect("costs fit").makespan_s()
        };
        let (dual, plain) = (makespan_s(Schedule::DualPipe), makespan_s(Schedule::OneFOneB));
        assert!(dual <= plain, "{shape:?}: {dual} above {plain}");
    }
}

/// Within the memory of 1F1B, at times that differ, the search is never above the formula of ZB-H1,
/// `mT + (p-1)(F + I - W)`.
#[test]
fn searched_plans_keep_the_formula_of_zb_h1_at_any_times() {
    for [forward_s, input_grad_s, weight_grad_s] in [[3.0, 4.0, 2.0], [10.0, 12.0, 9.0], [2.0, 2.0, 1.0]] {
        for (n_ranks, n_micro_batches) in [(2, 2), (3, 7), (4, 4), (4, 12), (6, 9), (8, 16)] {
            let placement = Placement::linear(n_ranks).expect("ranks");
            let stage = StageModel { forward_s, input_grad_s, weight_grad_s, activation: 1, weight_grad: 1 };
            let problem = Problem {
                placement,
                n_micro_batches,
                stages: placement.ranks().map(|_| stage).collect(),
                latency_s: 0.0,
                memory_limits: placement.ranks().map(|_| u64::from(n_ranks)).collect(),
            };
            let found = find_plan(&problem, Effort::QUICK).expect("a plan");
            let work_s = f64::from(n_micro_batches) * (forward_s + input_grad_s + weight_grad_s);
            let bubble_s = f64::from(n_ranks - 1) * (forward_s + input_grad_s - weight_grad_s);
            assert!(found.makespan_s <= work_s + bubble_s, "p {n_ranks} m {n_micro_batches}: {found:?}");
        }
    }
}

#[test]
fn forward_only_is_sound_over_any_placement() {
    for shape in shapes() {
        let looped = (1..=3).map(|n_virtual| Placement::looped(shape.n_ranks, n_virtual));
        let others = [Placement::v(shape.n_ranks), Placement::bidirectional(shape.n_ranks)];
        for placement in looped.chain(others) {
            let placement = placement.expect("ranks");
            let plan = forward_only_on(placement, shape.n_micro_batches).expect("a plan");
            let program = lower(&plan).unwrap_or_else(|error| panic!("{placement} {shape:?}: {error}"));
            let least =
                least_capacity(&program).unwrap_or_else(|error| panic!("{placement} {shape:?}: {error}"));
            let checked = check(program, least).expect("the capacity that was found");
            assert!(checked.is_forward_only());
        }
    }
}
