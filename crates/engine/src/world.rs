//! A world of ranks in one process: one thread each, with a worker pool of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use brigade_topology::Rank;
use crossbeam::channel::{Receiver, Sender, TryRecvError, bounded, select};

use crate::error::{Cause, Site, StepError, WorldError, WorldSizeError, panic_message};
use crate::hub::{Contribution, Hub, receive_until};

/// The largest number of ranks in one process: each is a thread.
pub const RANKS_MAX: usize = 4096;
/// The largest number of worker threads a rank.
pub const THREADS_MAX: usize = 1024;
/// How long any wait may last unless the user says otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(600);

/// An `Instant` overflows beyond its platform's range; a century is for ever.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Burn's backward pass recurses little, but a rank is somebody's main thread: give it as much stack.
const STACK_BYTES: usize = 8 << 20;

/// A number of ranks that run one program together.
///
/// # Examples
/// ```
/// use brigade_engine::{EngineError, World};
///
/// let squares = World::local(3)?
///     .run(|rank| Ok::<_, EngineError>(rank.rank().index() * rank.rank().index()))?;
/// assert_eq!(squares, [0, 1, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct World {
    n_ranks: usize,
    n_threads: usize,
    deadline: Duration,
}

impl World {
    /// A world of `n_ranks` threads of this process, each with one worker thread: itself.
    ///
    /// # Errors
    /// [`WorldSizeError::Size`] for 0 ranks or more than [`RANKS_MAX`].
    pub fn local(n_ranks: usize) -> Result<Self, WorldSizeError> {
        if n_ranks == 0 || n_ranks > RANKS_MAX {
            return Err(WorldSizeError::Size { ranks: n_ranks, max: RANKS_MAX });
        }
        Ok(Self { n_ranks, n_threads: 1, deadline: DEADLINE_DEFAULT })
    }

    /// Sets the number of worker threads of each rank.
    ///
    /// With one worker a rank, two ranks on two cores run twice as fast as one; workers that several
    /// ranks share do not reach that.
    ///
    /// # Errors
    /// [`WorldSizeError::Threads`] for 0 threads or more than [`THREADS_MAX`].
    pub fn threads_per_rank(mut self, n_threads: usize) -> Result<Self, WorldSizeError> {
        if n_threads == 0 || n_threads > THREADS_MAX {
            return Err(WorldSizeError::Threads { threads: n_threads, max: THREADS_MAX });
        }
        self.n_threads = n_threads;
        Ok(self)
    }

