//! The model as a list of layers: embedding, blocks, head.

use brigade_engine::nn::{self, Embedding, LayerNorm, Linear, causal_attention, gelu};
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::nn::{EmbeddingConfig, Initializer, LayerNormConfig, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

/// Sizes of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) n_symbols: usize,
    pub(crate) n_blocks: usize,
    pub(crate) width: usize,
    pub(crate) n_heads: usize,
    pub(crate) seq: usize,
}

/// The whole model, from token ids to the logits of the next one.
pub(crate) fn gpt(config: ModelConfig) -> Layers<Tensor<2, Int>, Tensor<3>> {
    Layers::new()
        .layer(move |d| Embed::new(&config, d))
        .repeat(config.n_blocks, move |_, d| Block::new(&config, d))
        .layer(move |d| Head::new(&config, d))
}

/// Mean loss a character, in nats.
pub(crate) fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [rows, seq, n_symbols] = logits.dims();
    nn::cross_entropy(logits.reshape([rows * seq, n_symbols]), targets.reshape([rows * seq]))
}

/// What a character is plus where it stands.
#[derive(Module, Debug)]
struct Embed {
    tokens: Embedding,
    positions: Embedding,
}

impl Embed {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let table = |n| {
            let config = EmbeddingConfig::new(n, config.width).with_initializer(normal(0.02));
            Embedding::new(&config, device)
        };
        Self { tokens: table(config.n_symbols), positions: table(config.seq) }
    }
}

impl Layer for Embed {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let [_, seq] = ids.dims();
        let end = i64::try_from(seq).unwrap_or(i64::MAX);
        let places = Tensor::<1, Int>::arange(0..end, &ids.device()).reshape([1, seq]);
        self.tokens.forward(ids) + self.positions.forward(places)
    }
}

/// Attention and two dense layers, each with a norm before it and a way around it.
#[derive(Module, Debug)]
struct Block {
    norm_attention: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    merge: Linear,
    norm_dense: LayerNorm,
    up: Linear,
    down: Linear,
    n_heads: usize,
}

impl Block {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let width = config.width;
        // The sum of all ways around starts as wide as one of them.
        let n_sums = u32::try_from(config.n_blocks).map_or(1.0, |n| f64::from(2 * n));
        let residual = 0.02 / n_sums.sqrt();
        let linear = |from, to, std| {
            Linear::new(&LinearConfig::new(from, to).with_bias(false).with_initializer(normal(std)), device)
        };
        Self {
            norm_attention: LayerNorm::new(&LayerNormConfig::new(width), device),
            query: linear(width, width, 0.02),
            key: linear(width, width, 0.02),
            value: linear(width, width, 0.02),
            merge: linear(width, width, residual),
            norm_dense: LayerNorm::new(&LayerNormConfig::new(width), device),
            up: linear(width, 4 * width, 0.02),
            down: linear(4 * width, width, residual),
            n_heads: config.n_heads,
        }
    }

    fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let (query, key) = (self.query.forward(x.clone()), self.key.forward(x.clone()));
        self.merge.forward(causal_attention(query, key, self.value.forward(x), self.n_heads))
    }
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + self.attend(self.norm_attention.forward(x));
        let hidden = gelu(self.up.forward(self.norm_dense.forward(x.clone())));
        x + self.down.forward(hidden)
    }
}

/// How likely each character is to be the next.
#[derive(Module, Debug)]
struct Head {
    norm: LayerNorm,
    out: Linear,
}

impl Head {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let out =
            LinearConfig::new(config.width, config.n_symbols).with_bias(false).with_initializer(normal(0.02));
        Self {
            norm: LayerNorm::new(&LayerNormConfig::new(config.width), device),
            out: Linear::new(&out, device),
        }
    }
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.out.forward(self.norm.forward(x))
    }
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}
