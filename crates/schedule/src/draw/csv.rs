//! A timeline as CSV, one line a span.

use std::fmt::Write;

use super::finite;
use crate::replay::Timeline;

impl Timeline {
    /// Writes one line for each span: rank, instruction, stage, micro-batch, start and end.
    ///
    /// # Units
    /// Those of the costs.
    ///
    /// # Examples
    /// ```
    /// # use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, forward_only, replay};
    /// let plan = check_plan(&forward_only(Shape { n_ranks: 1, n_micro_batches: 1 })?, Capacity(1))?;
    /// let costs = Costs::uniform(1, StageCosts { forward_s: 2.5, ..StageCosts::default() });
    /// let csv = replay(&plan, &costs)?.to_csv();
    /// assert_eq!(csv, "rank,instruction,stage,micro_batch,start_s,end_s\n0,ForwardPass,0,0,0,2.5\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = String::from("rank,instruction,stage,micro_batch,start_s,end_s\n");
        for (rank, timeline) in self.ranks().iter().enumerate() {
            for span in &timeline.spans {
                let name = span.instruction.name();
                let visit = match span.instruction.visit() {
                    Some((stage, micro_batch, _)) => format!("{stage},{micro_batch}"),
                    None => {
                        span.instruction.stage().map_or_else(|| ",".to_owned(), |stage| format!("{stage},"))
                    }
                };
                let (start_s, end_s) = (finite(span.start_s), finite(span.end_s));
                // Writing to a string does not fail.
                let _ = writeln!(csv, "{rank},{name},{visit},{start_s},{end_s}");
            }
        }
        csv
    }
}
