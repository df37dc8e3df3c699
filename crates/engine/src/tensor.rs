//! A tensor whose rank and kind are known only at run time: what travels between stages.

use std::ops::Range;

use burn::tensor::kind::{Basic, BridgeTensor, Kind, TensorKind};
use burn::tensor::{Bool, DType, Device, Float, FloatDType, Gradients, Int, Shape, Tensor, TensorData};

use crate::error::TensorError;

/// The largest tensor rank that Brigade carries; Burn's optimizers stop at the same number.
pub const RANK_MAX: usize = 8;

/// Runs `$body` with the constant `$d` equal to the run-time rank, else `$otherwise`.
macro_rules! by_rank {
    ($rank:expr, $d:ident => $body:expr, else $otherwise:expr) => {
        match $rank {
            1 => by_rank!(@arm 1, $d, $body),
            2 => by_rank!(@arm 2, $d, $body),
            3 => by_rank!(@arm 3, $d, $body),
            4 => by_rank!(@arm 4, $d, $body),
            5 => by_rank!(@arm 5, $d, $body),
            6 => by_rank!(@arm 6, $d, $body),
            7 => by_rank!(@arm 7, $d, $body),
            8 => by_rank!(@arm 8, $d, $body),
            _ => $otherwise,
        }
    };
    (@arm $n:literal, $d:ident, $body:expr) => {{
        const $d: usize = $n;
        $body
    }};
}
pub(crate) use by_rank;

/// A Burn tensor of any rank from 1 to 8 and any kind.
///
/// It keeps the tensor's autodiff node, is cheap to clone (a handle, no copy of the data) and may
/// move to another thread. A *tracked* tensor must not: see [`AnyTensor::detached`].
///
/// # Examples
/// ```
/// use brigade_engine::AnyTensor;
/// use burn::tensor::{Device, Int, Tensor};
///
/// let erased = AnyTensor::new(Tensor::<2>::zeros([2, 3], &Device::flex()))?;
/// assert_eq!(erased.rank(), 2);
/// assert!(erased.clone().into_tensor::<2, Int>().is_err());
/// let back: Tensor<2> = erased.into_tensor()?;
/// assert_eq!(back.dims(), [2, 3]);
/// # Ok::<(), brigade_engine::TensorError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AnyTensor(BridgeTensor);

/// Applies `$op` to the typed form of a tensor, whatever its kind and rank.
macro_rules! any_kind {
    ($tensor:expr, $t:ident => $op:expr) => {{
        let any: AnyTensor = $tensor;
        match any.kind() {
            Kind::Float => by_rank!(any.rank(), D => {
                let $t = Tensor::<D, Float>::from_bridge(any.0);
                $op
            }, else unreachable_rank()),
            Kind::Int => by_rank!(any.rank(), D => {
                let $t = Tensor::<D, Int>::from_bridge(any.0);
                $op
            }, else unreachable_rank()),
            Kind::Bool => by_rank!(any.rank(), D => {
                let $t = Tensor::<D, Bool>::from_bridge(any.0);
                $op
            }, else unreachable_rank()),
        }
    }};
}

/// Every constructor checks the rank, so another one here is a bug of ours.
fn unreachable_rank() -> ! {
    unreachable!("an AnyTensor's rank is checked when it is made")
}

impl AnyTensor {
    /// Erases the rank and kind of a tensor.
    ///
    /// # Errors
    /// [`TensorError::Rank`] for a rank of 0 or above [`RANK_MAX`].
    pub fn new<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<Self, TensorError> {
        if D == 0 || D > RANK_MAX {
            return Err(TensorError::Rank { rank: D });
        }
        Ok(Self(tensor.into_bridge()))
    }

    /// Makes a tensor on `device` that keeps the dtype of `data`.
    ///
    /// # Errors
    /// [`TensorError::Rank`] for a rank of 0 or above [`RANK_MAX`].
    pub fn from_data(data: TensorData, device: &Device) -> Result<Self, TensorError> {
        let dtype = data.dtype();
        let rank = data.shape().num_dims();
        let options = (device, dtype);
        let bridge = by_rank!(rank, D => {
            if dtype.is_float() {
                Tensor::<D, Float>::from_data(data, options).into_bridge()
            } else if dtype.is_bool() {
                Tensor::<D, Bool>::from_data(data, options).into_bridge()
            } else {
                Tensor::<D, Int>::from_data(data, options).into_bridge()
            }
        }, else return Err(TensorError::Rank { rank }));
        Ok(Self(bridge))
    }

    /// Gives the typed tensor back.
    ///
    /// # Errors
    /// [`TensorError::Mismatch`] when rank or kind differ from the asked ones.
    pub fn into_tensor<const D: usize, K: Basic + TensorKind>(self) -> Result<Tensor<D, K>, TensorError> {
        if self.rank() != D || self.kind() != K::KIND {
            return Err(TensorError::Mismatch {
                expected_rank: D,
                expected_kind: K::KIND.as_str(),
                rank: self.rank(),
                kind: self.kind().as_str(),
            });
        }
        Ok(Tensor::from_bridge(self.0))
    }

