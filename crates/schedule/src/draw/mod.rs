//! Drawings of a timeline: text grid, SVG, Chrome trace and CSV.

mod csv;
mod svg;
mod text;
mod trace;

use crate::instruction::Instruction;
use crate::replay::Span;

/// A short name of a span: kind and micro-batch, as in `F3`; `unshard`, `opt` and the like for what is of no
/// micro-batch. Markers, loads and the end of a batch are drawn where they cost time.
fn label(span: &Span) -> String {
    match (span.instruction.compute_kind(), span.instruction.visit()) {
        (Some(kind), Some((_, micro_batch, _))) => format!("{}{micro_batch}", kind.letter()),
        _ => match span.instruction {
            Instruction::LoadMicroBatch { micro_batch, .. } => format!("load{micro_batch}"),
            Instruction::Marker { kind, .. } => kind.word().to_ascii_lowercase(),
            Instruction::ReduceCopies { .. } => "copies".to_owned(),
            Instruction::ReduceTiedGrads => "tied".to_owned(),
            Instruction::ReduceGrads => "reduce".to_owned(),
            _ => "opt".to_owned(),
        },
    }
}

/// A number that JSON, CSV and SVG can write.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::MAX }
}
