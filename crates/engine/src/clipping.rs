//! Gradient clipping over the whole pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::error::{BuildError, StepError};
use crate::hub::Contribution;
use crate::reduce::Reducer;
use crate::stage::RankModule;
use crate::world::RankHandle;

/// What is added to the norm before it divides, so that gradients of zero stay zero; PyTorch's value.
const NORM_EPSILON: f64 = 1e-6;

/// How gradients are bounded before the optimizer step; give every rank the same.
///
/// # Source
/// The rules of PyTorch's `clip_grad_norm_` and `clip_grad_value_`, over all stages together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GradientClipping {
    /// Scales all gradients of the model so that the norm over all of them is at most this.
    GlobalNorm(f64),
    /// Cuts every element to at most this in size.
    Value(f64),
}

impl GradientClipping {
    pub(crate) fn check(self) -> Result<(), BuildError> {
        let (Self::GlobalNorm(bound) | Self::Value(bound)) = self;
        if bound > 0.0 { Ok(()) } else { Err(BuildError::Clipping { bound }) }
    }

    /// Bounds this rank's gradients; returns the norm of the whole model when it was needed.
    pub(crate) fn apply(
        self,
        rank: &RankHandle,
        reducer: &Reducer,
        module: &RankModule,
        gradients: &mut GradientsParams,
    ) -> Result<Option<f64>, StepError> {
        match self {
            Self::GlobalNorm(bound) => {
                let norm = global_norm(rank, reducer, gradients)?;
                // Not `min`, which would turn a norm that is no number into no clipping at all.
                let scale = bound / (norm + NORM_EPSILON);
                if scale >= 1.0 {
                    return Ok(Some(norm));
                }
                map(module, gradients, Change::Scale(scale));
                Ok(Some(norm))
            }
            Self::Value(bound) => {
                map(module, gradients, Change::Clamp(bound));
                Ok(None)
            }
        }
    }
}

/// The norm over the gradients of all ranks, summed parameter by parameter in their one global order, each
/// once however many copies it has: the same bits at any number of stages and in every replica.
fn global_norm(rank: &RankHandle, reducer: &Reducer, gradients: &GradientsParams) -> Result<f64, StepError> {
    let squares = reducer.counted(gradients).flat_map(|(number, gradient)| {
        [u64::try_from(number).unwrap_or(u64::MAX), gradient.sum_of_squares().to_bits()]
    });
    let call = Contribution {
        call: "the norm of a step".to_owned(),
        words: squares.collect(),
        messages: Vec::new(),
    };
    let all: Arc<Vec<Contribution>> = rank.exchange(call, || rank.site("sharing the norm"))?;
    let squares = all.iter().flat_map(|c| c.words.chunks_exact(2)).map(|w| (w[0], f64::from_bits(w[1])));
    let in_order: BTreeMap<u64, f64> = squares.collect();
    // From 0.0: the sum of no numbers is -0.0.
    Ok(in_order.values().fold(0.0, |sum, square| sum + square).sqrt())
}

#[derive(Clone, Copy)]
enum Change {
    Scale(f64),
    Clamp(f64),
}

fn map(module: &RankModule, gradients: &mut GradientsParams, change: Change) {
    struct Apply<'a>(&'a mut GradientsParams, Change);
    impl ModuleVisitor for Apply<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(gradient) = self.0.remove::<D>(param.id) else { return };
            let changed = match self.1 {
                Change::Scale(scale) => gradient.mul_scalar(scale),
                Change::Clamp(bound) => gradient.clamp(-bound, bound),
            };
            self.0.register::<D>(param.id, changed);
        }
    }
    module.visit(&mut Apply(gradients, change));
}
