//! Replays by hand: links with latency, bandwidth and capacity, recompute, bytes, and the end of a batch.

use brigade_schedule::{
    Capacity, CheckedPlan, CostError, Costs, Instruction, LinkCosts, PipeRank, Plan, Schedule, Shape,
    StageCosts, Timeline, check_plan, replay,
};

const UNIT: StageCosts = StageCosts {
    forward_s: 1.0,
    input_grad_s: 1.0,
    weight_grad_s: 1.0,
    recompute_s: 0.0,
    activation_bytes: 0,
    weight_grad_bytes: 0,
    output_bytes: 0,
};

fn checked(text: &str, capacity: u32) -> CheckedPlan {
    let plan: Plan = text.parse().unwrap_or_else(|error| panic!("{error}"));
    check_plan(&plan, Capacity(capacity)).unwrap_or_else(|error| panic!("{error}"))
}

fn starts(timeline: &Timeline, rank: u32) -> Vec<f64> {
    let rank = timeline.rank(PipeRank(rank)).expect("a rank");
    rank.spans.iter().map(|span| span.start_s).collect()
}

const FORWARD: &str = "placement linear:2; micro-batches 3\n0F0,0F1,0F2\n1F0,1F1,1F2\n";

#[test]
fn a_message_takes_its_latency_and_waits_for_the_wire() {
    let plan = checked(FORWARD, 8);
    let mut costs = Costs::uniform(2, StageCosts { output_bytes: 20, ..UNIT });
    costs.link = LinkCosts { latency_s: 0.5, bytes_per_s: None };
    assert_eq!(starts(&replay(&plan, &costs).expect("costs fit"), 1), [1.5, 2.5, 3.5]);
    // Two seconds on the wire for each message, one after the other.
    costs.link = LinkCosts { latency_s: 0.5, bytes_per_s: Some(10.0) };
    assert_eq!(starts(&replay(&plan, &costs).expect("costs fit"), 1), [3.5, 5.5, 7.5]);
    // Only the link that the message takes counts.
    costs.links.insert((PipeRank(1), PipeRank(0)), LinkCosts { latency_s: 100.0, bytes_per_s: None });
    assert_eq!(starts(&replay(&plan, &costs).expect("costs fit"), 1), [3.5, 5.5, 7.5]);
    costs.links.insert((PipeRank(0), PipeRank(1)), LinkCosts::default());
    assert_eq!(starts(&replay(&plan, &costs).expect("costs fit"), 1), [1.0, 2.0, 3.0]);
}

#[test]
fn a_sender_waits_for_room_on_its_link() {
    let mut costs = Costs::uniform(2, UNIT);
    costs.stages[1].forward_s = 10.0;
    let starts = |capacity| starts(&replay(&checked(FORWARD, capacity), &costs).expect("costs fit"), 0);
    assert_eq!(starts(2), [0.0, 1.0, 2.0]);
    // The second message lies on the link until rank 1 takes it at 11; only then does the third leave.
    assert_eq!(starts(1), [0.0, 1.0, 2.0]);
    // At rendezvous the second send ends at 11.
    assert_eq!(starts(0), [0.0, 1.0, 11.0]);
}

#[test]
fn a_full_link_holds_up_the_next_step() {
    let text = "placement linear:2; micro-batches 4\n0F0,0F1,0F2,0F3\n1F0,1F1,1F2,1F3\n";
    let mut costs = Costs::uniform(2, UNIT);
    costs.stages[1].forward_s = 10.0;
    let timeline = replay(&checked(text, 1), &costs).expect("costs fit");
    // F0 is taken at 1, F1 waits on the link, F2 waits to get on it until F1 is taken at 11.
    assert_eq!(starts(&timeline, 0), [0.0, 1.0, 2.0, 11.0]);
    assert_eq!(timeline.makespan_s(), 41.0);
}

/// The second forward pass runs once, with the first half of a split backward pass.
#[test]
fn recompute_runs_once() {
    let costs = Costs::uniform(1, StageCosts { recompute_s: 0.5, ..UNIT });
    for (text, ends) in [
        ("placement linear:1; micro-batches 1\n0F0,0B0\n", vec![1.0, 3.5]),
        ("placement linear:1; micro-batches 1\n0F0,0I0,0W0\n", vec![1.0, 2.5, 3.5]),
    ] {
        let timeline = replay(&checked(text, 1), &costs).expect("costs fit");
        let found: Vec<f64> = timeline.ranks()[0].spans.iter().map(|span| span.end_s).collect();
        assert_eq!(found, ends);
    }
}

