//! Which layers run again, and for which micro-batches.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use brigade_schedule::MicroBatch;
use brigade_topology::Stage;

use crate::error::{BuildError, Cause, guard};
use crate::layer::{LayerLabel, LayerNames};
use crate::stage::PlacedLayer;

/// Consecutive layers of one stage that would run again together, for one micro-batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Segment<'a> {
    /// Their stage.
    pub stage: Stage,
    /// The micro-batch, as the plan numbers it.
    pub micro_batch: MicroBatch,
    /// Which layers.
    pub layers: &'a [LayerLabel],
}

type When = Arc<dyn Fn(&Segment<'_>) -> bool + Send + Sync>;

/// Which layers keep only their input in the forward pass and run again in the backward pass.
///
/// Losses and gradients have the same bits as without. The memory between the two passes of a
/// micro-batch shrinks to what crosses the segments' borders; the price is one more forward pass of the
/// layers. On the last stage the loss function runs again with a segment that reaches it.
///
/// A segment never spans stages. The parameters that it uses again are those of its first run, and so is
/// the state of layers such as batch norm: their running statistics move once for each micro-batch, in
/// the first run. State that a layer hides from Burn, for instance in a `Mutex` behind
/// `#[module(skip)]`, is not covered: exclude such layers.
///
/// # Source
/// Chen et al., "Training deep nets with sublinear memory cost" (2016); the choice of layers is
/// DeepSpeed's.
///
/// # Examples
/// ```
/// use brigade_engine::Recompute;
///
/// // Every block for itself, except those of the first micro-batch.
/// let recompute = Recompute::every(1).layers(["Block"]).when(|segment| segment.micro_batch.0 > 0);
/// assert!(recompute.is_on());
/// assert!(!Recompute::default().is_on());
/// ```
#[derive(Clone, Default)]
pub struct Recompute {
    interval: usize,
    layers: Option<LayerNames>,
    when: Option<When>,
}

impl Recompute {
    /// Segments of `n_layers` layers, the last of a stage shorter where they do not divide; 0 is off.
    #[must_use]
    #[doc(alias = "activation_checkpoint_interval")]
    pub fn every(n_layers: usize) -> Self {
        Self { interval: n_layers, ..Self::default() }
    }

    /// Only the layers with these types, names or numbers (`Block`, `encoder.out`, `layer_007`); others
    /// end a segment.
    #[must_use]
    #[doc(alias = "checkpointable_layers")]
    pub fn layers(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.layers = Some(LayerNames::new(names));
        self
    }

    /// Only the segments for which `when` says so, asked for each micro-batch.
    #[must_use]
    #[doc(alias = "activation_checkpoint_func")]
    pub fn when(mut self, when: impl Fn(&Segment<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(when));
        self
    }

    /// Tells whether anything may run again.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.interval > 0
    }

    /// Refuses a name that no layer has.
    pub(crate) fn check(&self, labels: &[LayerLabel]) -> Result<(), BuildError> {
        self.layers.as_ref().map_or(Ok(()), |names| names.check(labels, "recompute"))
    }

    /// The segments of a stage for a micro-batch, as ranges of its layers, in forward order.
    pub(crate) fn segments(
        &self,
        stage: Stage,
        micro_batch: MicroBatch,
        layers: &[PlacedLayer],
    ) -> Result<Vec<Range<usize>>, Cause> {
        let mut segments = Vec::new();
        if !self.is_on() {
            return Ok(segments);
        }
        let mut start = 0;
        while start < layers.len() {
            let run =
                layers[start..].iter().take(self.interval).take_while(|layer| self.admits(layer)).count();
            if run > 0 && self.wants(stage, micro_batch, &layers[start..start + run])? {
                segments.push(start..start + run);
            }
            start += run.max(1);
        }
        Ok(segments)
    }

    /// Entries that stash or use a named value have nothing to save; they end a segment.
    fn admits(&self, layer: &PlacedLayer) -> bool {
        layer.skip.is_none() && self.layers.as_ref().is_none_or(|names| names.has(&layer.label))
    }

    fn wants(&self, stage: Stage, micro_batch: MicroBatch, layers: &[PlacedLayer]) -> Result<bool, Cause> {
        let Some(when) = &self.when else { return Ok(true) };
        let layers: Vec<LayerLabel> = layers.iter().map(|layer| layer.label.clone()).collect();
        let segment = Segment { stage, micro_batch, layers: &layers };
        guard("the function that chooses what to recompute", || when(&segment))
    }
}

impl fmt::Debug for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recompute")
            .field("interval", &self.interval)
            .field("layers", &self.layers)
            .field("when", &self.when.as_ref().map(|_| "a function"))
            .finish()
    }
}
