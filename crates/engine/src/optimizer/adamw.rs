//! AdamW in one pass over the memory of a parameter, with the numbers of Burn's AdamW.

use burn::backend::Flex;
use burn::optim::{AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, Optimizer};
use burn::tensor::{DType, Device, ElementConversion, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Elements from which a step is worth the rank's other worker threads, if it has any: 256 KiB a tensor.
const PARALLEL_MIN: usize = 65_536;

/// Elements that one worker takes at a time: its four slices stay within a core's second-level cache.
const CHUNK: usize = 16_384;

/// Settings of [`FusedAdamW`].
///
/// The defaults are those of PyTorch's AdamW, but for weight decay, which is off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWSettings {
    /// Decay of the mean of gradients.
    pub beta_1: f64,
    /// Decay of the mean of squared gradients.
    pub beta_2: f64,
    /// Added to the root of the second mean.
    pub epsilon: f64,
    /// Share of each weight that goes away a step, times the learning rate.
    pub weight_decay: f64,
    /// Divides by the largest second mean so far.
    pub amsgrad: bool,
    /// Decays only weights that the step makes smaller as well.
    pub cautious_weight_decay: bool,
}

impl Default for AdamWSettings {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
            cautious_weight_decay: false,
        }
    }
}

/// Burn's AdamW, computed in one pass and in place where the tensors live on the embedded CPU backend.
///
/// Burn's own takes about fifteen passes over each parameter. The numbers are the same bit for bit, and so
/// is the state, so the two can continue each other's runs. On other backends, for other element types
/// than f32, and with `amsgrad` or cautious decay it is Burn's.
///
/// # Source
/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", in the order of operations of Burn
/// 0.22.1 (`burn-optim`, `AdamW::step`).
///
/// # Examples
/// ```
/// use brigade_engine::{AdamWSettings, FusedAdamW};
/// use burn::optim::{ModuleOptimizer, Optimizer};
/// use burn::tensor::{Device, Tensor};
///
/// let adamw = FusedAdamW::new(AdamWSettings { weight_decay: 0.1, ..AdamWSettings::default() });
/// let weight = Tensor::<1>::from_floats([1.0, -1.0], &Device::flex());
/// let gradient = Tensor::<1>::from_floats([0.5, 0.5], &Device::flex());
/// let (weight, state) = adamw.step(0.1, weight, gradient, None);
/// // The first step goes by the learning rate against the gradient's sign, after the decay.
/// let found: Vec<f32> = weight.into_data().try_to_vec().unwrap();
/// assert!((found[0] - (0.99 - 0.1)).abs() < 1e-6 && (found[1] - (-0.99 - 0.1)).abs() < 1e-6);
/// assert_eq!(state.unwrap().momentum.time, 1);
/// let _for_a_module: ModuleOptimizer = adamw.into();
/// ```
#[derive(Clone)]
pub struct FusedAdamW {
    settings: AdamWSettings,
    burn: AdamW,
}

impl FusedAdamW {
    /// Makes the optimizer.
    #[must_use]
    pub fn new(settings: AdamWSettings) -> Self {
        let burn = AdamWConfig::new()
            .with_beta_1(settings.beta_1.elem())
            .with_beta_2(settings.beta_2.elem())
            .with_epsilon(settings.epsilon.elem())
            .with_weight_decay(settings.weight_decay.elem())
            .with_amsgrad(settings.amsgrad)
            .with_cautious_weight_decay(settings.cautious_weight_decay)
            .build();
        Self { settings, burn }
    }

    fn is_plain(&self) -> bool {
        !self.settings.amsgrad && !self.settings.cautious_weight_decay
    }
}

impl std::fmt::Debug for FusedAdamW {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FusedAdamW").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Tells whether the one-pass kernel can take a tensor.
fn fits<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32 && tensor.device() == Device::flex()
}

