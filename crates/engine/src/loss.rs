//! What a loss function returns: the loss, and if it likes its weight and named values.

use brigade_wire::Tree;
use burn::tensor::{Int, Tensor};

use crate::error::Cause;
use crate::normaliser::Factors;
use crate::tensor::AnyTensor;

/// The loss of one micro-batch with all that a loss function may say about it.
///
/// A loss function may as well return the bare tensor, or a pair of it and [`Metrics`].
///
/// # Examples
/// ```
/// use brigade_engine::{Loss, Metrics};
/// use burn::tensor::{Device, Tensor};
///
/// let value = Tensor::<1>::from_floats([0.25], &Device::flex());
/// let loss = Loss::new(value).weight(1024.0).metrics(Metrics::new().mean("accuracy", 0.5));
/// assert_eq!(loss.weight, Some(1024.0));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// The mean over the micro-batch, one element.
    pub value: Tensor<1>,
    /// What the mean is over, for instance the number of tokens that count; see
    /// [`Normaliser::Weights`](crate::Normaliser::Weights).
    pub weight: Option<f64>,
    /// Values to report beside the loss.
    pub metrics: Metrics,
}

impl Loss {
    /// A loss without a weight or further values.
    #[must_use]
    pub fn new(value: Tensor<1>) -> Self {
        Self { value, weight: None, metrics: Metrics::new() }
    }

    /// Sets the weight.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = Some(weight);
        self
    }

    /// Sets the values to report.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }
}

impl Loss {
    /// What this loss counts, once all that the loss function returned has been looked at.
    pub(crate) fn factor(&self, factors: &Factors, micro_batch: usize) -> Result<f64, Cause> {
        let elements = self.value.shape().num_elements();
        if elements != 1 {
            return Err(Cause::LossShape { elements });
        }
        self.metrics.check()?;
        let weight = match factors {
            Factors::Known(known) => return Ok(known.get(micro_batch).copied().unwrap_or(f64::NAN)),
            Factors::Returned => self.weight.ok_or(Cause::NoWeight)?,
        };
        if weight.is_finite() && weight >= 0.0 { Ok(weight) } else { Err(Cause::LossWeight { weight }) }
    }

    /// The same to be read later, without the graph of its micro-batch.
    pub(crate) fn without_graph(self) -> Self {
        Self { value: self.value.inner(), ..self }
    }
}

impl From<Tensor<1>> for Loss {
    fn from(value: Tensor<1>) -> Self {
        Self::new(value)
    }
}

impl From<(Tensor<1>, Metrics)> for Loss {
    fn from((value, metrics): (Tensor<1>, Metrics)) -> Self {
        Self::new(value).metrics(metrics)
    }
}

/// How the values of one metric become one over all micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// The mean, each micro-batch counting as much as its loss.
    Mean,
    /// The sum.
    Sum,
    /// All of them in the order of the micro-batches.
    List,
}

impl Reduction {
    fn number(self) -> u64 {
        match self {
            Self::Mean => 0,
            Self::Sum => 1,
            Self::List => 2,
        }
    }

    fn of(number: u64) -> Option<Self> {
        [Self::Mean, Self::Sum, Self::List].into_iter().find(|reduction| reduction.number() == number)
    }
}

/// One number: plain, or a tensor of one element, which stays on its device until the end of the batch.
#[derive(Clone, Debug)]
pub struct MetricNumber(Number);

#[derive(Clone, Debug)]
enum Number {
    Plain(f64),
    Float(Tensor<1>),
    Int(Tensor<1, Int>),
}

impl MetricNumber {
    fn n_elements(&self) -> usize {
        match &self.0 {
            Number::Plain(_) => 1,
            Number::Float(tensor) => tensor.shape().num_elements(),
            Number::Int(tensor) => tensor.shape().num_elements(),
        }
    }

    fn into_f64(self) -> f64 {
        let data = match self.0 {
            Number::Plain(number) => return number,
            Number::Float(tensor) => tensor.into_data(),
            Number::Int(tensor) => tensor.into_data(),
        };
        data.iter::<f64>().next().unwrap_or(f64::NAN)
    }
}

