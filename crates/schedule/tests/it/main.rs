//! Tests of `brigade-schedule`, one binary.

mod broken;
mod formulas;
mod text;
