//! A batch cut into micro-batches along the first dimension, and results put together again.

use brigade_wire::Tree;
use serde::{Deserialize, Serialize};

use crate::error::{TensorError, ValueError};
use crate::tensor::AnyTensor;
use crate::value::Value;

/// Why a batch cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Cut into no pieces.
    #[error("a batch cannot be cut into 0 micro-batches: give at least 1")]
    NoPieces,
    /// Nothing has a number of samples.
    #[error("the batch holds no tensor: nothing says how many samples it has")]
    NoTensor,
    /// There are no samples.
    #[error("the batch has 0 samples: give at least 1, or end the data")]
    Empty,
    /// Two tensors have different numbers of samples.
    #[error(
        "`{path}` has {found} samples (its first dimension), `{first}` has {expected}: every tensor of a batch needs the same"
    )]
    Samples {
        /// The tensor that differs: `input` or `target`, and its place in it.
        path: String,
        /// Its number of samples.
        found: usize,
        /// The first tensor of the batch.
        first: String,
        /// Its number of samples.
        expected: usize,
    },
    /// The batch cannot be carried.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Why pieces cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There are none.
    #[error("there are no pieces to put together")]
    NoPieces,
    /// Two pieces differ in more than the data of their tensors.
    #[error(
        "piece {piece} is built otherwise than piece 0, or holds other plain values: ask for the pieces as a list"
    )]
    Structure {
        /// The piece that differs.
        piece: usize,
    },
    /// Two pieces of one tensor do not fit.
    #[error(
        "tensor {tensor} of piece {piece} is {found}, of piece 0 {expected}: ask for the pieces as a list"
    )]
    Shape {
        /// Number of the tensor in the value.
        tensor: usize,
        /// The piece that differs.
        piece: usize,
        /// Dtype and shape in that piece.
        found: String,
        /// Dtype and shape in the first piece.
        expected: String,
    },
    /// Tensors of numbers without a mean.
    #[error("tensor {tensor} is of {kind}: only floats have a mean")]
    NotFloat {
        /// Number of the tensor in the value.
        tensor: usize,
        /// Its kind.
        kind: &'static str,
    },
    /// The pieces cannot be carried, or the whole is no value of their type.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// A tensor cannot be carried.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// How the outputs of several micro-batches become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Merge {
    /// Tensors one after the other along the first dimension.
    Concatenate,
    /// The mean of tensors of floats, which must have equal shapes.
    Mean,
}

/// The sizes of `n_pieces` micro-batches of one batch: as equal as can be, the larger ones first.
///
/// Never a piece without samples: fewer samples than pieces give as many pieces as samples.
///
/// # Examples
/// ```
/// use brigade_engine::piece_sizes;
/// assert_eq!(piece_sizes(8, 3), [3, 3, 2]);
/// assert_eq!(piece_sizes(10, 4), [3, 3, 2, 2]);
/// assert_eq!(piece_sizes(1, 4), [1]);
/// ```
#[must_use]
pub fn piece_sizes(n_samples: usize, n_pieces: usize) -> Vec<usize> {
    let n_pieces = n_pieces.min(n_samples);
    let (Some(size), Some(rest)) = (n_samples.checked_div(n_pieces), n_samples.checked_rem(n_pieces)) else {
        return Vec::new();
    };
    (0..n_pieces).map(|piece| size + usize::from(piece < rest)).collect()
}

/// Cuts a batch into at most `n_pieces` micro-batches along the first dimension of its tensors.
///
/// Everything that is not a tensor is in every piece.
///
/// # Errors
/// [`SplitError`]; tensors with different numbers of samples are named.
///
/// # Source
/// The sizes are own: as even as possible, where `torch.chunk` makes the last piece the smallest.
///
/// # Examples
/// ```
/// use brigade_engine::split_batch;
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([8, 5], &Device::flex());
/// let pieces = split_batch((x, "train".to_owned()), 3)?;
/// let rows: Vec<_> = pieces.iter().map(|(x, name)| (x.dims()[0], name.as_str())).collect();
/// assert_eq!(rows, [(3, "train"), (3, "train"), (2, "train")]);
/// # Ok::<(), brigade_engine::SplitError>(())
/// ```
pub fn split_batch<V: Value>(batch: V, n_pieces: usize) -> Result<Vec<V>, SplitError> {
    let tree = batch.into_tree()?;
    let n_samples = n_samples(&[("batch", &tree)])?;
    if n_pieces == 0 {
        return Err(SplitError::NoPieces);
    }
    let pieces = cut(&tree, &piece_sizes(n_samples, n_pieces));
    pieces.into_iter().map(|piece| Ok(V::from_tree(piece)?)).collect()
}

