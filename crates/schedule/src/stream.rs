//! Regular schedules row by row, for sizes that do not fit in memory.

use brigade_topology::{PipeRank, Placement};

use crate::action::Action;
use crate::error::{LowerError, ScheduleError};
use crate::instruction::Instruction;
use crate::lower::{Planned, RankLowering};
use crate::plan::MAX_ACTIONS;
use crate::schedules::{
    Schedule, dual_pipe, dual_pipe_v, forward_only, gpipe, interleaved, looped_bfs, one_f_one_b, zb_h1,
};
use crate::shape::Shape;

/// The row of a rank, one action at a time.
type Row = Box<dyn Iterator<Item = Action> + Send>;

/// A schedule whose rows are computed while they are read: GPipe, 1F1B, interleaved 1F1B, looped breadth-first,
/// ZB-H1, ZB-H2, DualPipe on an even number of ranks, DualPipeV and forward-only.
///
/// Interleaved zero-bubble, ZB-V, V-Half, V-Min, and DualPipe on an odd number of ranks cannot be read so: their
/// orders come from a search over all ranks and micro-batches at once, and no rank's row is known before all are.
///
/// A row takes no memory itself, but for the weight gradients that wait in DualPipe and DualPipeV, at most one for
/// each rank. Ten thousand ranks of a hundred thousand micro-batches are as good as four of
/// eight.
///
/// # Examples
/// ```
/// use brigade_schedule::{PipeRank, Schedule, Shape, Stream};
/// let stream = Stream::new(Schedule::OneFOneB, Shape { n_ranks: 10_000, n_micro_batches: 100_000 })?;
/// let row = stream.row(PipeRank(9_998))?;
/// let first: Vec<String> = row.take(3).map(|action| action.to_string()).collect();
/// assert_eq!(first, ["9998F0", "9998F1", "9998B0"]);
/// # Ok::<(), brigade_schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    schedule: Schedule,
    shape: Shape,
    placement: Placement,
}

impl Stream {
    /// Makes the stream of a schedule.
    ///
    /// # Errors
    /// [`ScheduleError::NoStream`] for a schedule that is searched as a whole; [`ScheduleError::TooLong`] when a
    /// single rank has more visits than [`MAX_ACTIONS`]; else as for the schedule.
    pub fn new(schedule: Schedule, shape: Shape) -> Result<Self, ScheduleError> {
        let Shape { n_ranks, n_micro_batches } = shape;
        let (n_virtual, placement) = match schedule {
            Schedule::GPipe
            | Schedule::OneFOneB
            | Schedule::ZbH1
            | Schedule::ZbH2
            | Schedule::ForwardOnly => (1, Placement::linear(n_ranks)),
            Schedule::Interleaved { n_virtual } | Schedule::LoopedBfs { n_virtual } => {
                (n_virtual, Placement::looped(n_ranks, n_virtual))
            }
            Schedule::DualPipe if dual_pipe::has_rows(shape) => (1, Placement::bidirectional(n_ranks)),
            Schedule::DualPipeV => (2, Placement::v(n_ranks)),
            _ => return Err(ScheduleError::NoStream { schedule: schedule.name() }),
        };
        if n_micro_batches == 0 {
            return Err(ScheduleError::NoMicroBatches);
        }
        if u64::from(n_micro_batches) * u64::from(n_virtual) > MAX_ACTIONS {
            return Err(ScheduleError::TooLong { n_ranks, n_micro_batches, n_virtual, max: MAX_ACTIONS });
        }
        Ok(Self { schedule, shape, placement: placement? })
    }

    /// Where each stage lives.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The row of `rank`.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchRank`] for a rank that the shape does not have.
    pub fn row(&self, rank: PipeRank) -> Result<Row, ScheduleError> {
        self.admit(rank)?;
        Ok(self.known_row(rank))
    }

    /// The instructions of `rank`, as [`crate::lower`] makes them; it holds a few bytes for each micro-batch of
    /// this rank.
    ///
    /// # Errors
    /// [`ScheduleError::NoSuchRank`] for a rank that the shape does not have.
    ///
    /// # Examples
    /// ```
    /// use brigade_schedule::{PipeRank, Schedule, Shape, Stream};
    /// let stream = Stream::new(Schedule::OneFOneB, Shape { n_ranks: 10_000, n_micro_batches: 100_000 })?;
    /// let mut instructions = stream.instructions(PipeRank(1))?;
    /// let first = instructions.next().transpose()?.map(|step| step.to_string());
    /// assert_eq!(first.as_deref(), Some("RecvActivation(buffer_id=0)"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn instructions(&self, rank: PipeRank) -> Result<Instructions, ScheduleError> {
        self.admit(rank)?;
        let stream = *self;
        let row_of: RowOf = Box::new(move |rank| stream.known_row(rank));
        let forward_only = self.schedule == Schedule::ForwardOnly;
        let m = self.shape.n_micro_batches;
        let lowering = RankLowering::new(self.placement, m, rank, forward_only, Planned::default(), row_of);
        Ok(Instructions { row: Some(self.known_row(rank)), lowering, ready: Vec::new().into_iter() })
    }

    fn admit(&self, rank: PipeRank) -> Result<(), ScheduleError> {
        let n_ranks = self.shape.n_ranks;
        if rank.0 < n_ranks { Ok(()) } else { Err(ScheduleError::NoSuchRank { rank, n_ranks }) }
    }

    fn known_row(&self, rank: PipeRank) -> Row {
        let (shape, rank) = (self.shape, rank.0);
        match self.schedule {
            Schedule::GPipe => Box::new(gpipe::row(shape, rank)),
            Schedule::OneFOneB => Box::new(one_f_one_b::row(shape, rank)),
            Schedule::Interleaved { n_virtual } => Box::new(interleaved::row(shape, n_virtual, rank)),
            Schedule::LoopedBfs { n_virtual } => Box::new(looped_bfs::row(shape, n_virtual, rank)),
            Schedule::ZbH1 => Box::new(zb_h1::row(shape, 1, rank)),
            Schedule::ZbH2 => Box::new(zb_h1::row(shape, 2, rank)),
            Schedule::DualPipe => Box::new(dual_pipe::row(shape, rank)),
            Schedule::DualPipeV => Box::new(dual_pipe_v::row(shape, rank)),
            _ => Box::new(forward_only::row(shape, rank)),
        }
    }
}

type RowOf = Box<dyn Fn(PipeRank) -> Row + Send>;

/// The instructions of a rank, lowered while they are read.
pub struct Instructions {
    /// The rest of the row; nothing once its end has been lowered too.
    row: Option<Row>,
    lowering: RankLowering<Row, RowOf>,
    ready: std::vec::IntoIter<Instruction>,
}

impl std::fmt::Debug for Instructions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instructions").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Iterator for Instructions {
    type Item = Result<Instruction, LowerError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(instruction) = self.ready.next() {
                return Some(Ok(instruction));
            }
            let row = self.row.as_mut()?;
            let mut ready = Vec::new();
            match row.next() {
                Some(action) => {
                    if let Err(error) = self.lowering.push(action, &mut ready) {
                        self.row = None;
                        return Some(Err(error));
                    }
                }
                None => {
                    self.lowering.finish(&mut ready);
                    self.row = None;
                }
            }
            self.ready = ready.into_iter();
        }
    }
}
