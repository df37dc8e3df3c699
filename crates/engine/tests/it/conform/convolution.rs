//! Convolutions with batch norm: statistics per micro-batch, running values updated in its order.

use brigade_engine::schedule::Schedule;
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::run::{Model, N_LAYERS};
use crate::support::{formula, rows};

const CHANNELS: usize = 2;
const SIDE: usize = 4;
const CLASSES: usize = 3;

#[derive(Module, Debug)]
pub(super) struct Block {
    convolution: Conv2d,
    norm: BatchNorm,
}

impl Block {
    fn new(index: usize, device: &Device) -> Self {
        let convolution =
            Conv2dConfig::new([CHANNELS, CHANNELS], [3, 3]).with_padding(PaddingConfig2d::Same).init(device);
        Self { convolution: formula(convolution, index), norm: BatchNormConfig::new(CHANNELS).init(device) }
    }
}

impl Layer for Block {
    type Input = Tensor<4>;
    type Output = Tensor<4>;
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        x.clone() + relu(self.norm.forward(self.convolution.forward(x)))
    }
}

#[derive(Module, Debug)]
pub(super) struct Head {
    linear: Linear,
}

impl Head {
    fn new(device: &Device) -> Self {
        formula(Self { linear: LinearConfig::new(CHANNELS * SIDE * SIDE, CLASSES).init(device) }, N_LAYERS)
    }
}

impl Layer for Head {
    type Input = Tensor<4>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.linear.forward(x.flatten(1, 3))
    }
}

#[derive(Module, Debug)]
pub(super) struct Plain {
    blocks: Vec<Block>,
    head: Head,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ConvNet;

impl Model for ConvNet {
    type Input = Tensor<4>;
    type Output = Tensor<2>;
    type Target = Tensor<2>;
    type Plain = Plain;

    fn name(self) -> &'static str {
        "convolution"
    }
    fn layers(self) -> Layers<Tensor<4>, Tensor<2>> {
        Layers::new().repeat(N_LAYERS - 1, Block::new).layer(Head::new)
    }
    fn plain(self, device: &Device) -> Plain {
        let blocks = (0..N_LAYERS - 1).map(|i| Block::new(i, device)).collect();
        Plain { blocks, head: Head::new(device) }
    }
    fn forward(plain: &Plain, x: Tensor<4>) -> Tensor<2> {
        plain.head.forward(plain.blocks.iter().fold(x, |x, block| block.forward(x)))
    }
    fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (y - target).powi_scalar(2).mean()
    }
    /// Each copy of a stage that runs in both directions gathers statistics of its own micro-batches.
    fn runs_under(self, schedule: Schedule) -> bool {
        schedule != Schedule::DualPipe
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<4>, Tensor<2>) {
        (rows([3, CHANNELS, SIDE, SIDE], serial, device), rows([3, CLASSES], serial + 1, device))
    }
}