    /// Sets how long a rank may wait for another before the step fails; [`DEADLINE_DEFAULT`] if unset.
    ///
    /// It must be longer than the longest work that a rank does between two messages.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(DEADLINE_MAX);
        self
    }

    /// Runs `program` once on every rank and returns the results in rank order.
    ///
    /// When a rank fails, the others end with that first failure as soon as their running
    /// instruction is done. A rank that does not come back within the deadline after a failure is
    /// given up, its thread left behind: that is why the program owns what it uses.
    ///
    /// # Errors
    /// [`WorldError`]: the first failure, whether the program returned or panicked.
    pub fn run<R, E, F>(&self, program: F) -> Result<Vec<R>, WorldError<E>>
    where
        F: Fn(RankHandle) -> Result<R, E> + Send + Sync + 'static,
        R: Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let hub = Arc::new(Hub::new(self.n_ranks, self.deadline));
        let program = Arc::new(program);
        // Capacity: every rank sends one outcome, so none ever waits here.
        let (sender, outcomes) = bounded(self.n_ranks);
        let mut threads = Vec::with_capacity(self.n_ranks);
        for rank in (0..self.n_ranks).map(to_rank) {
            let runner = Runner {
                rank,
                n_threads: self.n_threads,
                hub: Arc::clone(&hub),
                program: Arc::clone(&program),
                outcomes: sender.clone(),
            };
            let spawned = thread::Builder::new()
                .name(format!("brigade-rank-{rank}"))
                .stack_size(STACK_BYTES)
                .spawn(move || runner.run());
            match spawned {
                Ok(handle) => threads.push(handle),
                Err(error) => {
                    hub.fail(program_stopped(rank, error.to_string()));
                    return Err(WorldError::Start { rank, message: error.to_string() });
                }
            }
        }
        drop(sender);
        self.collect(&hub, &outcomes, threads)
    }

    fn collect<R, E>(
        &self,
        hub: &Hub,
        outcomes: &Receiver<(Rank, Outcome<R, E>)>,
        threads: Vec<JoinHandle<()>>,
    ) -> Result<Vec<R>, WorldError<E>> {
        let mut ended: Vec<Option<Outcome<R, E>>> = (0..self.n_ranks).map(|_| None).collect();
        let failure = hub.failure_signal();
        let mut until = None;
        while ended.iter().any(Option::is_none) {
            if until.is_none() {
                // Wait for an outcome or the first failure; from then on the deadline counts.
                select! {
                    recv(outcomes) -> outcome => match outcome {
                        Ok((rank, outcome)) => ended[rank.index()] = Some(outcome),
                        Err(_) => break,
                    },
                    recv(failure) -> _ => until = Some(Instant::now() + self.deadline),
                }
                continue;
            }
            match receive_until(outcomes, until) {
                Ok((rank, outcome)) => ended[rank.index()] = Some(outcome),
                Err(_) => break,
            }
        }
        let n_missing = ended.iter().filter(|e| e.is_none()).count();
        // Disconnected: every thread is at its end, and one has lost its outcome to a panic.
        let alive = !matches!(outcomes.try_recv(), Err(TryRecvError::Disconnected));
        if let Some(missing) = ended.iter().position(Option::is_none)
            && alive
            && let Some(first) = hub.first_failure()
        {
            return Err(WorldError::Stuck {
                rank: to_rank(missing),
                n_ranks: n_missing,
                waited: self.deadline,
                first: first.clone(),
            });
        }
        for thread in threads {
            // The outcome has arrived, so the thread is at its end; its panics were caught.
            let _ = thread.join();
        }
        let origin = hub.first_failure().map(|first| first.site().rank);
        let mut results = Vec::with_capacity(self.n_ranks);
        let mut errors = Vec::new();
        for (rank, outcome) in ended.into_iter().enumerate() {
            match outcome {
                Some(Outcome::Returned(Ok(result))) => results.push(result),
                Some(Outcome::Returned(Err(source))) => {
                    errors.push(WorldError::Rank { rank: to_rank(rank), source });
                }
                Some(Outcome::Panicked(message)) => {
                    errors.push(WorldError::Panicked { rank: to_rank(rank), message });
                }
                Some(Outcome::NotStarted(message)) => {
                    errors.push(WorldError::Start { rank: to_rank(rank), message });
                }
                None => errors.push(WorldError::Panicked { rank: to_rank(rank), message: LOST.to_owned() }),
            }
        }
        let first = errors.iter().position(|error| origin == Some(rank_of(error))).unwrap_or(0);
        if errors.is_empty() { Ok(results) } else { Err(errors.swap_remove(first)) }
    }
}

/// How a rank's program ended.
enum Outcome<R, E> {
    Returned(Result<R, E>),
    Panicked(String),
    NotStarted(String),
}

/// Takes a rank out of the world however its thread ends.
struct Leave {
    rank: Rank,
    hub: Arc<Hub>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if thread::panicking() {
            self.hub.fail(program_stopped(self.rank, LOST.to_owned()));
        }
        self.hub.leave(self.rank);
    }
}

const LOST: &str = "a panic outside the program, in the display or drop of its error or panic payload";

/// What a rank's thread needs.
struct Runner<R, E, F> {
    rank: Rank,
    n_threads: usize,
    hub: Arc<Hub>,
    program: Arc<F>,
    outcomes: Sender<(Rank, Outcome<R, E>)>,
}

