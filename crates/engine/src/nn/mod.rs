//! Layers that do more in a pipeline than Burn's own, or the same in less time; each has Burn's numbers
//! within rounding, its parameters by name and shape, and is made from it.
//!
//! Fused kernels run on the CPU backend for f32. Other backends and dtypes take Burn's own operations.
//!
//! | here | instead of | what is different |
//! | --- | --- | --- |
//! | [`Linear`] | [`burn::nn::Linear`] | the weight's gradient can wait; one product over all rows |
//! | [`Embedding`] | [`burn::nn::Embedding`] | the table's gradient can wait |
//! | [`LayerNorm`], [`RmsNorm`] | [`burn::nn::LayerNorm`], [`burn::nn::RmsNorm`] | one pass forward, one backward |
//! | [`CausalSelfAttention`], [`causal_attention`] | [`burn::nn::attention::MultiHeadAttention`] with a causal mask | no mask; scale, mask and softmax in one pass |
//! | [`Dropout`] | [`burn::nn::Dropout`] | what is dropped does not depend on the split |
//! | [`gelu`] | [`burn::tensor::activation::gelu`] | its slope is computed with it |
//! | [`CrossEntropyLoss`], [`cross_entropy`] | [`burn::nn::loss::CrossEntropyLoss`] | loss and gradient from one softmax |

mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
pub(crate) mod fused;
mod gelu;
pub(crate) mod kernels;
mod linear;
mod norm;

pub use attention::{AttentionError, CausalSelfAttention, causal_attention};
pub use cross_entropy::{CrossEntropyLoss, cross_entropy};
pub use dropout::{Dropout, ProbabilityError};
pub use embedding::Embedding;
pub use gelu::gelu;
pub use linear::Linear;
pub use norm::{LayerNorm, RmsNorm};
