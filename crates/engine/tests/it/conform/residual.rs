//! A value of the first layer that the last one adds again, carried through every stage between.

use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::mlp::Dense;
use super::run::{Model, N_LAYERS};
use crate::support::rows;

const WIDTH: usize = 5;

/// Opens the skip: its output goes down both ways.
#[derive(Module, Debug)]
pub(super) struct Open {
    dense: Dense,
}

impl Layer for Open {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2>);
    fn forward(&self, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let x = self.dense.forward(x);
        (x.clone(), x)
    }
}

#[derive(Module, Debug)]
pub(super) struct Inner {
    dense: Dense,
}

impl Layer for Inner {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = (Tensor<2>, Tensor<2>);
    fn forward(&self, (x, skip): (Tensor<2>, Tensor<2>)) -> (Tensor<2>, Tensor<2>) {
        (self.dense.forward(x), skip)
    }
}

#[derive(Module, Debug)]
pub(super) struct Close {
    dense: Dense,
}

impl Layer for Close {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = Tensor<2>;
    fn forward(&self, (x, skip): (Tensor<2>, Tensor<2>)) -> Tensor<2> {
        self.dense.forward(x) + skip
    }
}

#[derive(Module, Debug)]
pub(super) struct Plain {
    open: Open,
    inner: Vec<Inner>,
    close: Close,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Residual;

impl Residual {
    fn open(device: &Device) -> Open {
        Open { dense: Dense::new(0, WIDTH, device) }
    }
    fn inner(index: usize, device: &Device) -> Inner {
        Inner { dense: Dense::new(1 + index, WIDTH, device) }
    }
    fn close(device: &Device) -> Close {
        Close { dense: Dense::new(N_LAYERS - 1, WIDTH, device) }
    }
}

impl Model for Residual {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    type Target = Tensor<2>;
    type Plain = Plain;

    fn name(self) -> &'static str {
        "residual"
    }
    fn layers(self) -> Layers<Tensor<2>, Tensor<2>> {
        Layers::new().layer(Self::open).repeat(N_LAYERS - 2, Self::inner).layer(Self::close)
    }
    fn plain(self, device: &Device) -> Plain {
        let inner = (0..N_LAYERS - 2).map(|i| Self::inner(i, device)).collect();
        Plain { open: Self::open(device), inner, close: Self::close(device) }
    }
    fn forward(plain: &Plain, x: Tensor<2>) -> Tensor<2> {
        let pair = plain.inner.iter().fold(plain.open.forward(x), |pair, layer| layer.forward(pair));
        plain.close.forward(pair)
    }
    fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (y - target).powi_scalar(2).mean()
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
        (rows([2, WIDTH], serial, device), rows([2, WIDTH], serial + 3, device))
    }
}