impl From<f64> for MetricNumber {
    fn from(number: f64) -> Self {
        Self(Number::Plain(number))
    }
}

impl From<Tensor<1>> for MetricNumber {
    fn from(tensor: Tensor<1>) -> Self {
        // A metric is read only: it must not keep the graph of its micro-batch alive.
        Self(Number::Float(tensor.inner()))
    }
}

impl From<Tensor<1, Int>> for MetricNumber {
    fn from(tensor: Tensor<1, Int>) -> Self {
        Self(Number::Int(tensor.inner()))
    }
}

/// Named numbers of one micro-batch, each with how it is put together over a whole batch.
///
/// # Examples
/// ```
/// use brigade_engine::Metrics;
/// use burn::tensor::{Device, Int, Tensor};
///
/// let right = Tensor::<1, Int>::from_ints([37], &Device::flex());
/// let metrics = Metrics::new().mean("accuracy", 0.5).sum("right", right).list("seen", 64.0);
/// assert_eq!(metrics.names().collect::<Vec<_>>(), ["accuracy", "right", "seen"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<(String, Reduction, MetricNumber)>);

impl Metrics {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number whose mean is reported, each micro-batch counting as much as its loss.
    #[must_use]
    pub fn mean(self, name: impl Into<String>, number: impl Into<MetricNumber>) -> Self {
        self.with(name.into(), Reduction::Mean, number.into())
    }

    /// Adds a number whose sum is reported.
    #[must_use]
    pub fn sum(self, name: impl Into<String>, number: impl Into<MetricNumber>) -> Self {
        self.with(name.into(), Reduction::Sum, number.into())
    }

    /// Adds a number that is reported for each micro-batch.
    #[must_use]
    pub fn list(self, name: impl Into<String>, number: impl Into<MetricNumber>) -> Self {
        self.with(name.into(), Reduction::List, number.into())
    }

    /// The names, in the order in which they were added.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|(name, ..)| name.as_str())
    }

    fn with(mut self, name: String, reduction: Reduction, number: MetricNumber) -> Self {
        self.0.push((name, reduction, number));
        self
    }

    /// Refuses what could not be reported.
    pub(crate) fn check(&self) -> Result<(), Cause> {
        for (at, (name, _, number)) in self.0.iter().enumerate() {
            let elements = number.n_elements();
            if elements != 1 {
                return Err(Cause::MetricShape { name: name.clone(), elements });
            }
            if self.0[..at].iter().any(|(other, ..)| other == name) {
                return Err(Cause::MetricTwice { name: name.clone() });
            }
        }
        Ok(())
    }

    /// The numbers of one micro-batch, for the other ranks.
    pub(crate) fn into_tree(self, micro_batch: u64) -> Tree<AnyTensor> {
        let entries = self.0.into_iter().map(|(name, reduction, number)| {
            Tree::Tuple(vec![
                Tree::U64(micro_batch),
                Tree::Str(name),
                Tree::U64(reduction.number()),
                Tree::F64(number.into_f64()),
            ])
        });
        Tree::List(entries.collect())
    }
}

/// One number of one micro-batch as it came from a rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricEntry {
    pub(crate) micro_batch: u64,
    pub(crate) name: String,
    pub(crate) reduction: Reduction,
    pub(crate) value: f64,
}

impl MetricEntry {
    /// The inverse of [`Metrics::into_tree`]; anything else is left out.
    pub(crate) fn list<T>(tree: Tree<T>) -> Vec<Self> {
        let Tree::List(entries) = tree else { return Vec::new() };
        let entry = |tree| match tree {
            Tree::Tuple(items) => match <[Tree<T>; 4]>::try_from(items) {
                Ok([Tree::U64(micro_batch), Tree::Str(name), Tree::U64(number), Tree::F64(value)]) => {
                    Reduction::of(number).map(|reduction| Self { micro_batch, name, reduction, value })
                }
                _ => None,
            },
            _ => None,
        };
        entries.into_iter().filter_map(entry).collect()
    }
}
