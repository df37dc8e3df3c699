//! Which samples of a data set each micro-batch of each replica takes: every one once an epoch.

use serde::{Deserialize, Serialize};

/// The most samples of a data set, and of a batch.
const SAMPLES_MAX: u64 = 1 << 62;

/// Rounds of the shuffle's mixing: with the halves of a number only some bits wide, each round moves few.
const ROUNDS: u64 = 12;

/// What happens to the samples at an epoch's end that fill no whole batch of all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Tail {
    /// They are left out: every sample comes at most once an epoch. Another shuffle leaves out others.
    #[default]
    Drop,
    /// The batch is filled from the epoch's beginning: every sample comes at least once.
    Pad,
}

/// What a [`Sampler`] is made from; equal on all ranks but for the replica.
///
/// # Units
/// Samples, unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SamplerConfig {
    /// Samples of the data set.
    pub n_samples: u64,
    /// Samples of one micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches that one replica takes for one step.
    pub n_micro_batches: u32,
    /// Number of replicas.
    pub n_replicas: u32,
    /// This rank's replica, from 0: its coordinate on the `data` axis.
    pub replica: u32,
    /// Seed of the shuffle, or the order of the data set.
    pub shuffle: Option<u64>,
    /// The end of an epoch.
    pub tail: Tail,
}

impl SamplerConfig {
    /// One replica and one micro-batch a step, in the order of the data set, without the tail.
    #[must_use]
    pub fn new(n_samples: u64, micro_batch_size: u32) -> Self {
        Self {
            n_samples,
            micro_batch_size,
            n_micro_batches: 1,
            n_replicas: 1,
            replica: 0,
            shuffle: None,
            tail: Tail::Drop,
        }
    }

    /// Sets the number of micro-batches of a step.
    #[must_use]
    pub fn micro_batches(mut self, n_micro_batches: u32) -> Self {
        self.n_micro_batches = n_micro_batches;
        self
    }

    /// Says which of how many replicas this rank belongs to.
    #[must_use]
    pub fn replica(mut self, replica: u32, n_replicas: u32) -> Self {
        (self.replica, self.n_replicas) = (replica, n_replicas);
        self
    }

    /// Shuffles every epoch anew, by this seed and the number of the epoch.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.shuffle = Some(seed);
        self
    }

    /// Sets what happens to an incomplete batch.
    #[must_use]
    pub fn tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }
}

/// Why there is no sampler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A number that must be at least 1 is 0.
    #[error("{what} is 0: give at least 1")]
    Zero {
        /// Name of the setting.
        what: &'static str,
    },
    /// There is no such replica.
    #[error("replica {replica} of {n_replicas}: replicas count from 0")]
    Replica {
        /// The given replica.
        replica: u32,
        /// Their number.
        n_replicas: u32,
    },
    /// More samples than can be counted.
    #[error("a data set or a batch of {n_samples} samples: at most {SAMPLES_MAX}")]
    Samples {
        /// The number.
        n_samples: u64,
    },
    /// An epoch without a whole batch.
    #[error(
        "{n_samples} samples are fewer than one batch of {batch}: no batch would come; take smaller ones or `Tail::Pad`"
    )]
    NoBatch {
        /// Samples of the data set.
        n_samples: u64,
        /// Samples of one batch of all replicas.
        batch: u64,
    },
    /// A saved state that is outside its epoch.
    #[error(
        "the state is at batch {batch}, micro-batch {micro_batch} of an epoch of {n_batches} batches of {n_micro_batches}: it was saved with other settings"
    )]
    State {
        /// Batch of the state.
        batch: u64,
        /// Micro-batch of the state.
        micro_batch: u32,
        /// Batches of an epoch.
        n_batches: u64,
        /// Micro-batches of a batch.
        n_micro_batches: u32,
    },
}

/// Where a [`Sampler`] is: save it beside the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerState {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Batches of this epoch that are complete.
    pub batch: u64,
    /// Micro-batches of the next batch that have been taken.
    pub micro_batch: u32,
}

