//! `uniform`: the same number of layers on every stage, as far as it goes.

use crate::{Cuts, PartitionError};

/// The largest number of stages of one partition: far above any machine, low enough that a number read
/// from a file cannot ask for unbounded memory.
pub const MAX_STAGES: usize = 1 << 20;

/// Returns cuts that give every stage the same number of layers; the first stages take one more each
/// when the layers do not divide evenly.
///
/// # Errors
///
/// [`PartitionError::NoStages`], [`PartitionError::TooManyStages`] above [`MAX_STAGES`], and
/// [`PartitionError::TooFewLayers`] when a stage would be left empty.
///
/// # Source
///
/// DeepSpeed, `runtime/utils.py`, `partition_uniform`, whose cuts these are.
///
/// # Examples
///
/// ```
/// use brigade_partition::uniform;
///
/// assert_eq!(uniform(38, 8)?.boundaries(), [0, 5, 10, 15, 20, 25, 30, 34, 38]);
/// assert!(uniform(3, 4).is_err());
/// # Ok::<(), brigade_partition::PartitionError>(())
/// ```
#[doc(alias = "partition_uniform")]
pub fn uniform(n_layers: usize, n_stages: usize) -> Result<Cuts, PartitionError> {
    if n_layers < n_stages {
        check_stages(n_stages)?;
        return Err(PartitionError::TooFewLayers { n_layers, n_stages });
    }
    uniform_or_empty(n_layers, n_stages)
}

/// Returns the cuts of [`uniform`], with empty stages at the end when there are too few layers.
pub(crate) fn uniform_or_empty(n_layers: usize, n_stages: usize) -> Result<Cuts, PartitionError> {
    check_stages(n_stages)?;
    let (per_stage, n_longer) = (n_layers / n_stages, n_layers % n_stages);
    let boundary = |stage: usize| stage * per_stage + stage.min(n_longer);
    Ok(Cuts::new((0..=n_stages).map(boundary).collect())?)
}

pub(crate) fn check_stages(n_stages: usize) -> Result<(), PartitionError> {
    match n_stages {
        0 => Err(PartitionError::NoStages),
        1..=MAX_STAGES => Ok(()),
        _ => Err(PartitionError::TooManyStages { n_stages, max: MAX_STAGES }),
    }
}