#[test]
fn bytes_fall_with_each_half_of_the_backward_pass() {
    let stage = StageCosts { activation_bytes: 10, weight_grad_bytes: 4, ..UNIT };
    let peak = |text| {
        let timeline = replay(&checked(text, 1), &Costs::uniform(1, stage)).expect("costs fit");
        (timeline.ranks()[0].peak_bytes, timeline.ranks()[0].peak_in_flight)
    };
    assert_eq!(peak("placement linear:1; micro-batches 2\n0F0,0F1,0B0,0B1\n"), (20, 2));
    assert_eq!(peak("placement linear:1; micro-batches 2\n0F0,0I0,0F1,0I1,0W0,0W1\n"), (14, 2));
    assert_eq!(peak("placement linear:1; micro-batches 2\n0F0,0I0,0W0,0F1,0I1,0W1\n"), (10, 1));
}

#[test]
fn the_end_of_a_batch_takes_its_time_on_every_rank() {
    let costs = Costs { reduce_tied_s: 0.25, reduce_s: 0.5, optimizer_s: 1.0, ..Costs::uniform(2, UNIT) };
    let plan = checked("placement linear:2; micro-batches 1\n0F0,0B0\n1F0,1B0\n", 1);
    let timeline = replay(&plan, &costs).expect("costs fit");
    assert_eq!(timeline.makespan_s(), 6.0 + 1.75);
    let last = timeline.ranks()[1].spans.last().expect("a span");
    assert_eq!((last.instruction, last.start_s, last.end_s), (Instruction::OptimizerStep, 4.75, 5.75));
    assert_eq!(timeline.idle_s(PipeRank(0)), timeline.idle_s(PipeRank(1)));
}

/// An overlapped pair is one pass: its own cost, and its results leave at its end.
#[test]
fn overlap_hides_a_share_of_the_shorter_pass() {
    let text = "placement linear:2; micro-batches 2\n0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n";
    let plan = checked(text, 2);
    let ends = |overlap_hides, rank| {
        let costs = Costs { overlap_hides, ..Costs::uniform(2, UNIT) };
        let timeline = replay(&plan, &costs).expect("costs fit");
        let spans = &timeline.rank(PipeRank(rank)).expect("a rank").spans;
        spans.iter().map(|span| span.end_s).collect::<Vec<_>>()
    };
    // F0, then F1 and B0 one after the other, B1.
    assert_eq!(ends(None, 1), [2.0, 3.0, 5.0, 7.0]);
    assert_eq!(ends(Some(0.0), 1), [2.0, 3.0, 5.0, 7.0]);
    // Three units of work in two and a half, and in two.
    let close = |found: Vec<f64>, expected: [f64; 4]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    };
    close(ends(Some(0.5), 1), [2.0, 2.0 + 2.5 / 3.0, 4.5, 6.5]);
    close(ends(Some(1.0), 1), [2.0, 2.0 + 2.0 / 3.0, 4.0, 6.0]);
    close(ends(Some(1.0), 0), [1.0, 2.0, 6.0, 8.0]);
    for value in [-0.1, 1.5, f64::NAN] {
        let costs = Costs { overlap_hides: Some(value), ..Costs::uniform(2, UNIT) };
        assert!(matches!(replay(&plan, &costs), Err(CostError::Overlap { .. })), "{value}");
    }
}

/// The output of a pair's forward pass leaves when the pair ends, since nobody knows when it was ready.
#[test]
fn the_results_of_a_pair_leave_together() {
    let text = "placement linear:3; micro-batches 2\n0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n";
    let paired = text.replace("1F1,1B0", "(1F1;1B0)OVERLAP_F_B");
    let start_of_last = |text: &str, overlap_hides| {
        let costs = Costs { overlap_hides, ..Costs::uniform(3, UNIT) };
        let timeline = replay(&checked(text, 2), &costs).expect("costs fit");
        timeline.rank(PipeRank(2)).expect("a rank").spans[2].start_s
    };
    assert_eq!(start_of_last(text, Some(1.0)), 5.0);
    // The pair waits for the gradient at 5 and takes two units.
    assert_eq!(start_of_last(&paired, Some(1.0)), 7.0);
}

/// Overlap shortens DualPipe and DualPipeV by what it hides, as their formula says: FB is what a pair takes.
#[test]
fn overlap_is_in_the_formula_of_dual_pipe() {
    for (schedule, n_ranks, n_micro_batches, n_before) in
        [(Schedule::DualPipe, 4, 8, 1.0), (Schedule::DualPipe, 8, 20, 3.0), (Schedule::DualPipeV, 4, 10, 3.0)]
    {
        let plan = schedule.plan(Shape { n_ranks, n_micro_batches }).expect("a plan");
        let plan = check_plan(&plan, Capacity(8)).expect("a sound plan");
        for share in [0.0, 0.25, 0.5, 1.0] {
            let costs =
                Costs { overlap_hides: Some(share), ..Costs::uniform(plan.placement().n_stages(), UNIT) };
            let timeline = replay(&plan, &costs).expect("costs fit");
            let expected = n_before * (3.0 - share + 2.0 - 3.0);
            // Ranks near the ends have fewer pairs, so more work: the formula is that of the one with the most.
            let idle_s = (0..n_ranks).map(|rank| timeline.idle_s(PipeRank(rank)));
            let found = idle_s.fold(0.0, f64::max);
            assert!((found - expected).abs() < 1e-9, "{schedule} {share}: {found} not {expected}");
        }
    }
}

