//! A multilayer perceptron: float input, mean square loss, weight gradients that can wait.

use brigade_engine::nn::Linear;
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};

use super::run::{Model, N_LAYERS};
use crate::support::{formula, rows};

const WIDTH: usize = 6;

#[derive(Module, Debug)]
pub(super) struct Dense {
    linear: Linear,
}

impl Dense {
    pub(super) fn new(index: usize, width: usize, device: &Device) -> Self {
        formula(Self { linear: Linear::new(&LinearConfig::new(width, width), device) }, index)
    }
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mlp;

impl Model for Mlp {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    type Target = Tensor<2>;
    type Plain = Vec<Dense>;

    fn name(self) -> &'static str {
        "mlp"
    }
    fn layers(self) -> Layers<Tensor<2>, Tensor<2>> {
        Layers::new().repeat(N_LAYERS, |i, device| Dense::new(i, WIDTH, device))
    }
    fn plain(self, device: &Device) -> Vec<Dense> {
        (0..N_LAYERS).map(|i| Dense::new(i, WIDTH, device)).collect()
    }
    fn forward(plain: &Vec<Dense>, x: Tensor<2>) -> Tensor<2> {
        plain.iter().fold(x, |x, layer| layer.forward(x))
    }
    fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (y - target).powi_scalar(2).mean()
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
        (rows([3, WIDTH], serial, device), rows([3, WIDTH], serial + 7, device))
    }
}
