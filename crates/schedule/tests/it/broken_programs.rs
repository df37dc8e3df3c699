//! A corpus of broken instruction streams, each with its error; and every small change to sound ones.

use brigade_schedule::{
    BufferId, Capacity, CheckError, Instruction, LoadPart, MarkerKind, MicroBatch, Missing, Need, PipeRank,
    Placement, Program, Schedule, Shape, Stage, check, lower,
};
use proptest::prelude::*;

fn program(schedule: Schedule, n_ranks: u32, n_micro_batches: u32) -> Program {
    let plan = schedule.plan(Shape { n_ranks, n_micro_batches }).expect("a plan");
    lower(&plan).expect("instructions")
}

/// Checks a program after a change to its streams.
fn changed(of: &Program, change: impl FnOnce(&mut Vec<Vec<Instruction>>)) -> Result<(), CheckError> {
    let mut streams = of.streams().to_vec();
    change(&mut streams);
    let plan = of.plan();
    let program = Program::new(plan.placement(), plan.n_micro_batches(), streams).expect("a program");
    check(program, Capacity(8)).map(|_| ())
}

fn leave_out(streams: &mut [Vec<Instruction>], rank: usize, at: usize) {
    streams[rank].remove(at);
}

fn position(of: &Program, rank: u32, name: &str, micro_batch: u32) -> usize {
    let is_it = |step: &Instruction| {
        step.name() == name && step.visit().is_none_or(|(_, found, _)| found == MicroBatch(micro_batch))
    };
    of.stream(PipeRank(rank)).iter().position(is_it).expect("such a step")
}

#[test]
fn a_buffer_is_not_reused_while_it_is_needed() {
    // 1F1B holds two micro-batches on rank 0; both are put into buffer 0.
    let sound = program(Schedule::OneFOneB, 2, 2);
    let error = changed(&sound, |streams| {
        for step in &mut streams[0] {
            match step {
                Instruction::LoadMicroBatch { buffer, .. }
                | Instruction::ForwardPass { buffer, .. }
                | Instruction::SendActivation { buffer, .. }
                | Instruction::RecvGrad { buffer, .. }
                | Instruction::BackwardPass { buffer, .. } => *buffer = BufferId(0),
                _ => {}
            }
        }
    });
    let position = position(&sound, 0, "LoadMicroBatch", 1);
    let instruction = Instruction::LoadMicroBatch {
        stage: Stage(0),
        micro_batch: MicroBatch(1),
        buffer: BufferId(0),
        part: LoadPart::Inputs,
    };
    let (holder, holder_stage) = (MicroBatch(0), Stage(0));
    let rank = PipeRank(0);
    assert_eq!(error, Err(CheckError::BufferLive { rank, position, instruction, holder, holder_stage }));
}

#[test]
fn a_missing_load_is_found() {
    let sound = program(Schedule::OneFOneB, 2, 1);
    let error = changed(&sound, |streams| leave_out(streams, 1, position(&sound, 1, "LoadMicroBatch", 0)));
    assert!(
        matches!(error, Err(CheckError::TooEarly { rank: PipeRank(1), needs: Need::Targets, .. })),
        "{error:?}"
    );
    let error = changed(&sound, |streams| leave_out(streams, 0, 0));
    assert!(
        matches!(error, Err(CheckError::TooEarly { rank: PipeRank(0), needs: Need::Input, .. })),
        "{error:?}"
    );
}

#[test]
fn a_missing_send_leaves_its_receiver_alone() {
    let sound = program(Schedule::OneFOneB, 2, 1);
    let send = position(&sound, 1, "SendGrad", 0);
    let error = changed(&sound, |streams| {
        streams[1].remove(send);
    });
    let expected = CheckError::Missing {
        rank: PipeRank(1),
        stage: Stage(1),
        micro_batch: MicroBatch(0),
        what: Missing::Grad,
    };
    assert_eq!(error, Err(expected));
}

#[test]
fn a_rank_that_waits_for_one_that_ended_is_named() {
    // Forward-only: rank 0 forgets both its last forward pass and its send; rank 1 still receives.
    let sound = program(Schedule::ForwardOnly, 2, 2);
    let error = changed(&sound, |streams| streams[0].truncate(3));
    match error {
        Err(CheckError::NoCounterpart { pending }) => {
            assert_eq!((pending.rank, pending.waits_for), (PipeRank(1), PipeRank(0)));
        }
        other => panic!("expected a rank without counterpart, found {other:?}"),
    }
}

#[test]
fn ranks_must_end_a_batch_alike() {
    let sound = program(Schedule::OneFOneB, 2, 1);
    let error = changed(&sound, |streams| {
        streams[1].pop();
    });
    assert!(matches!(error, Err(CheckError::Collectives { rank: PipeRank(1), .. })), "{error:?}");
    let error = changed(&sound, |streams| {
        let n = streams[0].len();
        streams[0].swap(n - 1, n - 2);
    });
    assert!(matches!(error, Err(CheckError::Collectives { .. })), "{error:?}");
    let error = changed(&sound, |streams| streams[0].insert(0, Instruction::ReduceGrads));
    assert!(matches!(error, Err(CheckError::Missing { .. })), "{error:?}");
}

