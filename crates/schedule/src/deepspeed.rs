//! The instruction streams of DeepSpeed, step by step, as its pipeline engine runs them.

use brigade_topology::{PipeRank, Placement, Stage};

use crate::action::MicroBatch;
use crate::error::ScheduleError;
use crate::instruction::{BufferId, Instruction, LoadPart};
use crate::program::Program;
use crate::schedules::dual::{Op, steps};
use crate::schedules::dual_pipe_v::admit;
use crate::shape::Shape;

/// What one rank does in DeepSpeed, grouped into steps between which a barrier would be harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps<I = Instruction> {
    /// The instructions of each step.
    pub steps: Vec<Vec<I>>,
    /// How many buffers DeepSpeed's engine sets aside for the rank.
    pub n_buffers: u32,
}

/// An instruction of a stream whose sends and receives are queued until they are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    /// An instruction; sends and receives only queue.
    Instruction(Instruction),
    /// `CommitP2P`: starts everything queued as one batch and waits for it.
    CommitP2P,
}

/// The half of a micro-batch's way that a step works on; a step does one of the two.
struct Tick {
    micro_batch: Option<MicroBatch>,
    forward: bool,
}

/// The steps of `rank` in DeepSpeed's `TrainSchedule`: 1F1B on a clock of `2(m + p - 1)` ticks, in which
/// even and odd ranks take turns, so that blocking sends never wait for each other.
///
/// # Errors
/// [`ScheduleError`] for an empty shape, a stream above the size limit, or a rank that is not there.
/// (DeepSpeed makes streams without meaning from these.)
///
/// # Source
/// `deepspeed/runtime/pipe/schedule.py`, `TrainSchedule`, 0.19.6.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, deepspeed_train};
/// let stream = deepspeed_train(Shape { n_ranks: 2, n_micro_batches: 1 }, PipeRank(1))?;
/// let step: Vec<String> = stream.steps[1].iter().map(ToString::to_string).collect();
/// let expected = ["RecvActivation(buffer_id=0)", "LoadMicroBatch(buffer_id=0)", "ForwardPass(buffer_id=0)"];
/// assert_eq!(step, expected);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn deepspeed_train(shape: Shape, rank: PipeRank) -> Result<Steps, ScheduleError> {
    admit_rank(shape, rank)?;
    let Shape { n_ranks: p, n_micro_batches: m } = shape;
    let stage = Stage(rank.0);
    let n_buffers = (p - rank.0).min(m).max(2);
    let next = (rank.0 + 1 < p).then(|| PipeRank(rank.0 + 1));
    let previous = rank.0.checked_sub(1).map(PipeRank);
    let n_ticks = 2 * (m + p - 1);
    let mut earlier = None;
    let mut steps = Vec::new();
    for tick in 0..n_ticks {
        let Tick { micro_batch, forward } = train_tick(tick, rank.0, shape);
        let buffer = |mb: MicroBatch| BufferId(mb.0 % n_buffers);
        let mut step = Vec::new();
        if forward {
            if let (Some(micro_batch), Some(to)) = (earlier, previous) {
                step.push(Instruction::SendGrad { stage, micro_batch, buffer: buffer(micro_batch), to });
            }
            if let (Some(micro_batch), Some(from)) = (micro_batch, previous) {
                let buffer = buffer(micro_batch);
                step.push(Instruction::RecvActivation { stage, micro_batch, buffer, from });
            }
        } else {
            if let (Some(micro_batch), Some(from)) = (micro_batch, next) {
                step.push(Instruction::RecvGrad { stage, micro_batch, buffer: buffer(micro_batch), from });
            }
            if let (Some(micro_batch), Some(to)) = (earlier, next) {
                step.push(Instruction::SendActivation {
                    stage,
                    micro_batch,
                    buffer: buffer(micro_batch),
                    to,
                });
            }
        }
        if let Some(micro_batch) = micro_batch {
            let buffer = buffer(micro_batch);
            if let Some(part) = LoadPart::of(stage, p).filter(|_| forward) {
                step.push(Instruction::LoadMicroBatch { stage, micro_batch, buffer, part });
            }
            step.push(if forward {
                Instruction::ForwardPass { stage, micro_batch, buffer }
            } else {
                Instruction::BackwardPass { stage, micro_batch, buffer }
            });
        }
        if tick == n_ticks - 1 {
            step.extend([Instruction::ReduceTiedGrads, Instruction::ReduceGrads, Instruction::OptimizerStep]);
        }
        earlier = micro_batch;
        steps.push(step);
    }
    Ok(Steps { steps, n_buffers })
}

