//! The schedules by name, for command lines and configuration files.

use std::fmt;
use std::str::FromStr;

use super::{
    dual_pipe, dual_pipe_v, forward_only, gpipe, interleaved_one_f_one_b, interleaved_zb, looped_bfs,
    one_f_one_b, v_half, v_min, zb_h1, zb_h2, zb_v,
};
use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// A schedule with what it needs to know beyond the shape.
///
/// Its text is the name, with `:v` for the stages a rank where that is a choice: `1f1b`, `interleaved:2`.
///
/// # Examples
/// ```
/// use brigade_schedule::{Schedule, Shape};
/// let schedule: Schedule = "interleaved:2".parse()?;
/// assert_eq!(schedule, Schedule::Interleaved { n_virtual: 2 });
/// assert_eq!(schedule.plan(Shape { n_ranks: 4, n_micro_batches: 8 })?.placement().n_stages(), 8);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Schedule {
    /// `gpipe`: [`gpipe`].
    GPipe,
    /// `1f1b`: [`one_f_one_b`].
    OneFOneB,
    /// `interleaved:v`: [`interleaved_one_f_one_b`].
    Interleaved {
        /// Stages a rank.
        n_virtual: u32,
    },
    /// `looped-bfs:v`: [`looped_bfs`].
    LoopedBfs {
        /// Stages a rank.
        n_virtual: u32,
    },
    /// `zb-h1`: [`zb_h1`].
    ZbH1,
    /// `zb-h2`: [`zb_h2`].
    ZbH2,
    /// `interleaved-zb:v`: [`interleaved_zb`].
    InterleavedZb {
        /// Stages a rank.
        n_virtual: u32,
    },
    /// `zb-v`: [`zb_v`].
    ZbV,
    /// `v-half`: [`v_half`].
    VHalf,
    /// `v-min`: [`v_min`].
    VMin,
    /// `dual-pipe`: [`dual_pipe`].
    DualPipe,
    /// `dual-pipe-v`: [`dual_pipe_v`].
    DualPipeV,
    /// `forward-only`: [`forward_only`].
    ForwardOnly,
}

impl Schedule {
    /// Every schedule, those with a choice of stages a rank at 1, 2 and 3.
    pub const ALL: [Self; 19] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved { n_virtual: 1 },
        Self::Interleaved { n_virtual: 2 },
        Self::Interleaved { n_virtual: 3 },
        Self::LoopedBfs { n_virtual: 1 },
        Self::LoopedBfs { n_virtual: 2 },
        Self::LoopedBfs { n_virtual: 3 },
        Self::ZbH1,
        Self::ZbH2,
        Self::InterleavedZb { n_virtual: 1 },
        Self::InterleavedZb { n_virtual: 2 },
        Self::InterleavedZb { n_virtual: 3 },
        Self::ZbV,
        Self::VHalf,
        Self::VMin,
        Self::DualPipe,
        Self::DualPipeV,
        Self::ForwardOnly,
    ];

    /// The name without the stages a rank.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved { .. } => "interleaved",
            Self::LoopedBfs { .. } => "looped-bfs",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::InterleavedZb { .. } => "interleaved-zb",
            Self::ZbV => "zb-v",
            Self::VHalf => "v-half",
            Self::VMin => "v-min",
            Self::DualPipe => "dual-pipe",
            Self::DualPipeV => "dual-pipe-v",
            Self::ForwardOnly => "forward-only",
        }
    }

    /// The stages a rank, where that is a choice.
    #[must_use]
    pub const fn n_virtual(self) -> Option<u32> {
        match self {
            Self::Interleaved { n_virtual }
            | Self::LoopedBfs { n_virtual }
            | Self::InterleavedZb { n_virtual } => Some(n_virtual),
            _ => None,
        }
    }

    /// Makes the plan of this schedule.
    ///
    /// # Errors
    /// [`ScheduleError`] when the schedule cannot be made for `shape`.
    pub fn plan(self, shape: Shape) -> Result<Plan, ScheduleError> {
        match self {
            Self::GPipe => gpipe(shape),
            Self::OneFOneB => one_f_one_b(shape),
            Self::Interleaved { n_virtual } => interleaved_one_f_one_b(shape, n_virtual),
            Self::LoopedBfs { n_virtual } => looped_bfs(shape, n_virtual),
            Self::ZbH1 => zb_h1(shape),
            Self::ZbH2 => zb_h2(shape),
            Self::InterleavedZb { n_virtual } => interleaved_zb(shape, n_virtual),
            Self::ZbV => zb_v(shape),
            Self::VHalf => v_half(shape),
            Self::VMin => v_min(shape),
            Self::DualPipe => dual_pipe(shape),
            Self::DualPipeV => dual_pipe_v(shape),
            Self::ForwardOnly => forward_only(shape),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.n_virtual() {
            Some(n_virtual) => write!(f, "{}:{n_virtual}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    /// Reads a name in any case. The stages a rank are 2 where the text does not say.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || ScheduleError::Unknown {
            name: text.chars().take(40).collect(),
            known: "gpipe, 1f1b, interleaved:2, looped-bfs:2, zb-h1, zb-h2, interleaved-zb:2, zb-v, v-half, v-min, \
                    dual-pipe, dual-pipe-v, forward-only",
        };
        let (name, n_virtual) = match text.trim().split_once(':') {
            Some((name, n_virtual)) => (name, Some(n_virtual.parse().map_err(|_| unknown())?)),
            None => (text.trim(), None),
        };
        let found = Self::ALL.into_iter().find(|schedule| schedule.name().eq_ignore_ascii_case(name));
        match (found.ok_or_else(unknown)?, n_virtual) {
            (Self::Interleaved { .. }, n) => Ok(Self::Interleaved { n_virtual: n.unwrap_or(2) }),
            (Self::LoopedBfs { .. }, n) => Ok(Self::LoopedBfs { n_virtual: n.unwrap_or(2) }),
            (Self::InterleavedZb { .. }, n) => Ok(Self::InterleavedZb { n_virtual: n.unwrap_or(2) }),
            (schedule, None) => Ok(schedule),
            (_, Some(_)) => Err(unknown()),
        }
    }
}

impl TryFrom<String> for Schedule {
    type Error = ScheduleError;

    fn try_from(text: String) -> Result<Self, ScheduleError> {
        text.parse()
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> Self {
        schedule.to_string()
    }
}
