//! Every schedule is sound over links of the capacity that it declares.

use brigade_schedule::{Capacity, CheckError, LinkCapacity, Schedule, Shape, check, least_capacity, lower};

use crate::formulas::{plans, ranks, shapes};

/// At every small size: it passes there, and not below where the declared capacity is the least.
#[test]
fn every_schedule_is_sound_at_the_capacity_that_it_declares() {
    for shape in shapes() {
        for (schedule, plan) in plans(shape) {
            let program = lower(&plan).unwrap_or_else(|error| panic!("{schedule} {shape:?}: {error}"));
            let LinkCapacity { capacity, is_least } = schedule.link_capacity(shape);
            if let Some(below) = capacity.0.checked_sub(1).filter(|_| is_least) {
                let error = check(program.clone(), Capacity(below)).expect_err("a lower capacity");
                assert!(matches!(error, CheckError::Deadlock { .. }), "{schedule} {shape:?}: {error}");
            }
            let plan = check(program, capacity)
                .unwrap_or_else(|error| panic!("{schedule} {shape:?} at {capacity:?}: {error}"));
            let n_visits = shape.n_micro_batches * plan.placement().stages_per_rank();
            for rank in ranks(shape) {
                assert!((1..=n_visits).contains(&plan.in_flight(rank)));
                assert!((1..=n_visits).contains(&plan.n_buffers(rank)), "{schedule} {shape:?}");
            }
        }
    }
}

/// The closed forms hold at larger sizes, and for more stages a rank, too.
#[test]
fn declared_capacities_are_the_least_ones_at_larger_sizes() {
    let closed = Schedule::ALL.into_iter().chain([
        Schedule::Interleaved { n_virtual: 4 },
        Schedule::Interleaved { n_virtual: 5 },
        Schedule::LoopedBfs { n_virtual: 4 },
    ]);
    for schedule in closed {
        for (n_ranks, n_micro_batches) in [(2, 41), (4, 31), (9, 17), (10, 21), (12, 49), (13, 70), (16, 64)]
        {
            let shape = Shape { n_ranks, n_micro_batches };
            let declared = schedule.link_capacity(shape);
            if !declared.is_least {
                continue;
            }
            let plan = schedule.plan(shape).expect("a plan");
            let least = least_capacity(&lower(&plan).expect("instructions")).expect("a sound program");
            assert_eq!(declared.capacity, least, "{schedule} {shape:?}");
        }
    }
}

#[test]
fn empty_shapes_declare_something() {
    for schedule in Schedule::ALL {
        for (n_ranks, n_micro_batches) in [(0, 0), (0, 4), (4, 0), (u32::MAX, u32::MAX), (2, u32::MAX)] {
            let _ = schedule.link_capacity(Shape { n_ranks, n_micro_batches });
        }
    }
}