/// Gives the sample numbers of one micro-batch after the other, and `None` between two epochs.
///
/// A batch of the epoch is cut into one slice a replica and each slice into micro-batches, so that two
/// replicas with two micro-batches see the samples of one replica with four. The ranks of one replica
/// that feed its pipeline have the same settings and so the same samples. It holds no list of the
/// samples: a shuffled epoch is a function of the seed, the epoch and the place.
///
/// A state that was saved at the end of a batch fits other numbers of replicas and micro-batches, as
/// long as a batch of all replicas has as many samples.
///
/// # Source
/// The role of PyTorch's `DistributedSampler`. The shuffle is own: a Feistel network over the smallest
/// even number of bits that holds the data set, walked until it lands inside.
///
/// # Examples
/// ```
/// use brigade_engine::{Sampler, SamplerConfig};
///
/// let mut seen = Vec::new();
/// for replica in 0..2 {
///     let config = SamplerConfig::new(12, 2).micro_batches(3).replica(replica, 2).shuffle(7);
///     let mut sampler = Sampler::new(config)?;
///     seen.extend(sampler.by_ref().flatten());
///     assert_eq!(sampler.state().epoch, 1, "the next epoch follows");
/// }
/// seen.sort_unstable();
/// assert_eq!(seen, (0..12).collect::<Vec<u64>>());
/// # Ok::<(), brigade_engine::SamplerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    state: SamplerState,
    /// Samples of one batch of all replicas.
    batch: u64,
    n_batches: u64,
}

impl Sampler {
    /// Starts at the first epoch.
    ///
    /// # Errors
    /// [`SamplerError`] for settings that give no batch.
    pub fn new(config: SamplerConfig) -> Result<Self, SamplerError> {
        Self::resume(config, SamplerState::default())
    }

    /// Goes on where a saved state was.
    ///
    /// # Errors
    /// As for [`Sampler::new`]; [`SamplerError::State`] for a state that these settings cannot reach.
    pub fn resume(config: SamplerConfig, state: SamplerState) -> Result<Self, SamplerError> {
        let sizes = [
            ("the number of samples", config.n_samples),
            ("the size of a micro-batch", config.micro_batch_size.into()),
            ("the number of micro-batches", config.n_micro_batches.into()),
            ("the number of replicas", config.n_replicas.into()),
        ];
        if let Some(&(what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(SamplerError::Zero { what });
        }
        let SamplerConfig { n_samples, replica, n_replicas, n_micro_batches, .. } = config;
        if replica >= n_replicas {
            return Err(SamplerError::Replica { replica, n_replicas });
        }
        let batch = u64::from(config.micro_batch_size)
            .saturating_mul(n_micro_batches.into())
            .saturating_mul(n_replicas.into());
        let most = n_samples.max(batch);
        if most > SAMPLES_MAX {
            return Err(SamplerError::Samples { n_samples: most });
        }
        let n_batches = match config.tail {
            Tail::Drop => n_samples / batch,
            Tail::Pad => n_samples.div_ceil(batch),
        };
        if n_batches == 0 {
            return Err(SamplerError::NoBatch { n_samples, batch });
        }
        let SamplerState { batch: at, micro_batch, .. } = state;
        if at >= n_batches || micro_batch >= n_micro_batches {
            return Err(SamplerError::State { batch: at, micro_batch, n_batches, n_micro_batches });
        }
        Ok(Self { config, state, batch, n_batches })
    }

    /// Where the next micro-batch comes from.
    #[must_use]
    pub fn state(&self) -> SamplerState {
        // The end of an epoch that has not been told yet is the start of the next one all the same.
        if self.state.batch >= self.n_batches {
            SamplerState { epoch: self.state.epoch.wrapping_add(1), ..SamplerState::default() }
        } else {
            self.state
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Steps of an epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.n_batches
    }

    /// The sample at a place of the running epoch.
    fn sample(&self, place: u64) -> u64 {
        // Past the end only when the last batch is filled up.
        let place = place % self.config.n_samples;
        match self.config.shuffle {
            Some(seed) => shuffled(place, self.config.n_samples, mix(seed, self.state.epoch)),
            None => place,
        }
    }
}

impl Iterator for Sampler {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        if self.state.batch >= self.n_batches {
            self.state = self.state();
            return None;
        }
        let size = u64::from(self.config.micro_batch_size);
        let slice = u64::from(self.config.replica) * u64::from(self.config.n_micro_batches);
        let number = slice + u64::from(self.state.micro_batch);
        let first = self.state.batch * self.batch + number * size;
        let samples = (first..first + size).map(|place| self.sample(place)).collect();
        self.state.micro_batch += 1;
        if self.state.micro_batch == self.config.n_micro_batches {
            self.state.micro_batch = 0;
            self.state.batch += 1;
        }
        Some(samples)
    }
}

/// The place of `place` in a shuffle of `0..n`.
fn shuffled(place: u64, n: u64, key: u64) -> u64 {
    let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1_u64 << half) - 1;
    let mut at = place;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(mix(key, round), right) & mask));
        }
        at = (left << half) | right;
        // The network permutes fewer than 4 n numbers; those of the same cycle lead back into 0..n.
        if at < n {
            return at;
        }
    }
}

/// Mixes two numbers into one that depends on every bit of both.
///
/// # Source
/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
