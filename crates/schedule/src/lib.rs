//! Pipeline schedules as values: made, lowered to instructions, proved sound and timed before they run.
//!
//! ```text
//! gpipe, one_f_one_b, ... ──► Plan ──lower──► Program ──check──► CheckedPlan ──replay──► Timeline
//!                             ▲ │                                                        │
//!                   text, CSV ┘ └► text, CSV          text grid, SVG, Chrome trace, CSV ◄┘
//! ```
//!
//! # Invariants
//! - There is no tensor, thread, channel, file or clock in this crate.
//! - There is no way to a [`CheckedPlan`] but through [`check`]: what runs has been proved.
//! - No order depends on a hash: the same input gives the same plan, program and timeline everywhere.
//! - A plan holds no time. Ranks take their next action as soon as what it needs is there.
//!
//! # Examples
//! ```
//! use brigade_schedule::{Capacity, Costs, PipeRank, Shape, StageCosts, check_plan, one_f_one_b, replay};
//!
//! let plan = one_f_one_b(Shape { n_ranks: 4, n_micro_batches: 8 })?;
//! let checked = check_plan(&plan, Capacity(1))?;
//! assert_eq!(checked.n_buffers(PipeRank(0)), 4);
//!
//! let unit = StageCosts { forward_s: 1.0, input_grad_s: 1.0, weight_grad_s: 1.0, ..Default::default() };
//! let timeline = replay(&checked, &Costs::uniform(4, unit))?;
//! assert_eq!(timeline.makespan_s(), 33.0); // (m + p - 1)(F + B)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod action_text;
mod auto;
mod check;
mod csv;
mod deepspeed;
mod draw;
mod error;
mod instruction;
mod lower;
mod plan;
mod plan_text;
mod program;
mod replay;
mod schedules;
mod search;
mod shape;
mod stream;

pub use action::{Action, Compute, ComputeKind, MarkerKind, MessageKind, MicroBatch, SendKind, Visit};
pub use auto::{Auto, AutoFound, Candidate, auto};
pub use brigade_topology::{Direction, PipeRank, Placement, Stage};
pub use check::{Capacity, CheckedPlan, check, check_plan, least_capacity};
pub use deepspeed::{
    Mode as DeepSpeedMode, Queued, Steps, deepspeed_data_parallel, deepspeed_dual_pipe_v,
    deepspeed_inference, deepspeed_inference_program, deepspeed_train, deepspeed_train_program,
};
pub use error::{
    ActionFault, ActionParseError, CheckError, CostError, Envelope, LowerError, Missing, Need, Pending,
    PlanError, PlanParseError, ScheduleError,
};
pub use instruction::{BufferId, Instruction, LoadPart};
pub use lower::lower;
pub use plan::{MAX_ACTIONS, Plan};
pub use program::Program;
pub use replay::{Costs, LinkCosts, MarkerCosts, RankTimeline, Span, SpanId, StageCosts, Timeline, replay};
pub use schedules::{
    LinkCapacity, Schedule, data_parallel, dual_pipe, dual_pipe_v, forward_only, forward_only_on, gpipe,
    interleaved_one_f_one_b, interleaved_zb, looped_bfs, one_f_one_b, seq_one_f_one_b, v_half, v_min, zb_h1,
    zb_h2, zb_v,
};
pub use search::{Effort, Found, Problem, StageModel, find_plan};
pub use shape::Shape;
pub use stream::{Instructions, Stream};
