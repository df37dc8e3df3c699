//! The schedules, one file each, and their names.

pub(crate) mod dual_pipe_v;
mod forward_only;
mod gpipe;
mod one_f_one_b;

use std::fmt;
use std::str::FromStr;

pub use dual_pipe_v::dual_pipe_v;
pub use forward_only::forward_only;
pub use gpipe::gpipe;
pub use one_f_one_b::one_f_one_b;

use crate::error::ScheduleError;
use crate::plan::Plan;
use crate::shape::Shape;

/// The schedules by name, for command lines and configuration files.
///
/// # Examples
/// ```
/// use brigade_schedule::{Schedule, Shape};
/// let schedule: Schedule = "1F1B".parse()?;
/// let plan = schedule.plan(Shape { n_ranks: 4, n_micro_batches: 8 })?;
/// assert_eq!((schedule.to_string(), plan.rows().len()), ("1f1b".to_owned(), 4));
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Schedule {
    /// [`gpipe`].
    #[serde(rename = "gpipe")]
    GPipe,
    /// [`one_f_one_b`].
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// [`forward_only`].
    ForwardOnly,
}

impl Schedule {
    /// Every schedule.
    pub const ALL: [Self; 3] = [Self::GPipe, Self::OneFOneB, Self::ForwardOnly];

    /// The name, as [`str::parse`] takes it in any case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::ForwardOnly => "forward-only",
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
            Self::ForwardOnly => forward_only(shape),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || ScheduleError::Unknown {
            name: text.chars().take(40).collect(),
            known: "gpipe, 1f1b, forward-only",
        };
        Self::ALL.into_iter().find(|s| s.name().eq_ignore_ascii_case(text.trim())).ok_or_else(unknown)
    }
}