/// What `rank` does at `tick`: ranks of the same parity as the tick go forward, the others backward.
fn train_tick(tick: u32, rank: u32, shape: Shape) -> Tick {
    let forward = tick % 2 == rank % 2;
    let micro_batch = if forward {
        (tick / 2).checked_sub(rank / 2)
    } else {
        // A backward pass comes back to rank r after 2p - 1 - r ticks of its forward pass on rank 0.
        (tick + 1).checked_sub(2 * shape.n_ranks - rank).map(|ticks| ticks / 2)
    };
    let micro_batch = micro_batch.filter(|&mb| mb < shape.n_micro_batches).map(MicroBatch);
    Tick { micro_batch, forward }
}

/// The steps of `rank` in DeepSpeed's `InferenceSchedule`: forward passes with two buffers in turn.
///
/// # Errors
/// As for [`deepspeed_train`].
///
/// # Source
/// `deepspeed/runtime/pipe/schedule.py`, `InferenceSchedule`, 0.19.6.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Shape, deepspeed_inference};
/// let stream = deepspeed_inference(Shape { n_ranks: 3, n_micro_batches: 4 }, PipeRank(1))?;
/// assert_eq!((stream.steps.len(), stream.n_buffers), (6, 2));
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn deepspeed_inference(shape: Shape, rank: PipeRank) -> Result<Steps, ScheduleError> {
    admit_rank(shape, rank)?;
    let Shape { n_ranks: p, n_micro_batches: m } = shape;
    let stage = Stage(rank.0);
    let even = rank.0.is_multiple_of(2);
    let next = (rank.0 + 1 < p).then(|| PipeRank(rank.0 + 1));
    let previous = rank.0.checked_sub(1).map(PipeRank);
    let at = |tick: Option<u32>| tick.filter(|&mb| mb < m).map(MicroBatch);
    let mut steps = Vec::new();
    for tick in 0..m + p - 1 {
        let now = at(tick.checked_sub(rank.0));
        let earlier = at(tick.checked_sub(rank.0 + 1));
        let (here, there) = if even { (tick % 2, (tick + 1) % 2) } else { ((tick + 1) % 2, tick % 2) };
        let buffer = BufferId(here);
        let send = earlier.zip(next).map(|(micro_batch, to)| Instruction::SendActivation {
            stage,
            micro_batch,
            buffer: BufferId(there),
            to,
        });
        let receive = now.zip(previous).map(|(micro_batch, from)| Instruction::RecvActivation {
            stage,
            micro_batch,
            buffer,
            from,
        });
        let load = now.zip(LoadPart::of(stage, p)).map(|(micro_batch, part)| Instruction::LoadMicroBatch {
            stage,
            micro_batch,
            buffer,
            part,
        });
        let forward = now.map(|micro_batch| Instruction::ForwardPass { stage, micro_batch, buffer });
        let exchange = if even { [send, receive] } else { [receive, send] };
        steps.push(load.into_iter().chain(exchange.into_iter().flatten()).chain(forward).collect());
    }
    Ok(Steps { steps, n_buffers: 2 })
}

/// The steps of DeepSpeed's `DataParallelSchedule`, the same on every rank: one stage, one buffer, gradients
/// accumulated over the micro-batches.
///
/// # Errors
/// [`ScheduleError`] for no micro-batch or a stream above the size limit.
///
/// # Source
/// `deepspeed/runtime/pipe/schedule.py`, `DataParallelSchedule`, 0.19.6.
///
/// # Examples
/// ```
/// let stream = brigade_schedule::deepspeed_data_parallel(3)?;
/// assert_eq!(stream.steps[2].last(), Some(&brigade_schedule::Instruction::OptimizerStep));
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn deepspeed_data_parallel(n_micro_batches: u32) -> Result<Steps, ScheduleError> {
    Shape { n_ranks: 1, n_micro_batches }.admit(1, 3)?;
    let (stage, buffer, part) = (Stage(0), BufferId(0), LoadPart::InputsAndTargets);
    let step = |micro_batch| {
        let mut step = vec![
            Instruction::LoadMicroBatch { stage, micro_batch, buffer, part },
            Instruction::ForwardPass { stage, micro_batch, buffer },
            Instruction::BackwardPass { stage, micro_batch, buffer },
        ];
        if micro_batch.0 == n_micro_batches - 1 {
            step.extend([Instruction::ReduceGrads, Instruction::OptimizerStep]);
        }
        step
    };
    Ok(Steps { steps: (0..n_micro_batches).map(MicroBatch).map(step).collect(), n_buffers: 1 })
}

