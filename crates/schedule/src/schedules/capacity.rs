//! The link capacity that each schedule needs.

use super::interleaved::{first_group, n_groups};
use super::{Schedule, dual_pipe, interleaved_zb, v_half, v_min, zb_v};
use crate::check::Capacity;
use crate::shape::Shape;

/// What a schedule declares about its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkCapacity {
    /// The plan is sound over links that hold so many messages.
    pub capacity: Capacity,
    /// Whether it is sound over no less. Otherwise the capacity is a bound, and [`crate::least_capacity`] finds the
    /// least one of a plan.
    pub is_least: bool,
}

impl Schedule {
    /// The capacity of links over which the plan of this schedule for `shape` is free of deadlock.
    ///
    /// | schedule | needs |
    /// | --- | --- |
    /// | `gpipe`, `forward-only`, `looped-bfs:1` | 0: ranks may meet for each message |
    /// | `1f1b`, `zb-h1`, `zb-h2`, `interleaved:1` | 1 |
    /// | `interleaved:v` | 1 for one group of micro-batches; else 2 for two ranks, and as many more than 1 as the first group has more than `p` |
    /// | `looped-bfs:v` | `m / p`, rounded down: what rank 0 sends before it comes to its second stage, shared among the ranks |
    /// | `dual-pipe` (even `p`), `dual-pipe-v` | 1 up to `m = p + 1`, then 2 |
    /// | `interleaved-zb`, `zb-v`, `v-half`, `v-min`, `dual-pipe` (odd `p`) | at most twice the visits in flight |
    ///
    /// With one rank, or one micro-batch, no schedule needs any. The last line is a bound: an activation on a link
    /// is in flight on its sender, a gradient on its receiver, so no link ever holds more, and no sender waits.
    ///
    /// # Examples
    /// ```
    /// use brigade_schedule::{Capacity, Schedule, Shape, check_plan};
    /// let shape = Shape { n_ranks: 4, n_micro_batches: 8 };
    /// let declared = Schedule::OneFOneB.link_capacity(shape);
    /// assert_eq!((declared.capacity, declared.is_least), (Capacity(1), true));
    /// assert!(check_plan(&Schedule::OneFOneB.plan(shape)?, declared.capacity).is_ok());
    /// # Ok::<(), brigade_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn link_capacity(self, shape: Shape) -> LinkCapacity {
        let Shape { n_ranks: p, n_micro_batches: m } = shape;
        let least = |capacity| LinkCapacity { capacity: Capacity(capacity), is_least: true };
        let twice = |n: u32| LinkCapacity { capacity: Capacity(n.saturating_mul(2)), is_least: false };
        if p <= 1 || m <= 1 {
            return least(0);
        }
        match self {
            Self::GPipe | Self::ForwardOnly | Self::LoopedBfs { n_virtual: 0 | 1 } => least(0),
            Self::OneFOneB | Self::ZbH1 | Self::ZbH2 | Self::Interleaved { n_virtual: 0 | 1 } => least(1),
            Self::Interleaved { .. } if n_groups(shape) == 1 => least(1),
            Self::Interleaved { .. } if p == 2 => least(2),
            Self::Interleaved { .. } => least(first_group(shape).saturating_sub(p).saturating_add(1)),
            Self::LoopedBfs { .. } => least(m / p),
            Self::DualPipe if !dual_pipe::has_rows(shape) => twice(dual_pipe::n_in_flight(shape)),
            Self::DualPipe | Self::DualPipeV => least(if m.saturating_sub(1) <= p { 1 } else { 2 }),
            Self::InterleavedZb { n_virtual } => twice(interleaved_zb::n_in_flight(shape, n_virtual)),
            Self::ZbV => twice(zb_v::n_in_flight(shape)),
            Self::VHalf => twice(v_half::n_in_flight(shape)),
            Self::VMin => twice(v_min::n_in_flight(shape)),
        }
    }
}