#[test]
fn a_hand_over_needs_its_neighbour_on_the_same_rank() {
    let sound = program(Schedule::ZbV, 2, 1);
    let at = position(&sound, 1, "HandOverActivation", 0);
    let error = changed(&sound, |streams| {
        if let Instruction::HandOverActivation { stage, .. } = &mut streams[1][at] {
            *stage = Stage(2);
        }
    });
    assert!(matches!(error, Err(CheckError::NoNeighbour { rank: PipeRank(1), .. })), "{error:?}");
}

#[test]
fn a_huge_buffer_number_is_refused_without_reserving_it() {
    let sound = program(Schedule::OneFOneB, 1, 1);
    let error = changed(&sound, |streams| {
        if let Instruction::LoadMicroBatch { buffer, .. } = &mut streams[0][0] {
            *buffer = BufferId(u32::MAX);
        }
    });
    assert!(matches!(error, Err(CheckError::NoSuchBuffer { .. })), "{error:?}");
}

/// Both ranks that hold a stage sum its gradients, in the same order, once each of them has all of its own.
#[test]
fn the_copies_of_a_stage_are_summed_by_both_ranks_in_one_order() {
    let sound = program(Schedule::DualPipe, 4, 8);
    let at = |rank: usize, stage: u32| {
        let step = Instruction::ReduceCopies { stage: Stage(stage) };
        sound.streams()[rank].iter().position(|&found| found == step).expect("such a step")
    };
    for (rank, stages) in [(0, [0, 3]), (1, [1, 2]), (2, [1, 2]), (3, [0, 3])] {
        let found = sound.streams()[rank].iter().filter_map(|step| match step {
            Instruction::ReduceCopies { stage } => Some(stage.0),
            _ => None,
        });
        assert!(found.eq(stages));
    }
    let error = changed(&sound, |streams| leave_out(streams, 1, at(1, 2)));
    assert_eq!(error, Err(CheckError::CopiesApart { rank: PipeRank(1), stage: Stage(2) }));
    let error = changed(&sound, |streams| streams[0].swap(at(0, 0), at(0, 3)));
    match error {
        Err(CheckError::Deadlock { cycle, pending }) => {
            assert_eq!(cycle, [PipeRank(0), PipeRank(3)]);
            let text = pending[0].to_string();
            assert!(text.contains("ReduceCopies(stage=3) waits for rank 3"), "{text}");
        }
        other => panic!("expected a deadlock, found {other:?}"),
    }
    let error = changed(&sound, |streams| {
        let step = streams[0].remove(at(0, 0));
        streams[0].insert(0, step);
    });
    assert!(matches!(error, Err(CheckError::Missing { rank: PipeRank(0), .. })), "{error:?}");
    let linear = program(Schedule::OneFOneB, 2, 1);
    let step = Instruction::ReduceCopies { stage: Stage(0) };
    let error = changed(&linear, |streams| streams[0].insert(0, step));
    assert!(matches!(error, Err(CheckError::NoOtherHolder { rank: PipeRank(0), .. })), "{error:?}");
}

#[test]
fn a_micro_batch_runs_on_the_holder_in_its_direction() {
    let sound = program(Schedule::DualPipe, 2, 2);
    let error = changed(&sound, |streams| {
        if let Instruction::LoadMicroBatch { micro_batch, .. } = &mut streams[0][0] {
            micro_batch.0 = 1;
        }
    });
    assert!(matches!(error, Err(CheckError::WrongDirection { owner: PipeRank(1), .. })), "{error:?}");
}

/// Leaving out, repeating, renaming the buffer of, or turning to another peer any single instruction makes any
/// sound program unsound.
#[test]
fn every_single_change_is_found() {
    for schedule in Schedule::ALL {
        for (n_ranks, n_micro_batches) in [(1, 2), (2, 1), (2, 4), (3, 6)] {
            let plan = schedule.plan(Shape { n_ranks, n_micro_batches }).expect("a plan");
            let sound = lower(&plan).expect("instructions");
            assert_eq!(changed(&sound, |_| ()), Ok(()), "{schedule}");
            for (rank, stream) in sound.streams().iter().enumerate() {
                for (at, &step) in stream.iter().enumerate() {
                    let what =
                        || format!("{schedule} p {n_ranks} m {n_micro_batches} rank {rank} {at}: {step}");
                    let without = changed(&sound, |streams| leave_out(streams, rank, at));
                    // The one rank of a pipeline may well end a batch in its own way.
                    let alone = n_ranks == 1 && step.is_collective();
                    assert!(without.is_err() || alone, "without {}", what());
                    let twice = changed(&sound, |streams| streams[rank].insert(at, step));
                    assert!(twice.is_err(), "twice {}", what());
                    if let Some(renamed) = other_buffer(step) {
                        let error = changed(&sound, |streams| streams[rank][at] = renamed);
                        assert!(error.is_err(), "other buffer in {}", what());
                    }
                    if let Some(turned) = other_peer(step, n_ranks) {
                        let error = changed(&sound, |streams| streams[rank][at] = turned);
                        assert!(error.is_err(), "other peer in {}", what());
                    }
                }
            }
        }
    }
}

