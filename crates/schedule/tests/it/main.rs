//! Tests of `brigade-schedule`, one binary.

mod auto;
mod broken;
mod broken_programs;
mod capacity;
mod cases;
mod deepspeed;
mod docs;
mod formulas;
mod golden;
mod limits;
mod replay;
mod steps;
mod streams;
mod text;
mod torch;
mod zero_bubble;
