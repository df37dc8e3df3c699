//! Memory: what a model needs at least, what the machine has, and what the process took.

use std::fs;

use crate::error::UsageError;
use crate::options::Options;

/// Refuses a model that cannot fit into this machine, before an allocation ends the process.
///
/// # Errors
/// [`UsageError::Memory`]; never where the size of the memory is not known.
pub(crate) fn check_fits(options: &Options, n_symbols: usize) -> Result<(), UsageError> {
    let Some(total) = read("/proc/meminfo", "MemTotal:") else {
        return Ok(());
    };
    let (needed, total) = (bytes_min(options, n_symbols), u128::from(total));
    if needed <= total {
        return Ok(());
    }
    Err(UsageError::Memory { needed_mib: needed >> 20, total_mib: total >> 20 })
}

/// Highest resident memory of this process so far; `None` where the system does not say.
///
/// # Units
/// Bytes.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    read("/proc/self/status", "VmHWM:")
}

/// A lower bound: weights, gradients and two moments of each, and for one micro-batch the scores of the
/// attention and ten activations of a block.
fn bytes_min(options: &Options, n_symbols: usize) -> u128 {
    let [layers, width, heads, seq, rows] =
        [options.layers, options.width, options.heads, options.seq, options.micro_batch].map(u128::from);
    let symbols = u128::try_from(n_symbols).unwrap_or(u128::MAX);
    let n_parameters = (2 * symbols + seq) * width + 12 * layers * width * width;
    let n_activations = rows * seq * (layers * (10 * width + heads * seq) + symbols);
    4 * (4 * n_parameters + n_activations)
}

/// One value of a file of lines like `VmHWM:   1024 kB`.
fn read(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
