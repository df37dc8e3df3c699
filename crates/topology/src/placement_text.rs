//! The text form of a placement.

use std::fmt;
use std::str::FromStr;

use crate::placement::Shape;
use crate::{Placement, PlacementError};

/// Writes `linear:4`, `looped:2x3`, `v:3` or `bidirectional:4`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Linear { n_stages } => write!(f, "linear:{n_stages}"),
            Shape::Looped { n_ranks, stages_per_rank } => write!(f, "looped:{n_ranks}x{stages_per_rank}"),
            Shape::V { n_ranks } => write!(f, "v:{n_ranks}"),
            Shape::Bidirectional { n_ranks } => write!(f, "bidirectional:{n_ranks}"),
        }
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let syntax = || PlacementError::Syntax { text: text.to_owned() };
        let number = |digits: &str| -> Result<u32, PlacementError> {
            if digits.starts_with('+') {
                return Err(syntax());
            }
            digits.parse().map_err(|_| syntax())
        };
        let (kind, size) = text.split_once(':').ok_or_else(syntax)?;
        match kind {
            "linear" => Self::linear(number(size)?),
            "v" => Self::v(number(size)?),
            "bidirectional" => Self::bidirectional(number(size)?),
            "looped" => {
                let (n_ranks, stages_per_rank) = size.split_once('x').ok_or_else(syntax)?;
                Self::looped(number(n_ranks)?, number(stages_per_rank)?)
            }
            _ => Err(syntax()),
        }
    }
}

impl TryFrom<String> for Placement {
    type Error = PlacementError;

    fn try_from(text: String) -> Result<Self, PlacementError> {
        text.parse()
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}