impl Optimizer for FusedAdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let moments_fit = state.as_ref().is_none_or(|AdamWState { momentum }| {
            fits(&momentum.moment_1) && fits(&momentum.moment_2) && momentum.max_moment_2.is_none()
        });
        if !self.is_plain() || !fits(&tensor) || !fits(&grad) || !moments_fit {
            return self.burn.step(lr, tensor, grad, state);
        }
        let first = state.is_none();
        let momentum = match state {
            Some(AdamWState { momentum }) => momentum,
            None => {
                let zeros = || Tensor::<D>::zeros(grad.shape(), (&grad.device(), DType::F32));
                AdaptiveMomentumState::new(0, zeros(), zeros())
            }
        };
        let time = momentum.time.saturating_add(1);
        let numbers = Numbers::new(&self.settings, lr, time, first);
        let [mut p, g, mut m, mut v] = [tensor, grad, momentum.moment_1, momentum.moment_2].map(|t| match t
            .try_into_primitive::<Flex>(
        ) {
            Ok(flex) => flex.to_contiguous(),
            Err(_) => unreachable!("the device was looked at"),
        });
        // A view of part of a buffer starts inside it.
        let [at_p, at_m, at_v] = [&p, &m, &v].map(|t| match t.layout().contiguous_offsets() {
            Some((start, end)) => start..end,
            None => unreachable!("made contiguous above"),
        });
        let gradient = g.as_slice::<f32>().unwrap_or_default();
        let slices = [&mut p.storage_mut()[at_p], &mut m.storage_mut()[at_m], &mut v.storage_mut()[at_v]];
        run(&numbers, slices, gradient);
        let [p, m, v] = [p, m, v].map(Tensor::<D>::from_primitive::<Flex>);
        (p, Some(AdamWState::new(AdaptiveMomentumState::new(time, m, v))))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AdamW::to_device(state, device)
    }
}

/// The scalars of one step, each rounded where Burn rounds it.
#[derive(Clone, Copy)]
struct Numbers {
    beta_1: f32,
    beta_2: f32,
    factor_1: f32,
    factor_2: f32,
    correction_1: f32,
    correction_2: f32,
    epsilon: f32,
    keep: f32,
    rate: f32,
    first: bool,
}

impl Numbers {
    fn new(settings: &AdamWSettings, rate: f64, time: usize, first: bool) -> Self {
        let [beta_1, beta_2, epsilon]: [f32; 3] =
            [settings.beta_1.elem(), settings.beta_2.elem(), settings.epsilon.elem()];
        let decay: f32 = settings.weight_decay.elem();
        let power = i32::try_from(time).unwrap_or(i32::MAX);
        Self {
            beta_1,
            beta_2,
            factor_1: 1.0 - beta_1,
            factor_2: 1.0 - beta_2,
            correction_1: 1.0 - beta_1.powi(power),
            correction_2: 1.0 - beta_2.powi(power),
            epsilon,
            keep: (1.0 - rate * f64::from(decay)).elem(),
            rate: rate.elem(),
            first,
        }
    }
}

/// Updates parameter and moments, on the rank's workers when there are several and the tensor is large.
fn run(numbers: &Numbers, [p, m, v]: [&mut [f32]; 3], g: &[f32]) {
    let arch = pulp::Arch::new();
    let one = |p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]| {
        arch.dispatch(|| pass(numbers, p, m, v, g));
    };
    if g.len() < PARALLEL_MIN || rayon::current_num_threads() == 1 {
        return one(p, m, v, g);
    }
    let chunks = p.par_chunks_mut(CHUNK).zip(m.par_chunks_mut(CHUNK));
    let chunks = chunks.zip(v.par_chunks_mut(CHUNK)).zip(g.par_chunks(CHUNK));
    chunks.for_each(|(((p, m), v), g)| one(p, m, v, g));
}

#[inline(always)]
fn pass(numbers: &Numbers, p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
    let Numbers { factor_1, factor_2, .. } = *numbers;
    if numbers.first {
        // Not a sum with zero: that would lose the sign of a negative zero.
        update(numbers, p, m, v, g, |_, g| g * factor_1, |_, square| square * factor_2);
    } else {
        let Numbers { beta_1, beta_2, .. } = *numbers;
        let first = |m: f32, g: f32| m * beta_1 + g * factor_1;
        update(numbers, p, m, v, g, first, |v, square| v * beta_2 + square * factor_2);
    }
}

#[inline(always)]
fn update(
    numbers: &Numbers,
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    g: &[f32],
    mean: impl Fn(f32, f32) -> f32,
    mean_square: impl Fn(f32, f32) -> f32,
) {
    let Numbers { correction_1, correction_2, epsilon, keep, rate, .. } = *numbers;
    for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(g) {
        *m = mean(*m, g);
        *v = mean_square(*v, g * g);
        let delta = (*m / correction_1) / ((*v / correction_2).sqrt() + epsilon);
        *p = *p * keep - delta * rate;
    }
}
