//! What users of other systems ran into, each as a test.

use brigade_schedule::{
    Capacity, CheckError, Costs, DeepSpeedMode, LowerError, PipeRank, Placement, Plan, Schedule, Shape,
    StageCosts, check_plan, deepspeed_dual_pipe_v, least_capacity, lower, replay,
};

/// Elsewhere, interleaved schedules refuse fewer micro-batches than ranks.
#[test]
fn interleaved_takes_fewer_micro_batches_than_ranks() {
    for n_virtual in 1..=3 {
        let shape = Shape { n_ranks: 6, n_micro_batches: 3 };
        let plan = Schedule::Interleaved { n_virtual }.plan(shape).expect("a plan");
        assert!(least_capacity(&lower(&plan).expect("instructions")).is_ok());
    }
    // Where the original's stream is asked for, its limit stands: it says what does not fit, and what would.
    let shape = Shape { n_ranks: 6, n_micro_batches: 3 };
    let error = deepspeed_dual_pipe_v(shape, PipeRank(0), DeepSpeedMode::Train).expect_err("too few");
    let text = error.to_string();
    let parts = ["6 ranks", "at least 12", "found 3", "dual_pipe_v"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// With two ranks and several stages a rank, activations and gradients of different stages share a link in
/// both directions; each message is still taken by the stage and micro-batch that it is for.
#[test]
fn messages_of_several_stages_share_two_links() {
    for n_virtual in [2, 3] {
        for n_micro_batches in 1..=8 {
            let shape = Shape { n_ranks: 2, n_micro_batches };
            for schedule in [Schedule::Interleaved { n_virtual }, Schedule::InterleavedZb { n_virtual }] {
                let plan = schedule.plan(shape).expect("a plan");
                let checked = check_plan(&plan, Capacity(64)).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(checked.links(), [(PipeRank(0), PipeRank(1)), (PipeRank(1), PipeRank(0))]);
            }
        }
    }
}

/// A plan made for stages in a V does not pass for stages dealt out in rounds.
#[test]
fn a_plan_for_another_placement_is_refused() {
    let plan = Schedule::ZbV.plan(Shape { n_ranks: 4, n_micro_batches: 8 }).expect("a plan");
    let looped = Placement::looped(4, 2).expect("ranks");
    let moved = Plan::new(looped, plan.n_micro_batches(), plan.rows().to_vec()).expect("a plan");
    let error = check_plan(&moved, Capacity(16)).expect_err("another placement");
    assert!(matches!(error, CheckError::Lower(LowerError::WrongRank { rank: PipeRank(0), .. })), "{error}");
}

/// The bubble of ZB-H2 is what the replay says, by both meanings of the word.
#[test]
fn the_bubble_of_zb_h2_is_stated() {
    let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..StageCosts::default() };
    for n_ranks in [4, 6, 8] {
        let plan = Schedule::ZbH2.plan(Shape { n_ranks, n_micro_batches: 2 * n_ranks }).expect("a plan");
        let checked = check_plan(&plan, Capacity(16)).expect("a sound plan");
        let timeline = replay(&checked, &Costs::uniform(n_ranks, unit)).expect("costs fit");
        assert_eq!((timeline.bubble_wall_s(), timeline.bubble_span_s()), (f64::from(n_ranks - 1), 0.0));
    }
}

/// With split backward passes, what a rank holds stays bounded by `p` and not by `m`.
#[test]
fn split_backward_passes_hold_a_bounded_number_of_micro_batches() {
    for n_micro_batches in [8, 32, 64] {
        let plan = Schedule::ZbH1.plan(Shape { n_ranks: 4, n_micro_batches }).expect("a plan");
        let checked = check_plan(&plan, Capacity(16)).expect("a sound plan");
        for rank in (0..4).map(PipeRank) {
            assert!(checked.in_flight(rank) <= 4);
            // A buffer more may be taken by a micro-batch that has arrived and not been run.
            assert!(checked.n_buffers(rank) <= 5, "{n_micro_batches}: {}", checked.n_buffers(rank));
        }
    }
}
