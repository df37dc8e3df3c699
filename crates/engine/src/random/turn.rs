//! Turns at Burn's random state, which the whole process shares.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use burn::tensor::Device;

use super::PassContext;

/// Burn's random numbers come from one state for the whole process: one rank at a time may seed it and
/// draw, to build a layer or to run one.
static STATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// The turn of one rank; ends when it is dropped.
pub(crate) struct Turn;

impl Turn {
    /// Waits for the turn; `None` when it did not come in time.
    pub(crate) fn take(deadline: Duration) -> Option<Self> {
        let (busy, ended) = &STATE;
        let busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut busy, _) =
            ended.wait_timeout_while(busy, deadline, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
        if *busy {
            return None;
        }
        *busy = true;
        Some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *STATE.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        STATE.1.notify_one();
    }
}

/// Runs forward passes alone in the process, from a seed of their own.
#[derive(Clone, Debug)]
pub(crate) struct Exclusive {
    pub(crate) device: Device,
    pub(crate) deadline: Duration,
}

impl Exclusive {
    /// Runs `forward` once it is this rank's turn; `None` when the turn did not come in time.
    pub(crate) fn during<R>(&self, pass: PassContext, forward: impl FnOnce() -> R) -> Option<R> {
        let _turn = Turn::take(self.deadline)?;
        self.device.seed(pass.device_seed());
        Some(forward())
    }
}
