//! A corpus of broken plans, each with the error that it must meet.

use brigade_schedule::{
    Action, Capacity, CheckError, Compute, Envelope, LowerError, MicroBatch, Missing, PipeRank, Plan, Stage,
    check_plan,
};

fn error_at(capacity: Capacity, text: &str) -> CheckError {
    let plan: Plan = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    match check_plan(&plan, capacity) {
        Ok(checked) => panic!("passed: {checked}"),
        Err(error) => error,
    }
}

fn lower_error(text: &str) -> LowerError {
    match error_at(Capacity(4), text) {
        CheckError::Lower(error) => error,
        other => panic!("expected an error of lowering, found {other}"),
    }
}

fn action(text: &str) -> Action {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn duplicated_forward() {
    let error = lower_error("placement linear:1; micro-batches 1\n0F0,0F0,0B0\n");
    let expected = LowerError::Repeated { rank: PipeRank(0), position: 1, action: action("0F0") };
    assert_eq!(error, expected);
}

#[test]
fn both_whole_and_split_backward() {
    let error = lower_error("placement linear:1; micro-batches 1\n0F0,0B0,0I0,0W0\n");
    let expected = LowerError::Repeated { rank: PipeRank(0), position: 2, action: action("0I0") };
    assert_eq!(error, expected);
}

#[test]
fn missing_backward() {
    let error = error_at(Capacity(1), "placement linear:1; micro-batches 2\n0F0,0B0,0F1\n");
    let expected = CheckError::Missing {
        rank: PipeRank(0),
        stage: Stage(0),
        micro_batch: MicroBatch(1),
        what: Missing::Backward,
    };
    assert_eq!(error, expected);
}

#[test]
fn missing_forward_of_the_previous_stage() {
    let error = lower_error("placement linear:2; micro-batches 1\n\n1F0,1B0\n");
    let expected = LowerError::NeverSent {
        rank: PipeRank(1),
        position: 0,
        action: action("1F0"),
        producer: Compute::forward(Stage(0), MicroBatch(0)),
        from: PipeRank(0),
    };
    assert_eq!(error, expected);
}

#[test]
fn weight_gradient_before_input_gradient() {
    let error = lower_error("placement linear:1; micro-batches 1\n0F0,0W0,0I0\n");
    let expected =
        LowerError::TooEarly { rank: PipeRank(0), position: 1, action: action("0W0"), needs: action("0I0") };
    assert_eq!(error, expected);
}

#[test]
fn stage_on_the_wrong_rank() {
    let error = lower_error("placement linear:2; micro-batches 1\n1F0,1B0\n0F0,0B0\n");
    let expected =
        LowerError::WrongRank { rank: PipeRank(0), position: 0, action: action("1F0"), owner: PipeRank(1) };
    assert_eq!(error, expected);
}

#[test]
fn receive_without_send() {
    let text = "placement linear:2; micro-batches 1\n0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    match error_at(Capacity(1), text) {
        CheckError::Deadlock { pending, cycle } => {
            assert_eq!((pending.len(), cycle.len()), (2, 2));
        }
        other => panic!("expected a deadlock, found {other}"),
    }
}

#[test]
fn send_without_receive() {
    let text = "placement linear:2; micro-batches 1\n\
                0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1SEND_B0\n";
    let expected = LowerError::Repeated { rank: PipeRank(1), position: 4, action: action("1SEND_B0") };
    assert_eq!(lower_error(text), expected);
}

#[test]
fn sends_in_another_order_than_receives() {
    let text = "placement linear:2; micro-batches 2\n\
                0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n\
                1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
    match error_at(Capacity(2), text) {
        CheckError::MessageOrder { rank: PipeRank(1), position: 0, expected, found, .. } => {
            let to = Stage(1);
            assert_eq!(expected, Envelope::Activation { to, micro_batch: MicroBatch(0) });
            assert_eq!(found, Envelope::Activation { to, micro_batch: MicroBatch(1) });
        }
        other => panic!("expected a message out of order, found {other}"),
    }
}

#[test]
fn one_f_one_b_with_eager_sends_deadlocks_at_rendezvous() {
    // Rank 0 offers the activation of micro-batch 2 while rank 1 offers the gradient of micro-batch 0.
    let text = "placement linear:2; micro-batches 3\n0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n";
    match error_at(Capacity::RENDEZVOUS, text) {
        CheckError::Deadlock { cycle, pending } => {
            assert_eq!(cycle, [PipeRank(0), PipeRank(1)]);
            assert_eq!(pending.len(), 2);
        }
        other => panic!("expected a deadlock, found {other}"),
    }
    let plan: Plan = text.parse().expect("a plan");
    assert!(check_plan(&plan, Capacity(1)).is_ok());
}

/// In a bidirectional placement even micro-batches go down and odd ones up.
#[test]
fn a_micro_batch_against_its_direction() {
    let error = lower_error("placement bidirectional:2; micro-batches 2\n0F0,0F1\n1F0,1F1\n");
    let expected =
        LowerError::WrongRank { rank: PipeRank(0), position: 1, action: action("0F1"), owner: PipeRank(1) };
    assert_eq!(error, expected);
    let sound = "placement bidirectional:2; micro-batches 2\n0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n";
    assert!(check_plan(&sound.parse().expect("a plan"), Capacity(1)).is_ok());
}
