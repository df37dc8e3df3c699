//! A table of vectors whose gradient can wait.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};

use crate::split::{self, Slot};

/// A table of vectors, one for each index.
///
/// Under a schedule that splits the backward pass the table's gradient is computed when the schedule says so;
/// as in [`Linear`](super::Linear), the bits are the same. Parameters have the names and shapes of
/// [`burn::nn::Embedding`]; make one from it.
///
/// # Shapes
/// Indices `[batch, seq]` to `[batch, seq, d_model]`.
///
/// # Examples
/// ```
/// use brigade_engine::nn::Embedding;
/// use burn::nn::EmbeddingConfig;
/// use burn::tensor::{Device, Int, Tensor};
///
/// let device = Device::flex().autodiff();
/// let table = Embedding::new(&EmbeddingConfig::new(10, 4), &device);
/// let y = table.forward(Tensor::<2, Int>::from_ints([[1, 2, 2]], &device));
/// let gradient = table.weight.val().grad(&y.sum().backward()).unwrap();
/// assert_eq!(gradient.sum_dim(1).into_data().to_vec::<f32>().unwrap()[..4], [0.0, 4.0, 8.0, 0.0]);
/// ```
#[derive(Module, Debug)]
pub struct Embedding {
    /// The table, `[n_embedding, d_model]`.
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    /// Initialises a table as Burn does.
    #[must_use]
    pub fn new(config: &burn::nn::EmbeddingConfig, device: &Device) -> Self {
        config.init(device).into()
    }

    /// The vector of each index.
    #[must_use]
    pub fn forward(&self, indices: Tensor<2, Int>) -> Tensor<3> {
        split::embedding(self.weight.val(), indices, Slot::here(self.weight.id, None))
    }
}

impl From<burn::nn::Embedding> for Embedding {
    fn from(embedding: burn::nn::Embedding) -> Self {
        Self { weight: embedding.weight }
    }
}
