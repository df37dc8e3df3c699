//! Time that one thread spent computing, so that figures of a busy machine can be compared.

use std::time::{Duration, Instant};

use criterion::Bencher;

/// Runs `work` on a thread whose kernels all run on itself, and measures the processor time of that thread,
/// which other programs on the machine hardly change; wall time where the system does not tell it.
pub(crate) fn on_one_thread<R>(bencher: &mut Bencher<'_>, mut work: impl FnMut() -> R) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    // A thread can have one such pool; the second benchmark on it keeps the first's.
    std::mem::forget(pool);
    bencher.iter_custom(|n| {
        let (wall, processor) = (Instant::now(), processor_time());
        for _ in 0..n {
            drop(work());
        }
        match (processor, processor_time()) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => wall.elapsed(),
        }
    });
}

/// Nanoseconds on a processor, as Linux counts them for a thread.
fn processor_time() -> Option<Duration> {
    // Brings the count up to date, which otherwise is as old as the last tick.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
