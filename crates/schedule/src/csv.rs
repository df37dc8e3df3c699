//! Plans as the CSV files of `torch.distributed.pipelining`: one line a rank, one cell an action.

use brigade_topology::{PipeRank, Placement};

use crate::action::Action;
use crate::error::PlanParseError;
use crate::plan::Plan;
use crate::plan_text::{read_rows, write_rows};

impl Plan {
    /// Reads a CSV file as PyTorch's tools write it. Empty cells, the idle slots of a rank, are left out.
    ///
    /// The file does not say where stages live or how many micro-batches there are: both are read off its
    /// actions. The stages must lie as in one of the placements: linear, looped, V or bidirectional.
    ///
    /// # Errors
    /// [`PlanParseError::Cell`] with row and column for a cell that is no action,
    /// [`PlanParseError::NoPlacement`] when the stages of some row fit no placement, and
    /// [`PlanParseError::Plan`] when there is no row, no action or too many.
    ///
    /// # Examples
    /// ```
    /// use brigade_schedule::{Placement, Plan};
    /// let plan = Plan::from_csv("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")?;
    /// assert_eq!((plan.placement(), plan.n_micro_batches()), (Placement::linear(2)?, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_csv(text: &str) -> Result<Self, PlanParseError> {
        let rows = read_rows(text)?;
        let n_micro_batches = rows
            .iter()
            .flatten()
            .flat_map(Action::computes)
            .map(|compute| compute.micro_batch.0.saturating_add(1))
            .max()
            .unwrap_or(0);
        let placement = placement(&rows)?;
        Ok(Self::new(placement, n_micro_batches, rows)?)
    }

    /// Writes a CSV file that PyTorch's tools read: `_load_csv` of a schedule with a pipeline order.
    ///
    /// # Examples
    /// ```
    /// use brigade_schedule::{Shape, gpipe};
    /// let plan = gpipe(Shape { n_ranks: 2, n_micro_batches: 1 })?;
    /// assert_eq!(plan.to_csv(), "0F0,0B0\n1F0,1B0\n");
    /// # Ok::<(), brigade_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write_rows(&mut text, self.rows());
        text
    }
}

/// The placement that has each action's stage on the rank of its row.
fn placement(rows: &[Vec<Action>]) -> Result<Placement, PlanParseError> {
    let n_ranks = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let last = rows.iter().flatten().flat_map(Action::computes).map(|compute| compute.stage.0).max();
    let n_stages = last.map_or(0, |last| last.saturating_add(1));
    let misfit = |placement: Placement| {
        let ranks = (0..n_ranks).map(PipeRank).zip(rows);
        ranks
            .flat_map(|(rank, row)| row.iter().flat_map(Action::computes).map(move |c| (rank, c.visit())))
            .find(|&(rank, visit)| visit.rank_in(placement) != Ok(rank))
    };
    let looped = Placement::looped(n_ranks, n_stages.div_ceil(n_ranks.max(1)))?;
    let Some((rank, visit)) = misfit(looped) else { return Ok(looped) };
    for other in [Placement::v(n_ranks)?, Placement::bidirectional(n_ranks)?] {
        if misfit(other).is_none() {
            return Ok(other);
        }
    }
    Err(PlanParseError::NoPlacement { row: rank.index() + 1, stage: visit.stage })
}
