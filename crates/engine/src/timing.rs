//! How long a rank computed and waited in one step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use brigade_schedule::Instruction;
use brigade_topology::Stage;

/// Total and number of one kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Sum of the durations.
    pub total: Duration,
    /// How many there were.
    pub count: u32,
}

impl Spent {
    pub(crate) fn add(&mut self, duration: Duration) {
        self.total += duration;
        self.count = self.count.saturating_add(1);
    }

    /// Adds what other ranks spent on the same kind of work.
    pub(crate) fn merge(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.count = self.count.saturating_add(other.count);
    }

    /// Mean duration; zero when there was none.
    ///
    /// # Units
    /// Seconds.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total.as_secs_f64() / f64::from(self.count) }
    }
}

/// Compute times of one stage in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Forward passes.
    pub forward: Spent,
    /// Full backward passes, and input gradients where the plan splits them.
    pub backward: Spent,
    /// Weight gradients where the plan splits them.
    pub weight_grad: Spent,
    /// Forward passes that ran again for a backward pass, whose time does not count them.
    pub recompute: Spent,
}

/// What one rank did in one step.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    started: Instant,
    pub(crate) stages: BTreeMap<Stage, StageTimes>,
    /// Computing: forward and backward passes and the optimizer.
    pub(crate) busy: Duration,
    /// Waiting for messages and for room to send.
    pub(crate) waiting: Duration,
    pub(crate) optimizer: Duration,
    /// Making one gradient and one value of all copies, waiting included.
    pub(crate) reduction: Duration,
    pub(crate) wall: Duration,
    /// Part of the running instruction that is already counted, as recompute.
    counted: Duration,
}

impl Timing {
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            stages: BTreeMap::new(),
            busy: Duration::ZERO,
            waiting: Duration::ZERO,
            optimizer: Duration::ZERO,
            reduction: Duration::ZERO,
            wall: Duration::ZERO,
            counted: Duration::ZERO,
        }
    }

    pub(crate) fn record(&mut self, instruction: &Instruction, elapsed: Duration) {
        let counted = std::mem::take(&mut self.counted);
        let spent = |times: &mut Self, stage: &Stage, pick: fn(&mut StageTimes) -> &mut Spent| {
            times.busy += elapsed;
            pick(times.stages.entry(*stage).or_default()).add(elapsed.saturating_sub(counted));
        };
        match instruction {
            Instruction::ForwardPass { stage, .. } => spent(self, stage, |t| &mut t.forward),
            Instruction::BackwardPass { stage, .. } | Instruction::InputGrad { stage, .. } => {
                spent(self, stage, |t| &mut t.backward);
            }
            Instruction::WeightGrad { stage, .. } => spent(self, stage, |t| &mut t.weight_grad),
            Instruction::SendActivation { .. }
            | Instruction::SendGrad { .. }
            | Instruction::RecvActivation { .. }
            | Instruction::RecvGrad { .. } => self.waiting += elapsed,
            _ => {}
        }
    }

    /// Counts forward passes that ran again within the instruction that runs.
    pub(crate) fn record_recompute(&mut self, stage: Stage, elapsed: Duration) {
        self.counted += elapsed;
        self.stages.entry(stage).or_default().recompute.add(elapsed);
    }

    pub(crate) fn record_optimizer(&mut self, elapsed: Duration) {
        self.optimizer += elapsed;
        self.busy += elapsed;
    }

    pub(crate) fn record_reduction(&mut self, elapsed: Duration) {
        self.reduction += elapsed;
    }

    pub(crate) fn stop(&mut self) {
        self.wall = self.started.elapsed();
    }
}
