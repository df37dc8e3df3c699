//! One micro-batch of a small GPT, forward and backward, on one thread: Burn's layers and ours.

use std::hint::black_box;

use brigade_engine::nn;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use criterion::Criterion;

use crate::clock::on_one_thread;

/// 3.98 M parameters.
const N_BLOCKS: usize = 8;
const WIDTH: usize = 192;
const N_HEADS: usize = 4;
const SEQ: usize = 128;
const VOCAB: usize = 1024;
const ROWS: usize = 4;

#[derive(Module, Debug)]
struct Block {
    ln1: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    proj: Linear,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
}

/// The model in Burn's layers alone.
#[derive(Module, Debug)]
struct Plain {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    out: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let norm = || LayerNormConfig::new(WIDTH).init(device);
        Self {
            ln1: norm(),
            query: linear(WIDTH, WIDTH),
            key: linear(WIDTH, WIDTH),
            value: linear(WIDTH, WIDTH),
            proj: linear(WIDTH, WIDTH),
            ln2: norm(),
            up: linear(WIDTH, 4 * WIDTH),
            down: linear(4 * WIDTH, WIDTH),
        }
    }

    fn forward(&self, x: Tensor<3>, causal: Tensor<2>) -> Tensor<3> {
        let [rows, seq, width] = x.dims();
        let normed = self.ln1.forward(x.clone());
        let part = |linear: &Linear| {
            let y = linear.forward(normed.clone());
            y.reshape([rows, seq, N_HEADS, width / N_HEADS]).swap_dims(1, 2)
        };
        let query = part(&self.query) * 48_f64.sqrt().recip();
        let (key, value) = (part(&self.key), part(&self.value));
        let weights = softmax(query.matmul(key.transpose()) + causal.reshape([1, 1, seq, seq]), 3);
        let attended = weights.matmul(value).swap_dims(1, 2).reshape([rows, seq, width]);
        let x = x + self.proj.forward(attended);
        x.clone() + self.down.forward(gelu(self.up.forward(self.ln2.forward(x))))
    }
}

impl Plain {
    fn new(device: &Device) -> Self {
        Self {
            tokens: EmbeddingConfig::new(VOCAB, WIDTH).init(device),
            positions: EmbeddingConfig::new(SEQ, WIDTH).init(device),
            blocks: (0..N_BLOCKS).map(|_| Block::new(device)).collect(),
            norm: LayerNormConfig::new(WIDTH).init(device),
            out: LinearConfig::new(WIDTH, VOCAB).with_bias(false).init(device),
        }
    }

    fn loss(&self, ids: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let device = ids.device();
        let causal = Tensor::<2>::full([SEQ, SEQ], -1e9, &device).triu(1);
        let places = Tensor::<1, Int>::arange(0..128, &device).reshape([1, SEQ]);
        let x = self.tokens.forward(ids) + self.positions.forward(places);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x, causal.clone()));
        let logits = self.out.forward(self.norm.forward(x));
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits.reshape([ROWS * SEQ, VOCAB]), targets.reshape([ROWS * SEQ]))
    }
}

#[derive(Module, Debug)]
struct FusedBlock {
    ln1: nn::LayerNorm,
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    proj: nn::Linear,
    ln2: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
}

/// The same model in the engine's layers.
#[derive(Module, Debug)]
struct Fused {
    tokens: nn::Embedding,
    positions: nn::Embedding,
    blocks: Vec<FusedBlock>,
    norm: nn::LayerNorm,
    out: nn::Linear,
}

impl From<Block> for FusedBlock {
    fn from(block: Block) -> Self {
        Self {
            ln1: block.ln1.into(),
            query: block.query.into(),
            key: block.key.into(),
            value: block.value.into(),
            proj: block.proj.into(),
            ln2: block.ln2.into(),
            up: block.up.into(),
            down: block.down.into(),
        }
    }
}

impl FusedBlock {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let normed = self.ln1.forward(x.clone());
        let (query, key) = (self.query.forward(normed.clone()), self.key.forward(normed.clone()));
        let x = x + self.proj.forward(nn::causal_attention(query, key, self.value.forward(normed), N_HEADS));
        x.clone() + self.down.forward(nn::gelu(self.up.forward(self.ln2.forward(x))))
    }
}

impl From<Plain> for Fused {
    fn from(plain: Plain) -> Self {
        Self {
            tokens: plain.tokens.into(),
            positions: plain.positions.into(),
            blocks: plain.blocks.into_iter().map(Into::into).collect(),
            norm: plain.norm.into(),
            out: plain.out.into(),
        }
    }
}

impl Fused {
    fn loss(&self, ids: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let places = Tensor::<1, Int>::arange(0..128, &ids.device()).reshape([1, SEQ]);
        let x = self.tokens.forward(ids) + self.positions.forward(places);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let logits = self.out.forward(self.norm.forward(x));
        nn::cross_entropy(logits.reshape([ROWS * SEQ, VOCAB]), targets.reshape([ROWS * SEQ]))
    }
}

fn ids(shift: u16, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> =
        (0..512_u16).map(|i| i64::from((i / 128 * 77 + i % 128 * 3 + shift) % 1024)).collect();
    Tensor::from_data(TensorData::new(ids, [ROWS, SEQ]), device)
}

pub(crate) fn bench(criterion: &mut Criterion) {
    let device = Device::flex().autodiff();
    let mut group = criterion.benchmark_group("GPT of 4.0 M parameters, 512 tokens, forward and backward");
    group.sample_size(10);
    let plain = Plain::new(&device);
    let fused = Fused::from(plain.clone());
    group.bench_function("Burn's layers", |bencher| {
        on_one_thread(bencher, || black_box(plain.loss(ids(0, &device), ids(3, &device)).backward()));
    });
    group.bench_function("ours", |bencher| {
        on_one_thread(bencher, || black_box(fused.loss(ids(0, &device), ids(3, &device)).backward()));
    });
    group.finish();
}
