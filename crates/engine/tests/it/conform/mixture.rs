//! A mixture whose micro-batches take one branch or the other, and never the third.

use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::mlp::Dense;
use super::run::{Model, N_LAYERS};
use crate::support::rows;

const WIDTH: usize = 4;

#[derive(Module, Debug)]
pub(super) struct Block {
    even: Dense,
    odd: Dense,
    never: Dense,
}

impl Block {
    fn new(index: usize, device: &Device) -> Self {
        let dense = |branch: usize| Dense::new(3 * index + branch, WIDTH, device);
        Self { even: dense(0), odd: dense(1), never: dense(2) }
    }
}

/// The hidden state, and the number that chooses the branch.
type State = (Tensor<2>, i64);

impl Layer for Block {
    type Input = State;
    type Output = State;
    fn forward(&self, (x, choice): State) -> State {
        let branch = match choice.rem_euclid(2) {
            0 => &self.even,
            1 => &self.odd,
            _ => &self.never,
        };
        (x.clone() + branch.forward(x), choice)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mixture;

impl Model for Mixture {
    type Input = State;
    type Output = State;
    type Target = Tensor<2>;
    type Plain = Vec<Block>;

    fn name(self) -> &'static str {
        "mixture"
    }
    fn layers(self) -> Layers<State, State> {
        Layers::new().repeat(N_LAYERS, Block::new)
    }
    fn plain(self, device: &Device) -> Vec<Block> {
        (0..N_LAYERS).map(|i| Block::new(i, device)).collect()
    }
    fn forward(plain: &Vec<Block>, state: State) -> State {
        plain.iter().fold(state, |state, block| block.forward(state))
    }
    fn loss((y, _): State, target: Tensor<2>) -> Tensor<1> {
        (y - target).powi_scalar(2).mean()
    }
    fn micro_batch(serial: usize, device: &Device) -> (State, Tensor<2>) {
        let choice = i64::try_from(serial).expect("small");
        ((rows([2, WIDTH], serial, device), choice), rows([2, WIDTH], serial + 5, device))
    }
}