fn other_buffer(mut step: Instruction) -> Option<Instruction> {
    match &mut step {
        Instruction::LoadMicroBatch { buffer, .. }
        | Instruction::ForwardPass { buffer, .. }
        | Instruction::BackwardPass { buffer, .. }
        | Instruction::InputGrad { buffer, .. }
        | Instruction::WeightGrad { buffer, .. }
        | Instruction::SendActivation { buffer, .. }
        | Instruction::RecvActivation { buffer, .. }
        | Instruction::SendGrad { buffer, .. }
        | Instruction::RecvGrad { buffer, .. }
        | Instruction::HandOverActivation { buffer, .. }
        | Instruction::HandOverGrad { buffer, .. } => buffer.0 += 1,
        Instruction::Marker { .. }
        | Instruction::ReduceCopies { .. }
        | Instruction::ReduceTiedGrads
        | Instruction::ReduceGrads
        | Instruction::OptimizerStep => return None,
    }
    Some(step)
}

fn other_peer(mut step: Instruction, n_ranks: u32) -> Option<Instruction> {
    match &mut step {
        Instruction::SendActivation { to: peer, .. }
        | Instruction::SendGrad { to: peer, .. }
        | Instruction::RecvActivation { from: peer, .. }
        | Instruction::RecvGrad { from: peer, .. } => peer.0 = (peer.0 + 1) % n_ranks,
        _ => return None,
    }
    Some(step)
}

fn any_instruction() -> impl Strategy<Value = Instruction> {
    (0..17_u32, 0..5_u32, 0..3_u32, 0..4_u32, 0..3_u32).prop_map(
        |(kind, stage, micro_batch, buffer, peer)| {
            let (stage, micro_batch, buffer) = (Stage(stage), MicroBatch(micro_batch), BufferId(buffer));
            let (to, from, to_buffer) = (PipeRank(peer), PipeRank(peer), BufferId(peer));
            match kind {
                0 => Instruction::LoadMicroBatch { stage, micro_batch, buffer, part: LoadPart::Inputs },
                1 => Instruction::ForwardPass { stage, micro_batch, buffer },
                2 => Instruction::BackwardPass { stage, micro_batch, buffer },
                3 => Instruction::InputGrad { stage, micro_batch, buffer },
                4 => Instruction::WeightGrad { stage, micro_batch, buffer },
                5 => Instruction::SendActivation { stage, micro_batch, buffer, to },
                6 => Instruction::RecvActivation { stage, micro_batch, buffer, from },
                7 => Instruction::SendGrad { stage, micro_batch, buffer, to },
                8 => Instruction::RecvGrad { stage, micro_batch, buffer, from },
                9 => Instruction::HandOverActivation { stage, micro_batch, buffer, to_buffer },
                10 => Instruction::HandOverGrad { stage, micro_batch, buffer, to_buffer },
                11 => Instruction::LoadMicroBatch { stage, micro_batch, buffer, part: LoadPart::Targets },
                12 => Instruction::ReduceGrads,
                13 => Instruction::ReduceCopies { stage },
                14 => Instruction::Marker { kind: MarkerKind::Unshard, stage },
                15 => Instruction::Marker { kind: MarkerKind::ReduceGrad, stage },
                _ => Instruction::OptimizerStep,
            }
        },
    )
}

proptest! {
    /// Whatever the streams are, the checker answers.
    #[test]
    fn any_program_is_answered(
        streams in prop::collection::vec(prop::collection::vec(any_instruction(), 0..12), 2),
        capacity in 0..3_u32,
        shape in 0..4_u32,
    ) {
        let placement = match shape {
            0 => Placement::linear(2),
            1 => Placement::looped(2, 2),
            2 => Placement::bidirectional(2),
            _ => Placement::v(2),
        };
        let program = Program::new(placement.expect("ranks"), 2, streams).expect("two streams");
        prop_assert!(check(program, Capacity(capacity)).is_err(), "no random stream does all the work");
    }

    /// Changes to sound programs, several at once, are answered too; and a replay of what passes ends.
    #[test]
    fn any_shuffle_is_answered(at in 0..200_usize, to in 0..200_usize, rank in 0..3_usize, capacity in 0..4_u32) {
        let sound = program(Schedule::DualPipeV, 3, 6);
        let mut streams = sound.streams().to_vec();
        let n = streams[rank].len();
        let step = streams[rank].remove(at % n);
        streams[rank].insert(to % n, step);
        let program = Program::new(sound.plan().placement(), 6, streams).expect("a program");
        if let Ok(checked) = check(program, Capacity(capacity)) {
            let costs = brigade_schedule::Costs::uniform(6, brigade_schedule::StageCosts::default());
            prop_assert!(brigade_schedule::replay(&checked, &costs).is_ok());
        }
    }
}
