//! Mixed precision: weights cast for the passes, and the loss scale that keeps small gradients alive.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::{Cause, ConfigError};
use crate::interpreter::Batch;

/// Element type of the forward and backward passes.
///
/// With `bf16` and `f16` the weights that a step updates stay in f32: the passes run on copies of them, cast
/// after every update. Gradients are cast to f32 before they are added over micro-batches. Boundary
/// messages carry the element type of the passes; losses and predictions are f32. Float inputs are cast for
/// the first layer; a tensor that a layer makes itself must take its element type from its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// What the layers are built with, which is f32 unless they say otherwise.
    #[default]
    F32,
    /// Bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// Half precision: 11 bits of precision and a small range, so with a loss scale.
    F16,
}

impl Precision {
    /// Casts the float inputs of a batch.
    pub(crate) fn cast_inputs(self, batch: &mut Batch) {
        let Some(dtype) = self.cast() else { return };
        for input in &mut batch.inputs {
            *input = input.take().map(|tree| tree.map(|tensor| tensor.cast(dtype)));
        }
    }

    /// The element type that weights and inputs are cast to, if they are.
    pub(crate) fn cast(self) -> Option<FloatDType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }
}

/// What the loss is multiplied by before the backward pass; gradients are divided by it after their sum.
///
/// With a scale, an infinite or undefined gradient on any stage makes every rank skip the update.
///
/// # Source
/// PyTorch's `GradScaler`; the rule of growth and fall is DeepSpeed's (`runtime/fp16/loss_scaler.py`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScale {
    /// Always the same.
    Static(f64),
    /// As large as the gradients bear.
    Dynamic(DynamicLossScale),
}

/// How a dynamic scale moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicLossScale {
    /// First scale; DeepSpeed gives its power of two, `initial_scale_power`.
    pub initial: f64,
    /// What the scale is multiplied by when it grows, and divided by when it falls.
    pub factor: f64,
    /// Steps without overflow after which it grows; DeepSpeed's `loss_scale_window`.
    pub window: u32,
    /// Overflows that it takes to fall.
    pub hysteresis: u32,
    /// Whether a step without overflow forgets the overflows before it.
    pub consecutive_hysteresis: bool,
    /// Least scale: an overflow at it ends the training.
    pub min: f64,
}

impl Default for DynamicLossScale {
    fn default() -> Self {
        Self {
            initial: 65_536.0,
            factor: 2.0,
            window: 1000,
            hysteresis: 2,
            consecutive_hysteresis: false,
            min: 1.0,
        }
    }
}

impl LossScale {
    pub(crate) fn check(&self, path: &str) -> Result<(), ConfigError> {
        let at = |name: &str, value: f64, right: bool, expected: &str| {
            let error = || ConfigError::Value {
                path: format!("{path}.{name}"),
                found: value.to_string(),
                expected: expected.to_owned(),
            };
            if right { Ok(()) } else { Err(error()) }
        };
        let above_zero =
            |name, value: f64| at(name, value, value > 0.0 && value.is_finite(), "a finite number above 0");
        match self {
            Self::Static(scale) => above_zero("static", *scale),
            Self::Dynamic(s) => {
                above_zero("dynamic.initial", s.initial)?;
                above_zero("dynamic.min", s.min)?;
                at(
                    "dynamic.factor",
                    s.factor,
                    s.factor > 1.0 && s.factor.is_finite(),
                    "a finite number above 1",
                )?;
                at("dynamic.window", s.window.into(), s.window > 0, "at least 1")?;
                at("dynamic.hysteresis", s.hysteresis.into(), s.hysteresis > 0, "at least 1")
            }
        }
    }
}

/// Where a loss scale stands: all that a checkpoint needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScaleState {
    /// The scale of the next step.
    pub scale: f64,
    /// Steps so far.
    pub n_steps: u64,
    /// Steps up to the last overflow, that one included.
    pub n_until_overflow: u64,
    /// Overflows left until the scale falls.
    pub hysteresis: u32,
}

/// A loss scale at work; every rank moves its own in the same way.
#[derive(Clone, Debug)]
pub(crate) struct Scaler {
    rule: LossScale,
    pub(crate) state: LossScaleState,
}

impl Scaler {
    /// The scale of a configuration: with f16 there is always one.
    pub(crate) fn new(precision: Precision, asked: Option<LossScale>) -> Option<Self> {
        let default = (precision == Precision::F16).then(|| LossScale::Dynamic(DynamicLossScale::default()));
        let rule = asked.or(default)?;
        let (scale, hysteresis) = match rule {
            LossScale::Static(scale) => (scale, 1),
            LossScale::Dynamic(s) => (s.initial, s.hysteresis),
        };
        Some(Self { rule, state: LossScaleState { scale, n_steps: 0, n_until_overflow: 0, hysteresis } })
    }

