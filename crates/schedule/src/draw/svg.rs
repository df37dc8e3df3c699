//! A timeline as an SVG picture, one row a rank.

use std::fmt::Write;

use super::{finite, label};
use crate::action::ComputeKind;
use crate::replay::{Span, Timeline};

const ROW: f64 = 28.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 28.0;
const WIDTH: f64 = 1200.0;

impl Timeline {
    /// Draws an SVG picture, 1280 units wide: a row for each rank, a box for each span, with a tool tip.
    ///
    /// A rank's stage of its own number is drawn full, its others lighter: later rounds, or the other direction.
    ///
    /// # Examples
    /// ```
    /// # use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, gpipe, replay};
    /// let plan = check_plan(&gpipe(Shape { n_ranks: 2, n_micro_batches: 2 })?, Capacity(2))?;
    /// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
    /// let svg = replay(&plan, &Costs::uniform(2, unit))?.to_svg();
    /// assert_eq!((svg.matches("<rect").count(), svg.matches("</svg>").count()), (8 + 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_svg(&self) -> String {
        let n_ranks = self.ranks().len();
        #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "ranks are far below 2^53")]
        let y_of = |rank: usize| TOP + ROW * rank as f64;
        let (width, height) = (LEFT + WIDTH + 16.0, y_of(n_ranks) + 8.0);
        let scale = if self.makespan_s() > 0.0 { WIDTH / finite(self.makespan_s()) } else { 0.0 };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"16\">makespan {} s, bubble {:.1} % (wall)</text>\n",
            finite(self.makespan_s()),
            100.0 * self.bubble_wall_share()
        );
        // Writing to a string does not fail.
        for (rank, timeline) in self.ranks().iter().enumerate() {
            let y = y_of(rank);
            let _ = writeln!(svg, "<text x=\"6\" y=\"{}\">rank {rank}</text>", y + 17.0);
            for span in timeline.spans.iter().filter(|span| span.end_s > span.start_s) {
                let x = LEFT + finite(span.start_s) * scale;
                let length = finite(span.end_s - span.start_s) * scale;
                let opacity = opacity(span, rank);
                let _ = write!(
                    svg,
                    "<g><title>{}: {} to {} s</title><rect x=\"{x:.2}\" y=\"{y}\" width=\"{length:.2}\" \
                     height=\"{}\" fill=\"{}\" fill-opacity=\"{opacity}\" stroke=\"#ffffff\"/>",
                    title(span),
                    finite(span.start_s),
                    finite(span.end_s),
                    ROW - 4.0,
                    colour(span)
                );
                if length > 18.0 {
                    let (x, y) = (x + length / 2.0, y + 16.0);
                    let text = label(span);
                    let _ = write!(svg, "<text x=\"{x:.2}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>");
                }
                svg.push_str("</g>\n");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn title(span: &Span) -> String {
    match span.instruction.visit() {
        Some((stage, micro_batch, _)) => {
            format!("{} of stage {stage}, micro-batch {micro_batch}", span.instruction.name())
        }
        None => span.instruction.name().to_owned(),
    }
}

fn colour(span: &Span) -> &'static str {
    match span.instruction.compute_kind() {
        Some(ComputeKind::Forward) => "#7aa6dc",
        Some(ComputeKind::Backward) => "#77c48b",
        Some(ComputeKind::InputGrad) => "#8fd0c5",
        Some(ComputeKind::WeightGrad) => "#e3b96b",
        None => "#b9b9b9",
    }
}

fn opacity(span: &Span, rank: usize) -> &'static str {
    let own = span.instruction.visit().is_none_or(|(stage, ..)| stage.index() == rank);
    if own { "1" } else { "0.6" }
}
