//! Self-attention in which each position sees itself and those before it.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::Linear;
use crate::nn::fused;

/// What each position of `value` becomes: the mean of itself and those before it, weighted by how well its
/// query fits their keys.
///
/// Equal to `softmax(query · keyᵀ / √width + mask) · value` for each head. Scale, mask and softmax are one
/// pass over the scores, and so is their backward; there is no mask in memory.
///
/// # Shapes
/// All three inputs and the result `[batch, seq, n_heads * width]`.
///
/// # Panics
/// Panics where the inputs differ in shape or `n_heads` does not divide their last dimension.
///
/// # Source
/// Vaswani et al., 2017; the kernels are our own.
///
/// # Examples
/// ```
/// use brigade_engine::nn::causal_attention;
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<3>::from_floats([[[1.0, 2.0], [3.0, 4.0]]], &Device::flex());
/// let y = causal_attention(x.clone(), x.clone(), x, 1);
/// // The first position sees only itself.
/// assert_eq!(y.into_data().to_vec::<f32>().unwrap()[..2], [1.0, 2.0]);
/// ```
#[must_use]
pub fn causal_attention(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>, n_heads: usize) -> Tensor<3> {
    fused::causal_attention(query, key, value, n_heads)
}

/// Multi-head causal self-attention with its four linear layers, whose weight gradients can wait.
///
/// Parameters have the names and shapes of [`burn::nn::attention::MultiHeadAttention`], from which one can be
/// made as long as it has neither dropout nor the quiet softmax.
///
/// # Shapes
/// `[batch, seq, d_model]`, and out the same.
///
/// # Examples
/// ```
/// use brigade_engine::nn::CausalSelfAttention;
/// use burn::nn::attention::MultiHeadAttentionConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let burns = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).init(&device);
/// let attention = CausalSelfAttention::try_from(burns)?;
/// assert_eq!(attention.forward(Tensor::<3>::ones([2, 5, 8], &device)).dims(), [2, 5, 8]);
/// # Ok::<(), brigade_engine::nn::AttentionError>(())
/// ```
#[derive(Module, Debug)]
pub struct CausalSelfAttention {
    /// To the queries.
    pub query: Linear,
    /// To the keys.
    pub key: Linear,
    /// To the values.
    pub value: Linear,
    /// From what the heads found.
    pub output: Linear,
    /// How many heads share the width.
    pub n_heads: usize,
}

impl CausalSelfAttention {
    /// Initialises a layer as Burn does, without the configuration's dropout.
    ///
    /// # Errors
    /// [`AttentionError::QuietSoftmax`].
    pub fn new(
        config: &burn::nn::attention::MultiHeadAttentionConfig,
        device: &Device,
    ) -> Result<Self, AttentionError> {
        config.clone().with_dropout(0.0).init(device).try_into()
    }

    /// What each position of `x` finds in itself and those before it.
    #[must_use]
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (query, key) = (self.query.forward(x.clone()), self.key.forward(x.clone()));
        let found = causal_attention(query, key, self.value.forward(x), self.n_heads);
        self.output.forward(found)
    }
}

impl TryFrom<burn::nn::attention::MultiHeadAttention> for CausalSelfAttention {
    type Error = AttentionError;

    fn try_from(attention: burn::nn::attention::MultiHeadAttention) -> Result<Self, AttentionError> {
        if attention.dropout.prob > 0.0 {
            return Err(AttentionError::Dropout { probability: attention.dropout.prob });
        }
        if attention.quiet_softmax {
            return Err(AttentionError::QuietSoftmax);
        }
        Ok(Self {
            query: attention.query.into(),
            key: attention.key.into(),
            value: attention.value.into(),
            output: attention.output.into(),
            n_heads: attention.n_heads,
        })
    }
}

/// What Burn's attention does and [`CausalSelfAttention`] does not.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttentionError {
    /// It drops weights at random.
    #[error("attention drops weights with probability {probability}; configure it with a dropout of 0")]
    Dropout {
        /// How likely a weight is dropped.
        probability: f64,
    },
    /// Its weights need not add up to one.
    #[error("attention uses the quiet softmax; configure it without")]
    QuietSoftmax,
}
