//! Skips: a value made at one layer and used at later ones, in other stages as well.

mod lanes;
mod layout;
mod list;
mod op;
mod store;

pub(crate) use lanes::{ByLane, Lanes, Traffic, leaf};
pub(crate) use layout::{SkipLayout, Skips, StageSkips};
pub(crate) use op::{SkipKind, SkipOp};
pub(crate) use store::SkipStore;

use serde::{Deserialize, Serialize};

/// How a named value comes from the stage that stashes it to those that use it.
///
/// Both ways give the same numbers.
///
/// # Examples
/// ```
/// use brigade_engine::SkipRoute;
///
/// assert_eq!(SkipRoute::default(), SkipRoute::Direct);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipRoute {
    /// Straight to each stage that uses it, over a link of its own: it crosses once for each of them,
    /// and stages between do not hold it.
    #[default]
    Direct,
    /// Along with the boundary messages, from stage to stage: no further links, but every stage between
    /// takes it and hands it on.
    Carried,
}
