//! Layers with everything frozen, one parameter frozen, or only an adapter that learns.

use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};

use super::run::{Model, N_LAYERS};
use crate::support::{formula, rows};

const WIDTH: usize = 4;
const RANK: usize = 2;

#[derive(Module, Debug)]
pub(super) struct Block {
    base: Linear,
    down: Linear,
    up: Linear,
}

impl Block {
    /// By turns: learns all, learns the adapter, learns the base's bias, learns nothing.
    fn new(index: usize, device: &Device) -> Self {
        let linear = |from, to, seed| formula(LinearConfig::new(from, to).init(device), seed);
        let mut block = Self {
            base: linear(WIDTH, WIDTH, 3 * index),
            down: linear(WIDTH, RANK, 3 * index + 1),
            up: linear(RANK, WIDTH, 3 * index + 2),
        };
        match index % 4 {
            0 => {}
            1 => block.base = block.base.no_grad(),
            2 => {
                block.base.weight = block.base.weight.set_require_grad(false);
                (block.down, block.up) = (block.down.no_grad(), block.up.no_grad());
            }
            _ => block = block.no_grad(),
        }
        block
    }
}

impl Layer for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.base.forward(x.clone()) + self.up.forward(self.down.forward(x)))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frozen;

impl Model for Frozen {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    type Target = Tensor<2>;
    type Plain = Vec<Block>;

    fn name(self) -> &'static str {
        "frozen"
    }
    fn layers(self) -> Layers<Tensor<2>, Tensor<2>> {
        // The first stages learn nothing, so nothing below them wants a gradient.
        Layers::new().repeat(N_LAYERS, |i, device| Block::new(i + 3, device))
    }
    fn plain(self, device: &Device) -> Vec<Block> {
        (0..N_LAYERS).map(|i| Block::new(i + 3, device)).collect()
    }
    fn forward(plain: &Vec<Block>, x: Tensor<2>) -> Tensor<2> {
        plain.iter().fold(x, |x, block| block.forward(x))
    }
    fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (y - target).powi_scalar(2).mean()
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
        (rows([3, WIDTH], serial, device), rows([3, WIDTH], serial + 2, device))
    }
}
