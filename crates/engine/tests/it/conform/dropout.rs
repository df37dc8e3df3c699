//! Dropout in every layer, with and without forward passes that run again.

use brigade_engine::nn::Dropout;
use brigade_engine::random::PassContext;
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::mlp::Dense;
use super::run::{Model, N_LAYERS};
use crate::support::rows;

const WIDTH: usize = 8;

#[derive(Module, Debug)]
pub(super) struct Noisy {
    dense: Dense,
    inner: Dropout,
    outer: Dropout,
}

impl Noisy {
    fn new(index: usize, device: &Device) -> Self {
        let dropout = |probability| Dropout::new(probability).expect("a probability");
        Self { dense: Dense::new(index, WIDTH, device), inner: dropout(0.5), outer: dropout(0.1) }
    }
}

impl Layer for Noisy {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.dense.forward(self.inner.forward(x.clone()));
        x + self.outer.forward(hidden)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    pub(super) recompute_every: usize,
}

impl Model for Noise {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    type Target = Tensor<2>;
    type Plain = Vec<Noisy>;

    fn name(self) -> &'static str {
        if self.recompute_every == 0 { "dropout" } else { "dropout, recomputed" }
    }
    fn recompute_every(self) -> usize {
        self.recompute_every
    }
    fn layers(self) -> Layers<Tensor<2>, Tensor<2>> {
        Layers::new().repeat(N_LAYERS, Noisy::new)
    }
    fn plain(self, device: &Device) -> Vec<Noisy> {
        (0..N_LAYERS).map(|i| Noisy::new(i, device)).collect()
    }
    fn forward(plain: &Vec<Noisy>, x: Tensor<2>) -> Tensor<2> {
        let pass = PassContext::current().expect("the run sets it");
        let layers = (0..).zip(plain);
        layers.fold(x, |x, (index, layer)| pass.layer(index).during(|| layer.forward(x)))
    }
    fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (y - target).powi_scalar(2).mean()
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
        (rows([3, WIDTH], serial, device), rows([3, WIDTH], serial + 4, device))
    }
}