/// The bubble by the busiest rank leaves out what other ranks have less to do; the mean idle share counts it.
#[test]
fn idle_shares_are_by_the_busiest_rank_or_the_mean() {
    let mut costs = Costs::uniform(2, UNIT);
    let plan = checked("placement linear:2; micro-batches 1\n0F0,0B0\n1F0,1B0\n", 1);
    let even = replay(&plan, &costs).expect("costs fit");
    assert_eq!((even.bubble_wall_share(), even.idle_share_mean()), (0.5, 0.5));
    costs.stages[1] = StageCosts { forward_s: 4.0, input_grad_s: 4.0, weight_grad_s: 4.0, ..UNIT };
    let uneven = replay(&plan, &costs).expect("costs fit");
    assert_eq!(uneven.makespan_s(), 15.0);
    // Rank 1 is busy for 12 of 15, rank 0 for 3.
    assert!((uneven.bubble_wall_share() - 0.2).abs() < 1e-12);
    assert!((uneven.idle_share_mean() - 0.5).abs() < 1e-12);
}

/// Two holders of a stage sum its gradients when the later of them is ready.
#[test]
fn holders_of_a_stage_wait_for_each_other() {
    let text = "placement bidirectional:2; micro-batches 1\n0F0,0B0\n1F0,1B0\n";
    let costs = Costs { reduce_copies_s: 0.5, optimizer_s: 1.0, ..Costs::uniform(2, UNIT) };
    let timeline = replay(&checked(text, 1), &costs).expect("costs fit");
    // Rank 1 is done at 4, rank 0 at 6; then both sum twice, for either stage.
    for rank in timeline.ranks() {
        let ends: Vec<f64> = rank.spans.iter().rev().take(3).map(|span| span.end_s).collect();
        assert_eq!(ends, [8.0, 7.0, 6.5]);
    }
    let unset = Costs { reduce_copies_s: f64::NAN, ..Costs::uniform(2, UNIT) };
    assert!(matches!(replay(&checked(text, 1), &unset), Err(CostError::EndTime { .. })));
}

/// Along the critical path every span waits for the one before it, and the path covers the whole time when
/// messages take none.
#[test]
fn the_critical_path_is_as_long_as_the_whole() {
    for schedule in Schedule::ALL {
        for (n_ranks, n_micro_batches) in [(1, 1), (2, 4), (4, 8), (3, 7)] {
            let plan = schedule.plan(Shape { n_ranks, n_micro_batches }).expect("a plan");
            for capacity in [0, 1, 100] {
                let Ok(plan) = check_plan(&plan, Capacity(capacity)) else { continue };
                let costs = Costs::uniform(plan.placement().n_stages(), UNIT);
                let timeline = replay(&plan, &costs).expect("costs fit");
                let path = timeline.critical_path();
                let spans: Vec<_> = path.iter().map(|&id| timeline.span(id).expect("a span")).collect();
                assert!(spans.windows(2).all(|pair| pair[0].end_s == pair[1].start_s), "{schedule}");
                assert_eq!(spans.first().map(|span| span.start_s), Some(0.0), "{schedule}");
                assert_eq!(spans.last().map(|span| span.end_s), Some(timeline.makespan_s()), "{schedule}");
            }
        }
    }
}

#[test]
fn costs_that_make_no_sense_are_refused() {
    let plan = checked(FORWARD, 1);
    let with = |change: fn(&mut Costs)| {
        let mut costs = Costs::uniform(2, UNIT);
        change(&mut costs);
        replay(&plan, &costs).map(|_| ())
    };
    assert_eq!(with(|costs| costs.stages.truncate(1)), Err(CostError::Stages { n_costs: 1, n_stages: 2 }));
    assert!(matches!(with(|costs| costs.stages[1].forward_s = f64::NAN), Err(CostError::Time { .. })));
    assert_eq!(with(|costs| costs.optimizer_s = -1.0), Err(CostError::EndTime { value: -1.0 }));
    assert_eq!(with(|costs| costs.link.latency_s = -2.0), Err(CostError::Latency { value: -2.0 }));
    assert_eq!(with(|costs| costs.link.bytes_per_s = Some(0.0)), Err(CostError::Bandwidth { value: 0.0 }));
}
