//! What a partition has to keep to, beyond the weights.

use serde::{Deserialize, Serialize};

/// Holds what a partition has to keep to, beyond the weights. The default asks for nothing.
///
/// The *cost* that is balanced is that of a rank: the weights of its stages, divided by its speed, plus
/// the boundaries that it sends over.
///
/// # Examples
///
/// ```
/// use brigade_partition::Options;
///
/// let options = Options { allow_empty: true, ..Options::default() };
/// assert_ne!(options, Options::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Accepts stages without a layer where nothing else is possible, such as with fewer layers than
    /// stages: as few of them as can be.
    pub allow_empty: bool,
    /// The rank of each stage, when ranks hold several: `0, 1, 0, 1` for two stages a rank in a loop,
    /// `0, 1, 1, 0` in a V. Empty when every stage has a rank of its own.
    pub ranks: Vec<usize>,
    /// The speed of each rank, in any unit. Empty when all are equally fast.
    pub speeds: Vec<f64>,
    /// What each rank can hold. It needs the profile of every layer.
    pub memory: Option<MemoryLimit>,
    /// The cost of each byte that crosses a cut, in the unit of the weights: 0 when sending is free.
    ///
    /// A cut after a layer costs its `output_bytes` times this on both sides, as the activation goes one
    /// way and its gradient comes back the other. Between two stages of one rank nothing is sent. It
    /// needs the profile of every layer.
    pub cost_per_byte: f64,
    /// Layers that are bound to each other or to a stage.
    pub pins: Vec<Pin>,
}

/// Limits the memory of ranks.
///
/// A stage takes the `fixed_bytes` of its layers, and their `in_flight_bytes` once for each micro-batch
/// that its schedule keeps in flight there.
///
/// # Units
///
/// Bytes.
///
/// # Examples
///
/// ```
/// use brigade_partition::MemoryLimit;
///
/// // 1F1B on 4 stages keeps 4, 3, 2 and 1 micro-batches in flight.
/// let limit = MemoryLimit { bytes: vec![16 << 30; 4], in_flight: vec![4, 3, 2, 1] };
/// assert_eq!(limit.bytes.len(), limit.in_flight.len());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimit {
    /// The memory of each rank.
    pub bytes: Vec<u64>,
    /// The micro-batches in flight on each stage. Empty means one everywhere.
    pub in_flight: Vec<u64>,
}

/// Binds layers.
///
/// # Examples
///
/// ```
/// use brigade_partition::{LayerInfo, Options, Pin, partition};
///
/// let layers = vec![LayerInfo::new("Linear", 1); 6];
/// let options = Options { pins: vec![Pin::Together(vec![0, 3])], ..Options::default() };
/// assert_eq!(partition(&"uniform".parse()?, &layers, 3, &options)?.boundaries(), [0, 4, 5, 6]);
/// let options = Options { pins: vec![Pin::Stage { layer: 1, stage: 1 }], ..Options::default() };
/// assert_eq!(partition(&"uniform".parse()?, &layers, 3, &options)?.boundaries(), [0, 1, 4, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Pin {
    /// These layers, and all between them, share a stage: tied layers that are to exchange nothing.
    Together(Vec<usize>),
    /// This layer belongs to this stage.
    Stage {
        /// The layer.
        layer: usize,
        /// Its stage.
        stage: usize,
    },
}

impl Options {
    /// Returns the rank of a stage.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::Options;
    ///
    /// let v = Options { ranks: vec![0, 1, 1, 0], ..Options::default() };
    /// assert_eq!(v.rank_of(3), 0);
    /// assert_eq!(Options::default().rank_of(3), 3);
    /// ```
    #[must_use]
    pub fn rank_of(&self, stage: usize) -> usize {
        self.ranks.get(stage).copied().unwrap_or(stage)
    }

    /// Tells whether every stage is like every other, so that only the sums of weights matter.
    pub(crate) fn treats_stages_alike(&self) -> bool {
        let bound_to_stage = |pin: &Pin| matches!(pin, Pin::Stage { .. });
        self.ranks.is_empty()
            && self.speeds.is_empty()
            && self.memory.is_none()
            && self.cost_per_byte == 0.0
            && !self.pins.iter().any(bound_to_stage)
    }
}