/// Puts micro-batches together again; the inverse of [`split_batch`] with [`Merge::Concatenate`].
///
/// # Errors
/// [`MergeError`].
pub fn merge_pieces<V: Value>(pieces: Vec<V>, how: Merge) -> Result<V, MergeError> {
    let trees = pieces.into_iter().map(V::into_tree).collect::<Result<Vec<_>, _>>()?;
    Ok(V::from_tree(merge(trees, how)?)?)
}

/// The number of samples of values that belong together.
pub(crate) fn n_samples(values: &[(&str, &Tree<AnyTensor>)]) -> Result<usize, SplitError> {
    let mut sizes = Vec::new();
    for (name, tree) in values {
        first_dimensions(tree, (*name).to_owned(), &mut sizes);
    }
    let Some((first, expected)) = sizes.first().cloned() else { return Err(SplitError::NoTensor) };
    match sizes.into_iter().find(|(_, size)| *size != expected) {
        Some((path, found)) => Err(SplitError::Samples { path, found, first, expected }),
        None if expected == 0 => Err(SplitError::Empty),
        None => Ok(expected),
    }
}

fn first_dimensions(tree: &Tree<AnyTensor>, path: String, found: &mut Vec<(String, usize)>) {
    match tree {
        Tree::Tensor(tensor) => found.push((path, tensor.shape().as_slice().first().copied().unwrap_or(0))),
        Tree::List(items) | Tree::Tuple(items) => {
            for (at, item) in items.iter().enumerate() {
                first_dimensions(item, format!("{path}.{at}"), found);
            }
        }
        Tree::Dict(dict) => {
            for (key, item) in dict.iter() {
                first_dimensions(item, format!("{path}.{key}"), found);
            }
        }
        _ => {}
    }
}

/// The pieces of a tree whose tensors have as many rows as `sizes` together.
pub(crate) fn cut(tree: &Tree<AnyTensor>, sizes: &[usize]) -> Vec<Tree<AnyTensor>> {
    let mut end = 0;
    let pieces = sizes.iter().map(|size| {
        let start = end;
        end += size;
        tree.clone().map(|tensor| tensor.rows(start..end))
    });
    pieces.collect()
}

/// Makes one tree from several of one structure.
pub(crate) fn merge(trees: Vec<Tree<AnyTensor>>, how: Merge) -> Result<Tree<AnyTensor>, MergeError> {
    let structures: Vec<Tree<()>> = trees.iter().map(|tree| tree.as_ref().map(|_| ())).collect();
    let first = structures.first().ok_or(MergeError::NoPieces)?;
    if let Some(piece) = structures.iter().position(|other| other != first) {
        return Err(MergeError::Structure { piece });
    }
    let mut columns: Vec<Vec<AnyTensor>> = vec![Vec::new(); trees[0].n_tensors()];
    for tree in &trees {
        let mut columns = columns.iter_mut();
        tree.for_each(|tensor| {
            if let Some(column) = columns.next() {
                column.push(tensor.clone());
            }
        });
    }
    let mut columns = columns.into_iter().enumerate();
    first.clone().try_map(|()| {
        let (tensor, column) = columns.next().expect("one column for each tensor of the structure");
        check_column(tensor, &column, how)?;
        Ok(match how {
            Merge::Concatenate => AnyTensor::concatenated(column)?,
            Merge::Mean => AnyTensor::mean_of(column)?,
        })
    })
}

/// Burn panics on tensors that do not fit: they are refused before.
fn check_column(tensor: usize, column: &[AnyTensor], how: Merge) -> Result<(), MergeError> {
    let Some(first) = column.first() else { return Ok(()) };
    if how == Merge::Mean && !first.dtype().is_float() {
        return Err(MergeError::NotFloat { tensor, kind: first.kind().as_str() });
    }
    let comparable = |tensor: &AnyTensor| {
        let shape = tensor.shape();
        let free = usize::from(how == Merge::Concatenate);
        (tensor.dtype(), tensor.rank(), shape.as_slice().iter().skip(free).copied().collect::<Vec<_>>())
    };
    let describe = |tensor: &AnyTensor| format!("{:?} {:?}", tensor.dtype(), tensor.shape().as_slice());
    match column.iter().position(|other| comparable(other) != comparable(first)) {
        Some(piece) => Err(MergeError::Shape {
            tensor,
            piece,
            found: describe(&column[piece]),
            expected: describe(first),
        }),
        None => Ok(()),
    }
}
