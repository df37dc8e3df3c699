//! Operations whose parameters' gradients may wait, and the list of what a micro-batch still owes.

mod embedding;
mod linear;

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

pub(crate) use embedding::embedding;
pub(crate) use linear::linear;

/// The gradients of one linear operation's weight and bias.
type Found = (Option<DispatchTensor>, Option<DispatchTensor>);

/// One linear operation's weight gradient, still to be computed.
struct Job {
    weight: ParamId,
    bias: Option<ParamId>,
    run: Box<dyn FnOnce() -> Found + Send>,
}

/// The weight gradients that one micro-batch at one stage still owes.
#[derive(Clone, Default)]
pub(crate) struct Deferred(Arc<Mutex<Vec<Job>>>);

thread_local! {
    /// Where the linear operations of the forward pass that runs on this thread put their jobs.
    static CURRENT: RefCell<Option<Deferred>> = const { RefCell::new(None) };
}

impl Deferred {
    /// Runs a forward pass whose linear operations will put their weight gradients off into `self`.
    pub(crate) fn during<R>(&self, forward: impl FnOnce() -> R) -> R {
        /// Ends the collection also when the forward panics.
        struct Reset(Option<Deferred>);
        impl Drop for Reset {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _reset = Reset(CURRENT.replace(Some(self.clone())));
        forward()
    }

    fn push(&self, job: Job) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(job);
    }

    /// Computes every owed gradient and adds it to `gradients`, in the order of the backward pass.
    pub(crate) fn settle(self, gradients: &mut GradientsParams) {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for Job { weight, bias, run } in jobs {
            let (for_weight, for_bias) = run();
            if let Some(gradient) = for_weight {
                add::<2>(gradients, weight, gradient);
            }
            if let (Some(bias), Some(gradient)) = (bias, for_bias) {
                add::<1>(gradients, bias, gradient);
            }
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "Deferred({n_jobs})")
    }
}

fn add<const D: usize>(gradients: &mut GradientsParams, id: ParamId, new: DispatchTensor) {
    let new = Tensor::<D>::from_dispatch(new);
    let total = match gradients.remove::<D>(id) {
        Some(sum) => sum.add(new),
        None => new,
    };
    gradients.register::<D>(id, total);
}

/// Which parameters a linear operation uses, and whether their gradients wait.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    weight: ParamId,
    bias: Option<ParamId>,
    deferred: Option<Deferred>,
}

impl Slot {
    /// The slot of an operation that runs now on this thread.
    pub(crate) fn here(weight: ParamId, bias: Option<ParamId>) -> Self {
        Self { weight, bias, deferred: CURRENT.with_borrow(Clone::clone) }
    }

    /// The slot without a list where `parameter` is computed: only a leaf's gradient can wait, that of a
    /// computed tensor must flow on through the graph.
    fn for_leaf<const D: usize>(self, parameter: &Tensor<D>) -> Self {
        if parameter.is_tracked() && !parameter.is_require_grad() {
            return Self { deferred: None, ..self };
        }
        self
    }
}
