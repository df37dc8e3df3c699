//! One micro-batch as the data gives it.

use std::hash::{DefaultHasher, Hash, Hasher};

use brigade_wire::Tree;

use crate::error::ValueError;
use crate::tensor::AnyTensor;
use crate::value::Value;

/// A micro-batch, or a whole batch that the engine splits, with an id that the ranks compare.
///
/// Plain pairs of input and target turn into one without an id. With ids, a first and a last stage that
/// take different samples are told so before any forward runs.
///
/// # Examples
/// ```
/// use brigade_engine::DataItem;
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::ones([4, 3], &Device::flex());
/// let item = DataItem::new(x.clone(), x).with_id(17);
/// assert_eq!(item.id, Some(17));
/// // The numbers of the samples, or the data itself, make an id as well.
/// let by_samples = item.clone().with_samples(&[8, 2, 5, 1]);
/// assert_ne!(by_samples.id, item.clone().with_samples(&[8, 2, 1, 5]).id);
/// assert_eq!(item.clone().hashed()?.id, item.hashed()?.id);
/// # Ok::<(), brigade_engine::ValueError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataItem<I, T> {
    /// What the first stage takes.
    pub input: I,
    /// What the loss function takes beside the output.
    pub target: T,
    /// What all ranks that take this micro-batch must agree on.
    pub id: Option<u64>,
}

impl<I, T> DataItem<I, T> {
    /// A micro-batch without an id.
    pub fn new(input: I, target: T) -> Self {
        Self { input, target, id: None }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    /// Makes the id from the numbers of the samples, in their order.
    #[must_use]
    pub fn with_samples(self, samples: &[u64]) -> Self {
        let mut hasher = DefaultHasher::new();
        samples.hash(&mut hasher);
        self.with_id(hasher.finish())
    }
}

impl<I: Value + Clone, T: Value + Clone> DataItem<I, T> {
    /// Makes the id from all values of input and target, which are copied to the host for it.
    ///
    /// # Errors
    /// [`ValueError`] for values that cannot be carried.
    pub fn hashed(self) -> Result<Self, ValueError> {
        let mut hasher = DefaultHasher::new();
        hash(self.input.clone().into_tree()?, &mut hasher);
        hash(self.target.clone().into_tree()?, &mut hasher);
        Ok(self.with_id(hasher.finish()))
    }
}

fn hash(tree: Tree<AnyTensor>, hasher: &mut DefaultHasher) {
    let tree = tree.map(|tensor| {
        let data = tensor.into_data();
        hasher.write(data.as_bytes());
        format!("{:?} {:?}", data.dtype(), data.shape().as_slice())
    });
    tree.to_string().hash(hasher);
}

impl<I, T> From<(I, T)> for DataItem<I, T> {
    fn from((input, target): (I, T)) -> Self {
        Self::new(input, target)
    }
}
