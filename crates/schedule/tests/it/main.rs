//! Tests of `brigade-schedule`, one binary.

mod auto;
mod broken;
mod broken_programs;
mod cases;
mod deepspeed;
mod docs;
mod formulas;
mod golden;
mod replay;
mod text;
mod torch;
mod zero_bubble;
