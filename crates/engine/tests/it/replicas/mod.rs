//! Replicas of a pipeline: each with its own data, all with the same weights.

mod faults;
mod grids;
mod layers;
mod memory;
mod sharding;

use brigade_engine::Layer;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

/// Rows of a batch.
const BATCH: usize = 2;

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
    #[module(skip)]
    passes: bool,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        if self.passes { x } else { x.clone() + self.linear.forward(x) }
    }
}

fn dense(passes: bool, device: &Device) -> Dense {
    Dense { linear: LinearConfig::new(3, 3).init(device), passes }
}

fn rows(serial: usize) -> (Tensor<2>, Tensor<2>) {
    let x = f64::from(u16::try_from(serial).expect("small")).sin();
    (Tensor::full([2, 3], x, &Device::flex()), Tensor::full([2, 3], 0.5, &Device::flex()))
}
