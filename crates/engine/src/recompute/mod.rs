//! Forward passes that run again in the backward pass, so that less is kept between the two.

mod policy;
mod tape;

pub use self::policy::{Recompute, Segment};
pub(crate) use self::tape::{Form, LossAgain, StageLayers, Tape, loss_pair};
