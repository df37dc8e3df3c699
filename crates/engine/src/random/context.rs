//! Which layer runs on this thread, for which micro-batch of which step.

use std::cell::Cell;

use brigade_schedule::MicroBatch;
use brigade_topology::Stage;

use super::stream::Stream;

/// Where a layer's forward pass stands in the training: what keyed random numbers depend on.
///
/// The engine sets it on the thread of a rank while a layer or the loss function runs, also when it runs
/// a forward again for the backward pass. Layers at any depth inside can ask for it.
///
/// `stage` has no influence on random numbers, which is why they are equal at every split.
///
/// # Examples
/// A layer outside a pipeline with the numbers that it would draw in one:
/// ```
/// use brigade_engine::nn::Dropout;
/// use brigade_engine::random::PassContext;
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::ones([64], &Device::flex().autodiff());
/// let dropout = Dropout::new(0.5)?;
/// let pass = PassContext::training(1234, 7).micro_batch(2).layer(5);
/// let first = pass.during(|| dropout.forward(x.clone())).into_data();
/// let again = pass.during(|| dropout.forward(x.clone())).into_data();
/// let other = pass.layer(6).during(|| dropout.forward(x)).into_data();
/// assert_eq!(first, again);
/// assert_ne!(first, other);
/// # Ok::<(), brigade_engine::nn::ProbabilityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PassContext {
    /// Seed of the whole run: the base seed of the module.
    pub seed: u64,
    /// Number of the optimizer step, from 0.
    pub step: u64,
    /// Number of the micro-batch in the step, from 0, over all replicas: replica `r` of a pipeline with
    /// `m` micro-batches has `r * m` to `r * m + m - 1`.
    pub micro_batch: u64,
    /// Global index of the layer; the loss function comes after the last one.
    pub layer: u64,
    /// The stage that the layer belongs to.
    pub stage: Stage,
    /// Whether the pass is part of a training step, not of an evaluation.
    pub is_training: bool,
}

thread_local! {
    /// The pass that runs on this thread, and how often it has drawn.
    static CURRENT: Cell<Option<(PassContext, u64)>> = const { Cell::new(None) };
    /// How often this thread has drawn outside of any pass.
    static STANDALONE: Cell<u64> = const { Cell::new(0) };
}

impl PassContext {
    /// A training pass of layer 0 on micro-batch 0.
    #[must_use]
    pub fn training(seed: u64, step: u64) -> Self {
        Self { seed, step, micro_batch: 0, layer: 0, stage: Stage(0), is_training: true }
    }

    /// A pass without training of layer 0 on micro-batch 0, after `step` steps.
    #[must_use]
    pub fn evaluation(seed: u64, step: u64) -> Self {
        Self { is_training: false, ..Self::training(seed, step) }
    }

    /// The same for another micro-batch.
    #[must_use]
    pub fn micro_batch(self, micro_batch: u64) -> Self {
        Self { micro_batch, ..self }
    }

    /// The same for another layer.
    #[must_use]
    pub fn layer(self, layer: u64) -> Self {
        Self { layer, ..self }
    }

    /// The same for another stage.
    #[must_use]
    pub fn stage(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// The pass that runs on this thread, if one does.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.get().map(|(context, _)| context)
    }

    /// Runs `forward` as this pass: keyed random numbers in it start from call 0.
    ///
    /// A pass that was running before goes on after it, also when `forward` panics.
    pub fn during<R>(self, forward: impl FnOnce() -> R) -> R {
        struct Reset(Option<(PassContext, u64)>);
        impl Drop for Reset {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _reset = Reset(CURRENT.replace(Some((self, 0))));
        forward()
    }

    /// What the engine seeds Burn's random state with before this pass of an exclusive layer.
    ///
    /// See [`exclusive`](crate::PipelineModuleBuilder::exclusive); a layer outside of a pipeline draws the
    /// same numbers after `device.seed(pass.device_seed())`.
    #[must_use]
    pub fn device_seed(self) -> u64 {
        // No call has this number.
        let mut words = [0; 2];
        Stream::of(self, u64::MAX).fill(0, &mut words);
        u64::from(words[0]) << 32 | u64::from(words[1])
    }

    /// The stream of the next call on this thread.
    pub(super) fn next_stream() -> Stream {
        match CURRENT.get() {
            Some((context, calls)) => {
                CURRENT.set(Some((context, calls.wrapping_add(1))));
                Stream::of(context, calls)
            }
            None => {
                let calls = STANDALONE.get();
                STANDALONE.set(calls.wrapping_add(1));
                Stream::of(Self::training(crate::BASE_SEED_DEFAULT, 0), calls)
            }
        }
    }
}

/// What the passes of one run of a plan have in common on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    pub(crate) seed: u64,
    pub(crate) step: u64,
    /// The number in the whole step of this rank's micro-batch 0: how many micro-batches earlier calls
    /// have added to the step, on all replicas, and those of the replicas before this one.
    pub(crate) first_micro_batch: u64,
    /// Number of layers of the whole model.
    pub(crate) n_layers: u64,
    pub(crate) is_training: bool,
}

impl Numbering {
    /// The pass of a stage on a micro-batch; each layer then puts its own index in.
    pub(crate) fn pass(&self, stage: Stage, micro_batch: MicroBatch) -> PassContext {
        let Self { seed, step, first_micro_batch, n_layers: _, is_training } = *self;
        let micro_batch = first_micro_batch.saturating_add(micro_batch.0.into());
        PassContext { seed, step, micro_batch, layer: 0, stage, is_training }
    }

    /// The pass of the loss function on the same micro-batch.
    pub(crate) fn loss(&self, pass: PassContext) -> PassContext {
        pass.layer(self.n_layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_ends_where_it_began_also_after_a_panic() {
        let outer = PassContext::training(1, 2).layer(3);
        outer.during(|| {
            let first = Stream::next();
            let inner = outer.layer(4);
            let caught = std::panic::catch_unwind(|| {
                inner.during(|| {
                    assert_eq!(PassContext::current(), Some(inner));
                    let _ = Stream::next();
                    std::panic::resume_unwind(Box::new(()));
                })
            });
            assert!(caught.is_err());
            assert_eq!(PassContext::current(), Some(outer));
            assert_eq!(first, Stream::of(outer, 0));
            assert_eq!(Stream::next(), Stream::of(outer, 1));
        });
        assert_eq!(PassContext::current(), None);
    }

    #[test]
    fn calls_outside_a_pass_count_by_thread() {
        let draw = || std::thread::spawn(|| [Stream::next(), Stream::next()]).join().expect("draws");
        let [first, second] = draw();
        assert_ne!(first, second);
        assert_eq!(draw(), [first, second]);
    }
}