    /// Tells whether the elements are floats, integers or booleans.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.0.is_int() {
            Kind::Int
        } else if self.0.is_bool() {
            Kind::Bool
        } else {
            Kind::Float
        }
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// Sizes of the dimensions.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Device that holds the data.
    #[must_use]
    pub fn device(&self) -> Device {
        any_kind!(self.clone(), t => t.device())
    }

    /// Copies the data to the host.
    #[must_use]
    pub fn into_data(self) -> TensorData {
        any_kind!(self, t => t.into_data())
    }

    /// The same data without any autodiff graph: the only form that may cross to another thread.
    ///
    /// Burn keeps a lock for each autodiff graph; a graph shared by two threads can deadlock them.
    #[must_use]
    pub fn detached(self) -> Self {
        Self(any_kind!(self, t => t.inner().into_bridge()))
    }

    /// The same data as a new leaf of a graph of its own.
    ///
    /// The gradient of a float leaf is kept when `role` asks for it; other kinds are constants.
    #[must_use]
    pub fn into_leaf(self, role: LeafRole) -> Self {
        let wanted = role == LeafRole::GradientWanted;
        if wanted && self.kind() == Kind::Float {
            return Self(by_rank!(self.rank(), D => {
                Tensor::<D, Float>::from_bridge(self.0).inner().autodiff().require_grad().into_bridge()
            }, else unreachable_rank()));
        }
        Self(any_kind!(self, t => t.inner().autodiff().into_bridge()))
    }

    /// The same data behind a node of its own, at which all gradients from its users add up first. A
    /// tensor that is not tracked stays as it is.
    pub(crate) fn into_own_node(self) -> Self {
        if !self.is_tracked() {
            return self;
        }
        Self(by_rank!(self.rank(), D => {
            let tensor = Tensor::<D, Float>::from_bridge(self.0);
            let shape = tensor.shape();
            tensor.reshape::<D, _>(shape).into_bridge()
        }, else unreachable_rank()))
    }

    /// Tells whether a gradient would flow through this tensor.
    #[must_use]
    pub fn is_tracked(&self) -> bool {
        self.kind() == Kind::Float
            && by_rank!(self.rank(), D => {
                Tensor::<D, Float>::from_bridge(self.0.clone()).is_tracked()
            }, else unreachable_rank())
    }

    /// Takes this leaf's gradient out of `gradients`; `None` when nothing reached it.
    #[must_use]
    pub fn take_gradient(&self, gradients: &mut Gradients) -> Option<Self> {
        if self.kind() != Kind::Float {
            return None;
        }
        by_rank!(self.rank(), D => {
            let leaf = Tensor::<D, Float>::from_bridge(self.0.clone());
            leaf.grad_remove(gradients).map(|g| Self(g.into_bridge()))
        }, else unreachable_rank())
    }

    /// The sum of the squares of all elements; no number for a kind that has none.
    pub(crate) fn sum_of_squares(self) -> f64 {
        let sum = by_rank!(self.rank(), D => {
            self.into_tensor::<D, Float>().map(|tensor| tensor.powi_scalar(2).sum().into_data())
        }, else unreachable_rank());
        sum.ok().and_then(|sum| sum.iter::<f64>().next()).unwrap_or(f64::NAN)
    }

    /// A range of rows: of the first dimension.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        Self(any_kind!(self, t => t.narrow(0, rows.start, rows.len()).into_bridge()))
    }

    /// Tensors of one kind, dtype and rank, one after the other along the first dimension.
    pub(crate) fn concatenated(tensors: Vec<Self>) -> Result<Self, TensorError> {
        let Some(first) = tensors.first() else { return Err(TensorError::Rank { rank: 0 }) };
        match first.kind() {
            Kind::Float => {
                by_rank!(first.rank(), D => Self::concatenate::<D, Float>(tensors), else unreachable_rank())
            }
            Kind::Int => {
                by_rank!(first.rank(), D => Self::concatenate::<D, Int>(tensors), else unreachable_rank())
            }
            Kind::Bool => {
                by_rank!(first.rank(), D => Self::concatenate::<D, Bool>(tensors), else unreachable_rank())
            }
        }
    }

    fn concatenate<const D: usize, K: Basic + TensorKind>(tensors: Vec<Self>) -> Result<Self, TensorError> {
        let tensors = tensors.into_iter().map(Self::into_tensor::<D, K>).collect::<Result<Vec<_>, _>>()?;
        Self::new(Tensor::cat(tensors, 0))
    }

    /// The mean of float tensors of one shape, added in their order.
    pub(crate) fn mean_of(tensors: Vec<Self>) -> Result<Self, TensorError> {
        let Some(first) = tensors.first() else { return Err(TensorError::Rank { rank: 0 }) };
        by_rank!(first.rank(), D => {
            let tensors = tensors.into_iter().map(Self::into_tensor::<D, Float>).collect::<Result<Vec<_>, _>>()?;
            let n = f64::from(u32::try_from(tensors.len()).unwrap_or(u32::MAX));
            let sum = tensors.into_iter().reduce(Tensor::add);
            sum.map_or(Err(TensorError::Rank { rank: 0 }), |sum| Self::new(sum.div_scalar(n)))
        }, else unreachable_rank())
    }

    /// The same values with another float element type; integers and booleans stay.
    pub(crate) fn cast(self, dtype: FloatDType) -> Self {
        if self.kind() != Kind::Float || self.dtype() == DType::from(dtype) {
            return self;
        }
        Self(by_rank!(self.rank(), D => {
            Tensor::<D, Float>::from_bridge(self.0).cast(dtype).into_bridge()
        }, else unreachable_rank()))
    }

    /// Half-precision floats as f32; everything else stays.
    pub(crate) fn widened(self) -> Self {
        match self.dtype() {
            DType::F16 | DType::BF16 => self.cast(FloatDType::F32),
            _ => self,
        }
    }

    pub(crate) fn into_bridge(self) -> BridgeTensor {
        self.0
    }
}

/// What a received tensor is to the stage that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafRole {
    /// The sender wants the gradient with respect to it.
    GradientWanted,
    /// A constant: no gradient is computed for it.
    Constant,
}
