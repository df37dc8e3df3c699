//! Ids: the small numbers that name a process, a place in a pipeline and a stage.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident($repr:ty)) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Returns the id as an index into a slice.
            ///
            /// An id that the platform cannot address becomes `usize::MAX`, which is past the end of
            /// every slice, so `slice.get(id.index())` stays right everywhere.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("assert_eq!(brigade_topology::", stringify!($name), "(3).index(), 3);")]
            /// ```
            #[inline]
            #[must_use]
            pub fn index(self) -> usize {
                usize::try_from(self.0).unwrap_or(usize::MAX)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<u32> for $name {
            #[inline]
            fn from(id: u32) -> Self {
                Self(id.into())
            }
        }

        impl From<$name> for u64 {
            #[inline]
            fn from(id: $name) -> Self {
                id.0.into()
            }
        }
    };
}

id! {
    /// A process of the world, numbered row-major over the axes of its topology.
    ///
    /// It is 64 bits wide, so that rank arithmetic holds for any world.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::Rank;
    ///
    /// assert_eq!(Rank(7).to_string(), "7");
    /// assert!(Rank(7) < Rank(1 << 40));
    /// ```
    Rank(u64)
}

id! {
    /// A place in one pipeline: the coordinate of a [`Rank`] on the pipe axis.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::PipeRank;
    ///
    /// assert_eq!(PipeRank::from(2), PipeRank(2));
    /// ```
    PipeRank(u32)
}

id! {
    /// A contiguous slice of layers, numbered in forward order over the whole pipeline.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::Stage;
    ///
    /// assert_eq!(Stage(2).to_string(), "2");
    /// ```
    Stage(u32)
}

impl From<u64> for Rank {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl From<PipeRank> for u32 {
    fn from(id: PipeRank) -> Self {
        id.0
    }
}

impl From<Stage> for u32 {
    fn from(id: Stage) -> Self {
        id.0
    }
}