impl<R, E: std::fmt::Display, F: Fn(RankHandle) -> Result<R, E>> Runner<R, E, F> {
    fn run(self) {
        let _leave = Leave { rank: self.rank, hub: Arc::clone(&self.hub) };
        let outcome = self.outcome();
        let message = match &outcome {
            Outcome::Returned(Ok(_)) => None,
            Outcome::Returned(Err(error)) => Some(error.to_string()),
            Outcome::Panicked(message) | Outcome::NotStarted(message) => Some(message.clone()),
        };
        if let Some(message) = message {
            self.hub.fail(program_stopped(self.rank, message));
        }
        // The world may have given up waiting; then nobody wants the outcome.
        let _ = self.outcomes.send((self.rank, outcome));
    }

    fn outcome(&self) -> Outcome<R, E> {
        // Keeps every rayon call of this thread on its own workers; see `threads_per_rank`.
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.n_threads)
            .use_current_thread()
            .thread_name({
                let rank = self.rank;
                move |worker| format!("brigade-rank-{rank}-worker-{worker}")
            })
            .build();
        let _pool = match pool {
            Ok(pool) => pool,
            Err(error) => return Outcome::NotStarted(error.to_string()),
        };
        let handle = RankHandle { rank: self.rank, hub: Arc::clone(&self.hub), n_plans: Arc::default() };
        // Whatever the program leaves behind half done is dropped with it.
        match catch_unwind(AssertUnwindSafe(|| (self.program)(handle))) {
            Ok(result) => Outcome::Returned(result),
            Err(payload) => Outcome::Panicked(panic_message(payload.as_ref())),
        }
    }
}

/// One rank of a world, as its program sees it.
#[derive(Clone)]
pub struct RankHandle {
    rank: Rank,
    hub: Arc<Hub>,
    n_plans: Arc<AtomicU64>,
}

impl RankHandle {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks of the world.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.hub.n_ranks()
    }

    /// How long any wait of this rank may last.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.hub.deadline()
    }

    /// Records a failure for every rank; see [`Hub::fail`].
    pub(crate) fn fail(&self, site: Site, cause: Cause) -> StepError {
        self.hub.fail(StepError::new(site, cause))
    }

    /// Shares a contribution with every rank, which must all make the same call; see [`Hub::exchange`].
    pub(crate) fn exchange(
        &self,
        contribution: Contribution,
        site: impl Fn() -> Site,
    ) -> Result<Arc<Vec<Contribution>>, StepError> {
        let here = contribution.call.clone();
        let all = self.hub.exchange(self.rank, contribution, &site)?;
        // Every rank compares with the lowest rank that differs from it.
        match all.iter().position(|other| other.call != here) {
            None => Ok(all),
            Some(other) => {
                let cause =
                    Cause::CallsDiffer { here, other: to_rank(other), there: all[other].call.clone() };
                Err(self.fail(site(), cause))
            }
        }
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Numbers the plans of this rank in the order in which they are set up.
    pub(crate) fn next_plan(&self) -> u64 {
        self.n_plans.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn site(&self, phase: &str) -> Site {
        Site { rank: self.rank, stage: None, micro_batch: None, instruction: phase.to_owned() }
    }
}

impl std::fmt::Debug for RankHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RankHandle")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size())
            .finish_non_exhaustive()
    }
}

fn program_stopped(rank: Rank, message: String) -> StepError {
    let site = Site { rank, stage: None, micro_batch: None, instruction: "program".to_owned() };
    StepError::new(site, Cause::ProgramStopped { message })
}

fn to_rank(index: usize) -> Rank {
    Rank(u64::try_from(index).unwrap_or(u64::MAX))
}

fn rank_of<E>(error: &WorldError<E>) -> Rank {
    match error {
        WorldError::Rank { rank, .. }
        | WorldError::Panicked { rank, .. }
        | WorldError::Stuck { rank, .. }
        | WorldError::Start { rank, .. } => *rank,
    }
}
