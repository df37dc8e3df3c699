//! The size of a schedule.

use crate::error::ScheduleError;
use crate::plan::MAX_ACTIONS;

/// How many ranks take part and how many micro-batches a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// Pipeline ranks, `p`.
    pub n_ranks: u32,
    /// Micro-batches of a batch, `m`.
    pub n_micro_batches: u32,
}

impl Shape {
    /// Refuses empty shapes and those whose plan would not fit, at `per_visit` cells for each stage and
    /// micro-batch and `n_virtual` stages a rank.
    pub(crate) fn admit(self, n_virtual: u32, per_visit: u32) -> Result<(), ScheduleError> {
        let Self { n_ranks, n_micro_batches } = self;
        if n_ranks == 0 {
            return Err(ScheduleError::NoRanks);
        }
        if n_micro_batches == 0 {
            return Err(ScheduleError::NoMicroBatches);
        }
        if n_virtual == 0 {
            return Err(ScheduleError::NoStages);
        }
        let n_actions = [n_micro_batches, n_virtual, per_visit]
            .iter()
            .try_fold(u64::from(n_ranks), |product, &factor| product.checked_mul(u64::from(factor)))
            .unwrap_or(u64::MAX);
        if n_actions > MAX_ACTIONS || n_ranks.checked_mul(n_virtual).is_none() {
            return Err(ScheduleError::TooLong { n_ranks, n_micro_batches, n_virtual, max: MAX_ACTIONS });
        }
        Ok(())
    }
}
