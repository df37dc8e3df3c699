//! A plan: the order of work on every pipeline rank.

use brigade_topology::{PipeRank, Placement};

use crate::action::{Action, ComputeKind};
use crate::error::PlanError;

/// The most cells that a plan in memory may hold; longer ones are streamed.
pub const MAX_ACTIONS: u64 = 1 << 26;

/// What every pipeline rank does in one step of the optimizer, in order; one row a rank.
///
/// A plan says nothing about time: a rank takes its next action as soon as what that needs is there.
/// It is text: [`ToString::to_string`] and [`str::parse`] are each other's inverse.
///
/// # Examples
/// ```
/// use brigade_schedule::{Plan, Shape, one_f_one_b};
/// let plan = one_f_one_b(Shape { n_ranks: 2, n_micro_batches: 2 })?;
/// assert_eq!(plan.to_string(), "placement linear:2; micro-batches 2\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
/// assert_eq!(plan.to_string().parse::<Plan>()?, plan);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "RawPlan")]
pub struct Plan {
    placement: Placement,
    n_micro_batches: u32,
    rows: Vec<Vec<Action>>,
}

#[derive(serde::Deserialize)]
struct RawPlan {
    placement: Placement,
    n_micro_batches: u32,
    rows: Vec<Vec<Action>>,
}

impl TryFrom<RawPlan> for Plan {
    type Error = PlanError;

    fn try_from(raw: RawPlan) -> Result<Self, PlanError> {
        Self::new(raw.placement, raw.n_micro_batches, raw.rows)
    }
}

impl Plan {
    /// Makes a plan of `rows`, one for each rank of `placement`.
    ///
    /// Only the shape is tested here; whether the plan is sound is what [`crate::check`] finds out.
    ///
    /// # Errors
    /// [`PlanError::Rows`] when there is not one row a rank, [`PlanError::NoMicroBatches`] when
    /// `n_micro_batches` is 0, [`PlanError::TooLong`] for more than [`MAX_ACTIONS`] cells, or more stages
    /// times micro-batches than that.
    pub fn new(
        placement: Placement,
        n_micro_batches: u32,
        rows: Vec<Vec<Action>>,
    ) -> Result<Self, PlanError> {
        let n_ranks = placement.n_ranks();
        if u32::try_from(rows.len()) != Ok(n_ranks) {
            return Err(PlanError::Rows { n_rows: rows.len(), n_ranks });
        }
        if n_micro_batches == 0 {
            return Err(PlanError::NoMicroBatches);
        }
        let n_visits = u64::from(placement.n_stages()).saturating_mul(u64::from(n_micro_batches));
        let n_cells = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(count(row.len())));
        let n_actions = n_cells.max(n_visits);
        if n_actions > MAX_ACTIONS {
            return Err(PlanError::TooLong { n_actions, max: MAX_ACTIONS });
        }
        Ok(Self { placement, n_micro_batches, rows })
    }

    /// Where each stage lives.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The number of micro-batches of a batch.
    #[must_use]
    pub fn n_micro_batches(&self) -> u32 {
        self.n_micro_batches
    }

    /// All rows, that of rank 0 first.
    #[must_use]
    pub fn rows(&self) -> &[Vec<Action>] {
        &self.rows
    }

    /// The row of `rank`; empty for a rank that the plan does not have.
    #[must_use]
    pub fn row(&self, rank: PipeRank) -> &[Action] {
        self.rows.get(rank.index()).map_or(&[], Vec::as_slice)
    }

    /// Whether the plan has no backward pass at all.
    #[must_use]
    pub fn is_forward_only(&self) -> bool {
        let forward = |action: &Action| action.computes().all(|c| c.kind == ComputeKind::Forward);
        self.rows.iter().all(|row| row.iter().all(forward))
    }
}

/// A length as a number that can be compared with a limit on any platform.
pub(crate) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
