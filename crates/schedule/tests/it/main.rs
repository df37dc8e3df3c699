//! Tests of `brigade-schedule`, one binary.

mod auto;
mod broken;
mod broken_programs;
mod deepspeed;
mod docs;
mod formulas;
mod golden;
mod text;
mod torch;
mod zero_bubble;
