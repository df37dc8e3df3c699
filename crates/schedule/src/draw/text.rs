//! A timeline as a grid of characters, one line a rank.

use super::label;
use crate::replay::{RankTimeline, Span, Timeline};

/// The most columns of a grid; longer timelines get coarser columns.
const MAX_COLUMNS: usize = 512;

impl Timeline {
    /// Draws one line a rank, in columns of equal time; a cell names what starts in it, `-` goes on, `.` idles.
    ///
    /// A column is as long as the shortest span, or longer where there would be more than 512 columns, so
    /// that short spans may be missing.
    ///
    /// # Examples
    /// ```
    /// # use brigade_schedule::{Capacity, Costs, Shape, StageCosts, check_plan, one_f_one_b, replay};
    /// let plan = check_plan(&one_f_one_b(Shape { n_ranks: 2, n_micro_batches: 2 })?, Capacity(2))?;
    /// let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
    /// let text = replay(&plan, &Costs::uniform(2, unit))?.to_text();
    /// assert_eq!(text, "0 F0 F1 .  .  B0 -  .  B1 -\n1 .  F0 B0 -  F1 B1 -  .  .\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_text(&self) -> String {
        let spans = || self.ranks().iter().flat_map(|rank| &rank.spans);
        let shortest =
            spans().map(|span| span.end_s - span.start_s).filter(|&s| s > 0.0).fold(f64::MAX, f64::min);
        let away = |(rank, span): (usize, &Span)| {
            span.instruction.visit().is_some_and(|(stage, ..)| stage.index() != rank)
        };
        // A rank with one stage has the stage of its own number.
        let several_stages = self
            .ranks()
            .iter()
            .enumerate()
            .flat_map(|(rank, timeline)| timeline.spans.iter().map(move |span| (rank, span)));
        let several_stages = several_stages.into_iter().any(away);
        let name = |span: &_| stage_label(span, several_stages);
        let width = spans().map(|span| name(span).len()).max().unwrap_or(1);
        let (n_columns, column_s) = columns(self.makespan_s(), shortest);
        let rank_width = self.ranks().len().saturating_sub(1).to_string().len();
        let mut text = String::new();
        for (rank, timeline) in self.ranks().iter().enumerate() {
            let cells = cells(timeline, n_columns, column_s, name);
            let line: String = cells.iter().map(|cell| format!(" {cell:width$}")).collect();
            text.push_str(format!("{rank:rank_width$}{line}").trim_end());
            text.push('\n');
        }
        text
    }
}

/// The label of a span, with its stage where ranks have several.
fn stage_label(span: &Span, with_stage: bool) -> String {
    match span.instruction.stage() {
        Some(stage) if with_stage => format!("{stage}{}", label(span)),
        _ => label(span),
    }
}

/// Number and length of columns.
fn columns(makespan_s: f64, shortest_s: f64) -> (usize, f64) {
    let n_columns = column_at(makespan_s, shortest_s);
    if n_columns <= MAX_COLUMNS {
        return (n_columns, shortest_s);
    }
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "512 is exact")]
    let most = MAX_COLUMNS as f64;
    (MAX_COLUMNS, makespan_s / most)
}

/// The column in which a moment lies; moments a rounding error before a column count as its start.
fn column_at(time_s: f64, column_s: f64) -> usize {
    let column = (time_s / column_s + 1e-6).floor();
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from f64 saturates, and the value is a count"
    )]
    let column = column as usize;
    column
}

fn cells(
    timeline: &RankTimeline,
    n_columns: usize,
    column_s: f64,
    name: impl Fn(&Span) -> String,
) -> Vec<String> {
    let mut cells = vec![".".to_owned(); n_columns];
    for span in timeline.spans.iter().filter(|span| span.end_s > span.start_s) {
        let (start, end) = (column_at(span.start_s, column_s), column_at(span.end_s, column_s));
        for (at, cell) in cells.iter_mut().enumerate().take(end.max(start + 1)).skip(start) {
            *cell = if at == start { name(span) } else { "-".to_owned() };
        }
    }
    cells
}
