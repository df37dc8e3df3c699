//! Slices of Flex's tensors, for the kernels: f32, contiguous, not empty.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape, TensorData};

/// A tensor of Flex.
pub(crate) type Flexible = FloatTensor<Flex>;

/// The tensor with its values in row-major order and nothing else in its storage; `None` where the kernels
/// have nothing to do with it.
pub(crate) fn contiguous(tensor: &Flexible) -> Option<Flexible> {
    let n = tensor.shape().num_elements();
    if tensor.dtype() != DType::F32 || n == 0 {
        return None;
    }
    let whole = tensor.as_slice::<f32>().is_some() && tensor.storage::<f32>().len() == n;
    Some(if whole { tensor.clone() } else { tensor.to_contiguous() })
}

/// The tensor, and whether the kernels can take it; it stays the only handle where it was.
pub(crate) fn take(tensor: Flexible) -> Result<Flexible, Flexible> {
    match contiguous(&tensor) {
        Some(found) => {
            drop(tensor);
            Ok(found)
        }
        None => Err(tensor),
    }
}

/// The values of a tensor that [`contiguous`] gave.
pub(crate) fn values(tensor: &Flexible) -> &[f32] {
    tensor.storage()
}

/// A tensor of `values`.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Flexible {
    Flexible::from_data(TensorData::new(values, shape))
}

/// Indices as such; `None` where one is negative.
pub(crate) fn indices(tensor: &IntTensor<Flex>) -> Option<Vec<usize>> {
    tensor.clone().into_data().iter::<i64>().map(|index| usize::try_from(index).ok()).collect()
}

/// The width of the last dimension.
pub(crate) fn width(shape: &Shape) -> usize {
    shape.as_slice().last().copied().unwrap_or(0)
}
