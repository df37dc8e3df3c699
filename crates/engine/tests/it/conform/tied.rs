//! A GPT whose output layer is its embedding, the other way round.

use brigade_engine::schedule::Schedule;
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

use super::run::{Model, N_LAYERS};
use crate::support::{Block, Embed, cross_entropy, tokens};

#[derive(Module, Debug)]
pub(super) struct Plain {
    embed: Embed,
    blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TiedGpt;

impl Model for TiedGpt {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    type Target = Tensor<2, Int>;
    type Plain = Plain;

    fn name(self) -> &'static str {
        "tied gpt"
    }
    fn layers(self) -> Layers<Tensor<2, Int>, Tensor<3>> {
        Layers::new()
            .tied("embedding", ["tokens.weight"], Embed::new)
            .repeat(N_LAYERS - 2, Block::new)
            .tied_with("embedding", Embed::unembed)
    }
    fn plain(self, device: &Device) -> Plain {
        let blocks = (0..N_LAYERS - 2).map(|i| Block::new(i, device)).collect();
        Plain { embed: Embed::new(device), blocks }
    }
    fn forward(plain: &Plain, ids: Tensor<2, Int>) -> Tensor<3> {
        let x = plain.blocks.iter().fold(plain.embed.forward(ids), |x, block| block.forward(x));
        plain.embed.unembed(x)
    }
    fn loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
        cross_entropy(logits, targets)
    }
    fn micro_batch(serial: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let (ids, targets) = tokens(serial, 2);
        if device.is_autodiff() { (ids.autodiff(), targets.autodiff()) } else { (ids, targets) }
    }
    /// One leaf adds both uses up in each micro-batch, two leaves add their micro-batches up first.
    fn tolerance(self, _schedule: Schedule) -> f64 {
        1e-5
    }
    fn is_extra(self, name: &str) -> bool {
        name.starts_with(&format!("layer_{:03}.", N_LAYERS - 1))
    }
}
