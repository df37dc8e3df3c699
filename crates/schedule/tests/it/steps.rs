//! Steps that plans may place themselves: loads, markers and the end of a batch.

use brigade_schedule::{
    Action, Capacity, CheckError, CheckedPlan, CostError, Costs, Instruction, LowerError, MarkerCosts,
    MarkerKind, MicroBatch, Missing, Need, PipeRank, Plan, Stage, Timeline, check_plan, replay,
};

use crate::formulas::UNIT;

fn plan(text: &str) -> Plan {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn checked(text: &str) -> CheckedPlan {
    check_plan(&plan(text), Capacity(4)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> CheckError {
    check_plan(&plan(text), Capacity(4)).map(|plan| plan.to_string()).expect_err(text)
}

fn lower_error(text: &str) -> LowerError {
    match error(text) {
        CheckError::Lower(error) => error,
        other => panic!("expected an error of lowering, found {other}"),
    }
}

fn names(plan: &CheckedPlan, rank: u32) -> Vec<String> {
    plan.instructions(PipeRank(rank)).iter().map(ToString::to_string).collect()
}

fn timeline(plan: &CheckedPlan, costs: impl Fn(&mut Costs)) -> Timeline {
    let mut all = Costs::uniform(plan.placement().n_stages(), UNIT);
    costs(&mut all);
    replay(plan, &all).expect("costs fit")
}

#[test]
fn every_action_has_a_text() {
    for text in [
        "0LOAD3",
        "2REDUCE_COPIES",
        "REDUCE_TIED_GRADS",
        "REDUCE_GRADS",
        "OPTIMIZER_STEP",
        "1UNSHARD",
        "1RESHARD",
        "1REDUCE_GRAD",
        "1WAIT_REDUCE_GRAD",
        "1WAIT_SEND_F0",
        "1RECV_B2",
    ] {
        let action: Action = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(action.to_string(), text);
        let json = serde_json::to_string(&action).expect("to JSON");
        assert_eq!(serde_json::from_str::<Action>(&json).expect("from JSON"), action);
    }
    for wrong in ["LOAD3", "0LOAD", "0OPTIMIZER_STEP", "OPTIMIZER_STEP1", "REDUCE_COPIES", "0REDUCE_COPIES2"]
    {
        assert!(wrong.parse::<Action>().is_err(), "{wrong}");
    }
}

/// Loads and the end of a batch stand where the plan has them, and none is added.
#[test]
fn planned_loads_and_ends_stay_where_they_are() {
    let text = "placement linear:2; micro-batches 2\n\
                0LOAD0,0LOAD1,0F0,0F1,0B0,0B1,REDUCE_GRADS,OPTIMIZER_STEP\n\
                1LOAD1,1F0,1B0,1F1,1B1,REDUCE_GRADS,OPTIMIZER_STEP\n";
    let missing = lower_error(text);
    let (rank, action, needs) =
        (PipeRank(1), "1F0".parse().expect("an action"), "1LOAD0".parse().expect("an action"));
    assert_eq!(missing, LowerError::TooEarly { rank, position: 1, action, needs });
    let plan = checked(&text.replace("1LOAD1,1F0", "1LOAD1,1LOAD0,1F0"));
    let first = ["LoadMicroBatch(buffer_id=0)", "LoadMicroBatch(buffer_id=1)", "ForwardPass(buffer_id=0)"];
    assert_eq!(names(&plan, 0)[..3], first);
    assert_eq!(names(&plan, 0)[9..], ["BackwardPass(buffer_id=1)", "ReduceGrads()", "OptimizerStep()"]);
    // Targets wait in the buffers that the inputs then arrive in.
    let second =
        ["LoadMicroBatch(buffer_id=0)", "LoadMicroBatch(buffer_id=1)", "RecvActivation(buffer_id=1)"];
    assert_eq!(names(&plan, 1)[..3], second);
    assert_eq!(plan.plan().to_string().parse::<Plan>().as_ref(), Ok(plan.plan()));
}

#[test]
fn loads_are_for_the_ends_of_the_pipeline_and_once() {
    let middle = "placement linear:3; micro-batches 1\n0LOAD0,0F0,0B0\n1LOAD0,1F0,1B0\n2LOAD0,2F0,2B0\n";
    let load = Action::Load { stage: Stage(1), micro_batch: MicroBatch(0) };
    let expected = LowerError::NoData { rank: PipeRank(1), position: 0, action: load, n_stages: 3 };
    assert_eq!(lower_error(middle), expected);
    let twice = "placement linear:1; micro-batches 1\n0LOAD0,0LOAD0,0F0,0B0\n";
    assert!(matches!(lower_error(twice), LowerError::Repeated { position: 1, .. }));
}

#[test]
fn planned_ends_are_the_same_on_all_ranks_and_after_all_work() {
    let missing =
        "placement linear:2; micro-batches 1\n0F0,0B0,REDUCE_GRADS,OPTIMIZER_STEP\n1F0,1B0,OPTIMIZER_STEP\n";
    assert!(matches!(error(missing), CheckError::Collectives { rank: PipeRank(1), .. }));
    let early = "placement linear:1; micro-batches 2\n0F0,0B0,OPTIMIZER_STEP,0F1,0B1\n";
    assert!(matches!(error(early), CheckError::Missing { micro_batch: MicroBatch(1), .. }));
    let elsewhere = "placement bidirectional:4; micro-batches 1\n\
                     0F0,0B0,1REDUCE_COPIES\n1F0,1B0\n2F0,2B0\n3F0,3B0\n";
    assert!(matches!(lower_error(elsewhere), LowerError::WrongRank { owner: PipeRank(1), .. }));
    // A sum over copies may come as soon as its stage is done, where both holders have it there.
    let soon = "placement bidirectional:2; micro-batches 2\n\
                0F0,1F1,1B1,1REDUCE_COPIES,0B0,0REDUCE_COPIES,OPTIMIZER_STEP\n\
                0F1,1F0,1B0,1REDUCE_COPIES,0B1,0REDUCE_COPIES,OPTIMIZER_STEP\n";
    let plan = checked(soon);
    let timeline = timeline(&plan, |costs| costs.reduce_copies_s = 1.0);
    assert_eq!(timeline.makespan_s(), 8.0);
    // One rank wants to sum before it sends what the other one needs first.
    let crossed = "placement bidirectional:2; micro-batches 2\n\
                   0F0,1F1,1B1,1REDUCE_COPIES,0B0,0REDUCE_COPIES\n\
                   0F1,1F0,1B0,0B1,0REDUCE_COPIES,1REDUCE_COPIES\n";
    assert!(matches!(error(crossed), CheckError::Deadlock { .. }));
}

const MARKED: &str = "placement linear:1; micro-batches 2\n\
                      0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0I0,0I1,0RESHARD,0W0,0W1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n";

#[test]
fn markers_pass_into_the_instructions() {
    let plan = checked(MARKED);
    let markers: Vec<(MarkerKind, Stage)> = plan
        .instructions(PipeRank(0))
        .iter()
        .filter_map(|step| match *step {
            Instruction::Marker { kind, stage } => Some((kind, stage)),
            _ => None,
        })
        .collect();
    use MarkerKind::{ReduceGrad, Reshard, Unshard, WaitReduceGrad};
    let kinds = [Unshard, Reshard, Unshard, Reshard, ReduceGrad, WaitReduceGrad];
    assert!(markers.into_iter().eq(kinds.map(|kind| (kind, Stage(0)))));
    assert_eq!(names(&plan, 0)[0], "Unshard(stage=0)");
}

#[test]
fn markers_in_a_wrong_place_are_found() {
    let with = |from: &str, to: &str| error(&MARKED.replacen(from, to, 1));
    // A pass of weights that are let go of.
    let unused = with("0RESHARD,0UNSHARD,0I0", "0RESHARD,0I0,0UNSHARD");
    assert!(matches!(unused, CheckError::TooEarly { needs: Need::Unshard, .. }), "{unused}");
    let never = with("0UNSHARD,0F0", "0F0");
    assert!(matches!(never, CheckError::TooEarly { needs: Need::Unshard, .. }), "{never}");
    assert!(matches!(with("0UNSHARD", "0UNSHARD,0UNSHARD"), CheckError::Repeated { position: 1, .. }));
    let twice = with("0RESHARD", "0RESHARD,0RESHARD");
    assert!(matches!(twice, CheckError::TooEarly { needs: Need::Unshard, .. }), "{twice}");
    // Gradients that are not all there.
    let early = with("0W1,0REDUCE_GRAD", "0REDUCE_GRAD,0W1");
    let (rank, stage, micro_batch) = (PipeRank(0), Stage(0), MicroBatch(1));
    assert_eq!(early, CheckError::Missing { rank, stage, micro_batch, what: Missing::WeightGrad });
    assert!(matches!(with("0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD"), CheckError::Repeated { .. }));
    let unbegun = with("0REDUCE_GRAD,0WAIT", "0WAIT");
    assert!(matches!(unbegun, CheckError::TooEarly { needs: Need::ReduceGrad, .. }), "{unbegun}");
    let forward_only = error("placement linear:1; micro-batches 1\n0F0,0REDUCE_GRAD\n");
    assert!(matches!(forward_only, CheckError::Collective { .. }), "{forward_only}");
    let elsewhere = lower_error("placement linear:2; micro-batches 1\n0F0,1UNSHARD,0B0\n1F0,1B0\n");
    assert!(
        matches!(elsewhere, LowerError::WrongRank { owner: PipeRank(1), position: 1, .. }),
        "{elsewhere}"
    );
    let nowhere = lower_error("placement linear:1; micro-batches 1\n7UNSHARD,0F0,0B0\n");
    assert!(matches!(nowhere, LowerError::NoSuchStage { stage: Stage(7), .. }), "{nowhere}");
}

#[test]
fn markers_and_loads_take_the_time_that_they_cost_and_are_drawn_then() {
    let plan = checked(MARKED);
    assert_eq!(timeline(&plan, |_| ()).makespan_s(), 6.0);
    let costs = |costs: &mut Costs| {
        costs.load_s = 0.25;
        costs.markers =
            MarkerCosts { unshard_s: 1.0, reshard_s: 2.0, reduce_grad_s: 4.0, wait_reduce_grad_s: 8.0 };
    };
    let timeline = timeline(&plan, costs);
    assert_eq!(timeline.makespan_s(), 6.0 + 2.0 * 0.25 + 2.0 * (1.0 + 2.0) + 4.0 + 8.0);
    assert!(timeline.to_text().contains("unshard"));
    assert!(timeline.to_svg().contains("Unshard"));
    assert!(timeline.to_chrome_trace().contains("\"cat\":\"WaitReduceGrad\""));
    assert!(timeline.to_csv().contains("0,Reshard,0,,"));
    let mut costs = Costs::uniform(1, UNIT);
    costs.markers.unshard_s = -1.0;
    assert_eq!(replay(&plan, &costs), Err(CostError::EndTime { value: -1.0 }));
}

/// A plan that gathers one stage leaves the others alone.
#[test]
fn stages_without_markers_need_none() {
    let text = "placement looped:1x2; micro-batches 1\n1UNSHARD,0F0,1F0,1B0,1RESHARD,0B0\n";
    assert_eq!(timeline(&checked(text), |_| ()).makespan_s(), 6.0);
}
