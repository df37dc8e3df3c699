//! The text form of a plan: a line with placement and number of micro-batches, then one line a rank.

use std::fmt;
use std::str::FromStr;

use crate::action::Action;
use crate::error::PlanParseError;
use crate::plan::Plan;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "placement {}; micro-batches {}", self.placement(), self.n_micro_batches())?;
        write_rows(f, self.rows())
    }
}

/// Writes one line a rank, cells separated by commas.
pub(crate) fn write_rows(out: &mut impl fmt::Write, rows: &[Vec<Action>]) -> fmt::Result {
    for row in rows {
        for (at, action) in row.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(out, "{comma}{action}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

impl FromStr for Plan {
    type Err = PlanParseError;

    /// Reads what `Display` writes; empty cells, the idle slots of other tools, are left out.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let header = || PlanParseError::Header { line: first.chars().take(40).collect() };
        let (placement, micro_batches) = first
            .trim_end()
            .strip_prefix("placement ")
            .and_then(|line| line.split_once("; micro-batches "))
            .ok_or_else(header)?;
        let n_micro_batches = micro_batches.parse().map_err(|_| header())?;
        let placement = placement.parse()?;
        Ok(Self::new(placement, n_micro_batches, read_rows(rest)?)?)
    }
}

/// Reads one line a rank; cells without text are idle slots and left out.
pub(crate) fn read_rows(text: &str) -> Result<Vec<Vec<Action>>, PlanParseError> {
    text.lines().enumerate().map(|(row, line)| read_row(row, line)).collect()
}

fn read_row(row: usize, line: &str) -> Result<Vec<Action>, PlanParseError> {
    line.split(',')
        .enumerate()
        .filter(|(_, cell)| !cell.trim().is_empty())
        .map(|(column, cell)| {
            cell.parse().map_err(|source| PlanParseError::Cell { row: row + 1, column: column + 1, source })
        })
        .collect()
}
