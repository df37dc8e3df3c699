//! What a message is about: the run, the sender and the tag.

/// Which way a message flows through the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Activations, towards later stages.
    Forward,
    /// Gradients, towards earlier stages.
    Backward,
}

impl From<Direction> for u32 {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Forward => 0,
            Direction::Backward => 1,
        }
    }
}

impl TryFrom<u32> for Direction {
    type Error = u32;

    /// The direction of a number, or the number itself when it is none.
    fn try_from(number: u32) -> Result<Self, u32> {
        match number {
            0 => Ok(Self::Forward),
            1 => Ok(Self::Backward),
            other => Err(other),
        }
    }
}

/// Identifies a message of one step: no two messages between the same ranks have one tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The stage that sends.
    pub stage: u32,
    /// Which way the message flows.
    pub direction: Direction,
    /// The micro-batch.
    pub micro_batch: u32,
}

/// The head of a frame.
///
/// Equality of `run_id` is for the receiver to check: it tells the messages of this run from those
/// of an earlier one that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// Number of the run, the same on every rank.
    pub run_id: u64,
    /// Rank of the sender.
    pub sender: u32,
    /// What the message carries.
    pub tag: Tag,
}
