//! Rows and instructions that are read while they are made.

use brigade_schedule::{PipeRank, Schedule, ScheduleError, Shape, Stream, lower};

use crate::formulas::{plans, ranks, shapes};

/// Ten thousand ranks of a hundred thousand micro-batches: a plan of 3 thousand million cells.
const HUGE: Shape = Shape { n_ranks: 10_000, n_micro_batches: 100_000 };

/// A stream is the plan and its program, read bit by bit.
#[test]
fn streams_are_plans() {
    for shape in shapes() {
        for (schedule, plan) in plans(shape) {
            let Ok(stream) = Stream::new(schedule, shape) else { continue };
            assert_eq!(stream.placement(), plan.placement());
            let program = lower(&plan).expect("instructions");
            for rank in ranks(shape) {
                assert!(stream.row(rank).expect("a row").eq(plan.row(rank).iter().copied()));
                let instructions: Result<Vec<_>, _> = stream.instructions(rank).expect("a rank").collect();
                assert_eq!(instructions.as_deref(), Ok(program.stream(rank)), "{schedule} {shape:?}");
            }
        }
    }
}

/// All but the schedules that are searched can be streamed, and the error says so.
#[test]
fn only_searched_schedules_have_no_stream() {
    for schedule in Schedule::ALL {
        for n_ranks in [10, 11] {
            let searched = match schedule {
                Schedule::InterleavedZb { .. } | Schedule::ZbV | Schedule::VHalf | Schedule::VMin => true,
                Schedule::DualPipe => n_ranks == 11,
                _ => false,
            };
            let stream = Stream::new(schedule, Shape { n_ranks, ..HUGE });
            assert_eq!(matches!(stream, Err(ScheduleError::NoStream { .. })), searched, "{schedule}");
            assert_eq!(stream.is_err(), searched, "{schedule}: {stream:?}");
        }
    }
}

/// A whole row is read in memory that does not grow with it.
#[test]
fn a_row_of_a_huge_plan_takes_no_memory() {
    let mut n_streamed = 0;
    for schedule in Schedule::ALL {
        let Ok(stream) = Stream::new(schedule, HUGE) else { continue };
        let rank = PipeRank(7_001);
        let n_rounds = stream.placement().n_stages() / HUGE.n_ranks;
        let (mut n_forward, mut n_cells) = (0_u32, 0_u32);
        let memory = allocation_counter::measure(|| {
            for action in stream.row(rank).expect("a row") {
                n_cells += 1;
                let forward = |compute: &brigade_schedule::Compute| {
                    compute.kind == brigade_schedule::ComputeKind::Forward
                };
                n_forward += u32::from(action.computes().any(|compute| forward(&compute)));
            }
        });
        assert_eq!(n_forward, n_rounds * HUGE.n_micro_batches, "{schedule}");
        assert!(n_cells >= n_forward, "{schedule}");
        // A weight gradient for each rank may wait.
        assert!(memory.bytes_max < 400_000, "{schedule}: {} bytes", memory.bytes_max);
        n_streamed += 1;
    }
    assert_eq!(n_streamed, 13);
}

/// Lowering on the way takes a few bytes for each micro-batch of the one rank.
#[test]
fn instructions_of_a_huge_plan_are_lowered_while_they_are_read() {
    for schedule in
        [Schedule::OneFOneB, Schedule::ZbH1, Schedule::ZbH2, Schedule::DualPipe, Schedule::DualPipeV]
    {
        let stream = Stream::new(schedule, HUGE).expect("a stream");
        let mut n_read = 0;
        let memory = allocation_counter::measure(|| {
            let instructions = stream.instructions(PipeRank(9_998)).expect("a rank");
            n_read = instructions.take(10_000).filter(Result::is_ok).count();
        });
        assert_eq!(n_read, 10_000, "{schedule}");
        let most = 16 * u64::from(stream.placement().stages_per_rank()) * u64::from(HUGE.n_micro_batches);
        assert!(memory.bytes_max < most, "{schedule}: {} bytes", memory.bytes_max);
    }
}
