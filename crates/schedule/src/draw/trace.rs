//! A timeline as a trace for Chrome's or Perfetto's viewer.

use std::fmt::Write;

use super::{finite, label};
use crate::replay::Timeline;

impl Timeline {
    /// Writes a trace that `chrome://tracing` and Perfetto open: a process is a rank, a thread is a stage.
    ///
    /// # Units
    /// The viewers show microseconds: one second of the costs is one second in the viewer.
    ///
    /// # Examples
    /// ```
    /// # use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, gpipe, replay};
    /// let plan = check_plan(&gpipe(Shape { n_ranks: 2, n_micro_batches: 2 })?, Capacity(2))?;
    /// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
    /// let trace = replay(&plan, &Costs::uniform(2, unit))?.to_chrome_trace();
    /// let trace: serde_json::Value = serde_json::from_str(&trace)?;
    /// assert_eq!(trace["traceEvents"].as_array().map(Vec::len), Some(8 + 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_chrome_trace(&self) -> String {
        const MICROSECONDS: f64 = 1e6;
        let mut trace = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
        for (rank, timeline) in self.ranks().iter().enumerate() {
            let comma = if rank == 0 { "" } else { "," };
            // Writing to a string does not fail.
            let _ = write!(
                trace,
                "{comma}\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}}"
            );
            for span in &timeline.spans {
                let (start, length) =
                    (span.start_s * MICROSECONDS, (span.end_s - span.start_s) * MICROSECONDS);
                let stage = span.instruction.stage().map_or(0, |stage| stage.0);
                let _ = write!(
                    trace,
                    ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{rank},\"tid\":{stage},\"ts\":{},\"dur\":{}}}",
                    label(span),
                    span.instruction.name(),
                    finite(start),
                    finite(length)
                );
            }
        }
        trace.push_str("\n]}\n");
        trace
    }
}
