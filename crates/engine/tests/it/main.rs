//! Tests of the engine: against unsplit runs, against PyTorch, and against what goes wrong.

mod boundary;
mod build;
mod clipping;
mod conform;
mod data;
mod dropout;
mod evaluation;
mod exclusive;
mod faults;
mod gpt_cli;
mod layers;
mod normaliser;
mod parity;
mod pieces;
mod property;
mod random;
mod recompute;
mod regressions;
mod replicas;
mod sources;
mod split;
mod support;
mod ties;
mod transparency;
mod values;