    /// Moves on after a step.
    ///
    /// # Errors
    /// [`Cause::LossScale`] for an overflow at the least scale.
    pub(crate) fn advance(&mut self, overflow: bool) -> Result<(), Cause> {
        let LossScale::Dynamic(rule) = self.rule else {
            self.state.n_steps += 1;
            return Ok(());
        };
        let state = &mut self.state;
        if overflow {
            if state.hysteresis <= 1 {
                if state.scale <= rule.min {
                    return Err(Cause::LossScale { scale: state.scale });
                }
                state.scale = (state.scale / rule.factor).max(rule.min);
            } else {
                state.hysteresis -= 1;
            }
            state.n_until_overflow = state.n_steps + 1;
        } else {
            if rule.consecutive_hysteresis {
                state.hysteresis = rule.hysteresis;
            }
            let stable = state.n_steps - state.n_until_overflow.min(state.n_steps);
            if stable > 0 && stable.is_multiple_of(rule.window.into()) {
                state.hysteresis = rule.hysteresis;
                state.scale *= rule.factor;
            }
        }
        state.n_steps += 1;
        Ok(())
    }
}

/// A copy of a module with its float parameters cast; trained parameters are leaves of their own.
pub(crate) fn cast_parameters<M: Module>(module: &M, dtype: FloatDType) -> M {
    struct Cast(FloatDType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let trained = tensor.is_require_grad();
            let on_autodiff = tensor.device().is_autodiff();
            let cast = tensor.inner().cast(self.0);
            let cast = if on_autodiff { Tensor::from_inner(cast) } else { cast };
            Param::from_mapped_value(id, if trained { cast.require_grad() } else { cast }, mapper)
        }
    }
    module.clone().map(&mut Cast(dtype))
}

/// Divides the gradients of a module's parameters by `scale`; tells whether any is infinite or undefined.
pub(crate) fn unscale<M: Module>(module: &M, gradients: &mut GradientsParams, scale: f64) -> bool {
    struct Unscale<'a> {
        gradients: &'a mut GradientsParams,
        factor: f64,
        overflow: bool,
    }
    impl ModuleVisitor for Unscale<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
            let finite = gradient.clone().is_finite().all().into_data().iter::<bool>().all(|finite| finite);
            self.overflow |= !finite;
            self.gradients.register::<D>(param.id, gradient.mul_scalar(self.factor));
        }
    }
    let mut visitor = Unscale { gradients, factor: 1.0 / scale, overflow: false };
    module.visit(&mut visitor);
    visitor.overflow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(rule: DynamicLossScale) -> Scaler {
        Scaler::new(Precision::F16, Some(LossScale::Dynamic(rule))).expect("a scale")
    }

    fn scales(rule: DynamicLossScale, overflows: &str) -> Vec<f64> {
        let mut scaler = scaler(rule);
        let step = |c| {
            scaler.advance(c == 'x').expect("above the least scale");
            scaler.state.scale
        };
        overflows.chars().map(step).collect()
    }

    /// Worked by hand through DeepSpeed's `DynamicLossScaler.update_scale`.
    #[test]
    fn a_dynamic_scale_moves_as_deepspeeds() {
        let rule = DynamicLossScale { initial: 8.0, window: 2, hysteresis: 2, ..DynamicLossScale::default() };
        // The first overflow only uses up the hysteresis; the second one halves.
        assert_eq!(scales(rule, "xx"), [8.0, 4.0]);
        // Growth after the step whose distance to the last overflow is a multiple of the window.
        assert_eq!(scales(rule, "....."), [8.0, 8.0, 16.0, 16.0, 32.0]);
        assert_eq!(scales(rule, "x..."), [8.0, 8.0, 8.0, 16.0]);
        // Growth refills the hysteresis.
        assert_eq!(scales(rule, "x...xx"), [8.0, 8.0, 8.0, 16.0, 16.0, 8.0]);
        // A step between does not, unless asked.
        assert_eq!(scales(rule, "x.x"), [8.0, 8.0, 4.0]);
        let consecutive = DynamicLossScale { consecutive_hysteresis: true, ..rule };
        assert_eq!(scales(consecutive, "x.x"), [8.0, 8.0, 8.0]);
        let at_once = DynamicLossScale { hysteresis: 1, ..rule };
        assert_eq!(scales(at_once, "xxx"), [4.0, 2.0, 1.0]);
    }

    #[test]
    fn an_overflow_at_the_least_scale_ends_the_training() {
        let rule = DynamicLossScale { initial: 2.0, hysteresis: 1, min: 1.5, ..DynamicLossScale::default() };
        let mut scaler = scaler(rule);
        scaler.advance(true).expect("falls to the least");
        assert_eq!(scaler.state.scale, 1.5);
        assert!(matches!(scaler.advance(true), Err(Cause::LossScale { scale: 1.5 })));
    }

    #[test]
    fn a_static_scale_stays() {
        let mut scaler = Scaler::new(Precision::F32, Some(LossScale::Static(128.0))).expect("a scale");
        for _ in 0..3 {
            scaler.advance(true).expect("never ends the training");
        }
        assert_eq!((scaler.state.scale, scaler.state.n_steps), (128.0, 3));
        assert!(Scaler::new(Precision::Bf16, None).is_none());
    }
}
