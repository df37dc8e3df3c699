//! A small GPT: integer input, attention, layer norm, cross entropy.

use brigade_engine::Layers;
use burn::tensor::{Device, Int, Tensor};

use super::run::{Model, N_LAYERS};
use crate::support::{Unsplit, cross_entropy, gpt, tokens};

#[derive(Clone, Copy, Debug)]
pub(super) struct Gpt;

impl Model for Gpt {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    type Target = Tensor<2, Int>;
    type Plain = Unsplit;

    fn name(self) -> &'static str {
        "gpt"
    }
    fn layers(self) -> Layers<Tensor<2, Int>, Tensor<3>> {
        gpt(N_LAYERS - 2)
    }
    fn plain(self, device: &Device) -> Unsplit {
        Unsplit::new(N_LAYERS - 2, device)
    }
    fn forward(plain: &Unsplit, ids: Tensor<2, Int>) -> Tensor<3> {
        plain.forward(ids)
    }
    fn loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
        cross_entropy(logits, targets)
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let (ids, targets) = tokens(serial, 2);
        if device.is_autodiff() { (ids.autodiff(), targets.autodiff()) } else { (ids, targets) }
    }
}
