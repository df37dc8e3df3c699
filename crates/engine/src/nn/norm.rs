//! Layer normalisation and its simpler form without a mean.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::nn::fused::{self, Parameters};
use crate::nn::kernels::Centre;

/// Normalises the last dimension to mean zero and variance one, then scales and shifts it.
///
/// Forward and backward are one pass each. Gradients of scale and shift come from the pass that computes the
/// input's, and so do not wait under a schedule that splits the backward pass: apart, they would take longer
/// in all than the pass takes. Parameters have the names and shapes of [`burn::nn::LayerNorm`]; make one
/// from it.
///
/// # Shapes
/// `[.., d_model]`, and out the same.
///
/// # Source
/// Ba, Kiros and Hinton, 2016; the kernels are our own.
///
/// # Examples
/// ```
/// use brigade_engine::nn::LayerNorm;
/// use burn::nn::LayerNormConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let norm = LayerNorm::new(&LayerNormConfig::new(2), &device);
/// let y = norm.forward(Tensor::<2>::from_floats([[1.0, 3.0]], &device));
/// let found = y.into_data().to_vec::<f32>().unwrap();
/// assert!((found[0] + 1.0).abs() < 1e-4 && (found[1] - 1.0).abs() < 1e-4);
/// ```
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[d_model]`.
    pub beta: Option<Param<Tensor<1>>>,
    /// What is added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Initialises a layer as Burn does.
    #[must_use]
    pub fn new(config: &burn::nn::LayerNormConfig, device: &Device) -> Self {
        Self { epsilon: config.epsilon, ..config.init(device).into() }
    }

    /// Normalises the last dimension of `x`.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        normalise(x, &self.gamma, self.beta.as_ref(), self.epsilon, Centre::Mean)
    }
}

impl From<burn::nn::LayerNorm> for LayerNorm {
    fn from(norm: burn::nn::LayerNorm) -> Self {
        // Burn keeps the field to itself, but prints it, exactly as it is.
        let shown = norm.custom_content(Content::new(DisplaySettings::new()));
        let epsilon = shown
            .and_then(|shown| shown.attributes.into_iter().find(|attribute| attribute.name == "epsilon"))
            .and_then(|attribute| attribute.value.parse().ok())
            .unwrap_or_else(|| burn::nn::LayerNormConfig::new(1).epsilon);
        Self { gamma: norm.gamma, beta: norm.beta, epsilon }
    }
}

/// Divides the last dimension by the root of its mean square, then scales it.
///
/// As [`LayerNorm`] in all else; made from [`burn::nn::RmsNorm`].
///
/// # Shapes
/// `[.., d_model]`, and out the same.
///
/// # Source
/// Zhang and Sennrich, 2019; the kernels are our own.
///
/// # Examples
/// ```
/// use brigade_engine::nn::RmsNorm;
/// use burn::nn::RmsNormConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let norm = RmsNorm::new(&RmsNormConfig::new(2), &device);
/// let y = norm.forward(Tensor::<2>::from_floats([[3.0, 3.0]], &device));
/// assert!((y.sum().into_scalar::<f32>() - 2.0).abs() < 1e-4);
/// ```
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// Scale, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// What is added to the mean square.
    pub epsilon: f64,
}

impl RmsNorm {
    /// Initialises a layer as Burn does.
    #[must_use]
    pub fn new(config: &burn::nn::RmsNormConfig, device: &Device) -> Self {
        config.init(device).into()
    }

    /// Normalises the last dimension of `x`.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        normalise(x, &self.gamma, None, self.epsilon, Centre::Zero)
    }
}

impl From<burn::nn::RmsNorm> for RmsNorm {
    fn from(norm: burn::nn::RmsNorm) -> Self {
        Self { gamma: norm.gamma, epsilon: norm.epsilon }
    }
}

/// Half-precision values are normalised as f32, since their squares add up to more than they can hold.
fn normalise<const D: usize>(
    x: Tensor<D>,
    gamma: &Param<Tensor<1>>,
    beta: Option<&Param<Tensor<1>>>,
    epsilon: f64,
    centre: Centre,
) -> Tensor<D> {
    let (gamma, beta) = (gamma.val(), beta.map(Param::val));
    let [width] = gamma.dims();
    assert_eq!(x.dims().last(), Some(&width), "the last dimension is not the normalisation's {width}");
    let dtype = x.dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return fused::norm(x, Parameters { gamma, beta, epsilon, centre });
    }
    let wide = FloatDType::F32;
    let parameters =
        Parameters { gamma: gamma.cast(wide), beta: beta.map(|beta| beta.cast(wide)), epsilon, centre };
    fused::norm(x.cast(wide), parameters).cast(FloatDType::from(dtype))
}