/// Whether a stream has backward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forward and backward.
    Train,
    /// Forward alone.
    ForwardOnly,
}

/// The steps of `rank` in DeepSpeed's `DualPipeVSchedule`: rank `r` holds stages `r` and `2p - 1 - r`, and
/// buffer `m * phase + micro-batch` for each visit, where the phase is 0 for the first of the two stages.
///
/// # Errors
/// [`ScheduleError::TooFewMicroBatches`] for `m < 2p`; else as for [`deepspeed_train`].
///
/// # Source
/// `deepspeed/runtime/pipe/schedule.py`, `DualPipeVSchedule`, 0.19.8, which runs every backward pass whole.
///
/// # Examples
/// ```
/// use brigade_schedule::{DeepSpeedMode, PipeRank, Shape, deepspeed_dual_pipe_v};
/// let shape = Shape { n_ranks: 2, n_micro_batches: 4 };
/// let stream = deepspeed_dual_pipe_v(shape, PipeRank(0), DeepSpeedMode::Train)?;
/// assert_eq!(stream.n_buffers, 8);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn deepspeed_dual_pipe_v(
    shape: Shape,
    rank: PipeRank,
    mode: Mode,
) -> Result<Steps<Queued>, ScheduleError> {
    admit_rank(shape, rank)?;
    shape.admit(2, 3)?;
    admit(shape)?;
    let mut stream = DualStream::new(shape, rank, mode);
    let mut translated: Vec<Vec<Queued>> = steps(rank.0, shape).map(|step| stream.step(&step)).collect();
    let mut end = vec![Queued::CommitP2P];
    if mode == Mode::Train {
        let steps = [Instruction::ReduceTiedGrads, Instruction::ReduceGrads, Instruction::OptimizerStep];
        end.extend(steps.map(Queued::Instruction));
    }
    translated.push(end);
    Ok(Steps { steps: translated, n_buffers: 2 * shape.n_micro_batches })
}

/// Counts micro-batches per kind and phase while a rank's steps are translated.
struct DualStream {
    shape: Shape,
    rank: PipeRank,
    mode: Mode,
    n_done: [[u32; 2]; 6],
}

impl DualStream {
    fn new(shape: Shape, rank: PipeRank, mode: Mode) -> Self {
        Self { shape, rank, mode, n_done: [[0; 2]; 6] }
    }

    fn step(&mut self, ops: &[Op]) -> Vec<Queued> {
        let mut step = Vec::new();
        let mut ops = ops.iter().peekable();
        while let Some(&op) = ops.next() {
            // Without backward passes there is no chunk of weight gradients, nor its commit.
            if self.mode == Mode::ForwardOnly && op == Op::Commit && ops.peek() == Some(&&Op::Weight) {
                continue;
            }
            self.op(op, &mut step);
        }
        step
    }

