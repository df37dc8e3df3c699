//! Random numbers that depend on where they are drawn, not on when: equal at every split of the model.

mod context;
mod philox;
mod stream;
mod turn;

pub(crate) use self::context::Numbering;
pub use self::context::PassContext;
pub use self::stream::Stream;
pub(crate) use self::turn::{Exclusive, Turn};
