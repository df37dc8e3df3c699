//! Operations that Burn makes of many, each as one: forward and backward in one pass over memory.
//!
//! Each file holds one operation: what it is in Burn's own operations, which runs on every backend and for
//! every dtype; the kernel that Flex runs for f32 instead; and the autodiff step over either.

mod attention;
mod cross_entropy;
pub(crate) mod flex;
mod gelu;
mod norm;

pub(crate) use attention::causal_attention;
pub(crate) use cross_entropy::cross_entropy;
pub(crate) use gelu::gelu;
pub(crate) use norm::{Parameters, norm};
