//! Tests of `brigade-schedule`, one binary.

mod auto;
mod broken;
mod deepspeed;
mod formulas;
mod golden;
mod text;
mod torch;
mod zero_bubble;