    fn op(&mut self, op: Op, step: &mut Vec<Queued>) {
        use crate::schedules::dual::Phase::{Down, Up};
        let train = self.mode == Mode::Train;
        let (first, last) = (self.rank.0 == 0, self.rank.0 + 1 == self.shape.n_ranks);
        let (before, after) = (PipeRank(self.rank.0.wrapping_sub(1)), PipeRank(self.rank.0 + 1));
        let mut push = |instruction| step.push(Queued::Instruction(instruction));
        match op {
            Op::Commit => step.push(Queued::CommitP2P),
            Op::Weight => {}
            Op::Forward(phase) => {
                let (stage, micro_batch, buffer) = self.visit(0, phase.index());
                if first && phase == Down {
                    let part = LoadPart::Inputs;
                    push(Instruction::LoadMicroBatch { stage, micro_batch, buffer, part });
                }
                push(Instruction::ForwardPass { stage, micro_batch, buffer });
            }
            Op::Backward { phase, .. } if train => {
                let (stage, micro_batch, buffer) = self.visit(1, phase.index());
                push(Instruction::BackwardPass { stage, micro_batch, buffer });
            }
            Op::Pair { forward, backward } => {
                self.op(Op::Forward(forward), step);
                self.op(Op::Backward { phase: backward, split: false }, step);
            }
            Op::RecvForward(phase) if !(first && phase == Down || last && phase == Up) => {
                let from = if phase == Down { before } else { after };
                let (stage, micro_batch, buffer) = self.visit(2, phase.index());
                push(Instruction::RecvActivation { stage, micro_batch, buffer, from });
            }
            Op::SendForward(phase) if !(first && phase == Up || last && phase == Down) => {
                let to = if phase == Down { after } else { before };
                let (stage, micro_batch, buffer) = self.visit(3, phase.index());
                push(Instruction::SendActivation { stage, micro_batch, buffer, to });
            }
            Op::RecvBackward(phase) if train && !(first && phase == Up || last && phase == Down) => {
                let from = if phase == Down { after } else { before };
                let (stage, micro_batch, buffer) = self.visit(4, phase.index());
                push(Instruction::RecvGrad { stage, micro_batch, buffer, from });
            }
            Op::SendBackward(phase) if train && !(first && phase == Down || last && phase == Up) => {
                let to = if phase == Down { before } else { after };
                let (stage, micro_batch, buffer) = self.visit(5, phase.index());
                push(Instruction::SendGrad { stage, micro_batch, buffer, to });
            }
            Op::Backward { .. }
            | Op::RecvForward(_)
            | Op::SendForward(_)
            | Op::RecvBackward(_)
            | Op::SendBackward(_) => {}
        }
    }

    /// The next micro-batch of a kind of instruction in a phase.
    fn visit(&mut self, kind: usize, phase: usize) -> (Stage, MicroBatch, BufferId) {
        let Shape { n_ranks: p, n_micro_batches: m } = self.shape;
        let micro_batch = self.n_done[kind][phase];
        self.n_done[kind][phase] += 1;
        let (stage, buffer) =
            if phase == 0 { (self.rank.0, micro_batch) } else { (2 * p - 1 - self.rank.0, m + micro_batch) };
        (Stage(stage), MicroBatch(micro_batch), BufferId(buffer))
    }
}

/// The whole of [`deepspeed_train`] as a program, for the checker: it is sound even at rendezvous.
///
/// # Errors
/// As for [`deepspeed_train`].
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Shape, check, deepspeed_train_program};
/// let program = deepspeed_train_program(Shape { n_ranks: 4, n_micro_batches: 8 })?;
/// assert!(check(program, Capacity::RENDEZVOUS).is_ok());
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn deepspeed_train_program(shape: Shape) -> Result<Program, ScheduleError> {
    program(shape, deepspeed_train)
}

/// The whole of [`deepspeed_inference`] as a program, for the checker: it is sound even at rendezvous.
///
/// # Errors
/// As for [`deepspeed_train`].
///
/// # Examples
/// ```
/// use brigade_schedule::{Capacity, Shape, check, deepspeed_inference_program};
/// let program = deepspeed_inference_program(Shape { n_ranks: 4, n_micro_batches: 8 })?;
/// assert!(check(program, Capacity::RENDEZVOUS).is_ok());
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
pub fn deepspeed_inference_program(shape: Shape) -> Result<Program, ScheduleError> {
    program(shape, deepspeed_inference)
}

fn program(
    shape: Shape,
    steps: impl Fn(Shape, PipeRank) -> Result<Steps, ScheduleError>,
) -> Result<Program, ScheduleError> {
    let stream = |rank| Ok(steps(shape, PipeRank(rank))?.steps.into_iter().flatten().collect());
    let streams: Result<Vec<_>, ScheduleError> = (0..shape.n_ranks).map(stream).collect();
    Ok(Program::new(Placement::linear(shape.n_ranks)?, shape.n_micro_batches, streams?)?)
}

fn admit_rank(shape: Shape, rank: PipeRank) -> Result<(), ScheduleError> {
    shape.admit(1, 2)?;
    if rank.0 >= shape.n_ranks {
        return Err(ScheduleError::NoSuchRank { rank, n_ranks: shape.n_ranks });
    }
    Ok(())
}
