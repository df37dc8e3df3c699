//! The seed of each layer: what makes initial weights independent of the split.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Device;

/// The seed that DeepSpeed starts from as well.
pub const BASE_SEED_DEFAULT: u64 = 1234;

type SeedFn = Arc<dyn Fn(u64, usize) -> u64 + Send + Sync>;
type SeedHook = Arc<dyn Fn(u64) + Send + Sync>;

/// Where the seeds of layers come from.
#[derive(Clone)]
pub(super) struct Seeds {
    pub(super) base: u64,
    pub(super) function: SeedFn,
    pub(super) hook: Option<SeedHook>,
}

impl Default for Seeds {
    fn default() -> Self {
        let next = |base: u64, layer: usize| base.wrapping_add(u64::try_from(layer).unwrap_or(u64::MAX));
        Self { base: BASE_SEED_DEFAULT, function: Arc::new(next), hook: None }
    }
}

impl Seeds {
    /// Seeds Burn's random numbers, and whatever the hook seeds, for one layer.
    ///
    /// Both functions are the user's and may panic.
    pub(super) fn start(&self, device: &Device, layer: usize) {
        let seed = (self.function)(self.base, layer);
        device.seed(seed);
        if let Some(hook) = &self.hook {
            hook(seed);
        }
    }
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seeds").field("base", &self.base).finish_non_exhaustive()
    }
}
