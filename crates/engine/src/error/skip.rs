//! What can be wrong with the named values of a layer list.

use crate::layer::LayerLabel;

/// Why the stashes and users of a list of layers do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkipError {
    /// Nothing uses a value.
    #[error("{layer} stashes `{name}`, which no later layer uses: pop or peek it, or do not stash it")]
    Unused {
        /// The value.
        name: String,
        /// The stash.
        layer: LayerLabel,
    },
    /// Nothing makes a value.
    #[error("{layer} uses `{name}`, which no layer stashes: stash it at an earlier layer")]
    NotStashed {
        /// The value.
        name: String,
        /// The user.
        layer: LayerLabel,
    },
    /// A value is made after it is used.
    #[error("{user} uses `{name}`, which {stash} stashes later: a value flows forward only")]
    TooEarly {
        /// The value.
        name: String,
        /// The user.
        user: LayerLabel,
        /// The stash.
        stash: LayerLabel,
    },
    /// Two stashes have one name.
    #[error(
        "{first} and {second} both stash `{name}`: name them apart, or append the lists with `then_namespaced`"
    )]
    StashedTwice {
        /// The name.
        name: String,
        /// The first stash.
        first: LayerLabel,
        /// The other.
        second: LayerLabel,
    },
    /// A value is used after it was popped.
    #[error("{user} uses `{name}` after {pop} popped it: peek at it there instead")]
    AfterPop {
        /// The value.
        name: String,
        /// The layer that popped it.
        pop: LayerLabel,
        /// The later user.
        user: LayerLabel,
    },
    /// A value is used as another type than it was stashed.
    #[error("{stash} stashes `{name}` as {stashed}, {user} uses it as {wanted}: give both one type")]
    Type {
        /// The value.
        name: String,
        /// The stash.
        stash: LayerLabel,
        /// Its type there.
        stashed: &'static str,
        /// The user.
        user: LayerLabel,
        /// The type there.
        wanted: &'static str,
    },
    /// A route is set for a name that does not exist.
    #[error("no layer stashes `{name}`, for which a route is set; there are {known:?}")]
    NoSuchSkip {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
}
