//! The default grid: a world split into pipelines and replicas by its prime factors.

use crate::{ProcessTopology, TopologyError};

/// Returns the prime factors of a number in ascending order; 0 and 1 have none.
///
/// It divides by every odd number up to the square root of what is left.
///
/// # Examples
///
/// ```
/// assert_eq!(brigade_topology::prime_factors(360), [2, 2, 2, 3, 3, 5]);
/// assert_eq!(brigade_topology::prime_factors(97), [97]);
/// assert!(brigade_topology::prime_factors(1).is_empty());
/// ```
#[must_use]
pub fn prime_factors(number: u64) -> Vec<u64> {
    let mut factors = Vec::new();
    let mut rest = number;
    let mut candidate = 2;
    while rest > 1 && candidate <= rest / candidate {
        if rest.is_multiple_of(candidate) {
            factors.push(candidate);
            rest /= candidate;
        } else {
            candidate += if candidate == 2 { 1 } else { 2 };
        }
    }
    if rest > 1 {
        factors.push(rest);
    }
    factors
}

impl ProcessTopology {
    /// Splits a world into pipelines and replicas when nothing else is known: its prime factors, in
    /// ascending order, go to the pipe axis and the data axis in turn.
    ///
    /// # Errors
    ///
    /// [`TopologyError::EmptyAxis`] for a world of no ranks.
    ///
    /// # Source
    ///
    /// DeepSpeed, `PipelineParallelGrid.__init__` without a topology.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::ProcessTopology;
    ///
    /// assert_eq!(ProcessTopology::default_grid(12)?, ProcessTopology::pipe_data(6, 2)?);
    /// assert_eq!(ProcessTopology::default_grid(7)?, ProcessTopology::pipe_data(7, 1)?);
    /// # Ok::<(), brigade_topology::TopologyError>(())
    /// ```
    pub fn default_grid(world_size: u64) -> Result<Self, TopologyError> {
        if world_size == 0 {
            return Self::pipe_data(0, 1);
        }
        let factors = prime_factors(world_size);
        let every_other = |first: usize| factors.iter().skip(first).step_by(2).product();
        Self::pipe_data(every_other(0), every_other(1))
    }
}
