//! The model as a list of layers: embedding, blocks, head.

use brigade_engine::nn::Linear;
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
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
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits.reshape([rows * seq, n_symbols]), targets.reshape([rows * seq]))
}

/// What a character is plus where it stands.
#[derive(Module, Debug)]
struct Embed {
    tokens: Embedding,
    positions: Embedding,
}

impl Embed {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let tokens = EmbeddingConfig::new(config.n_symbols, config.width);
        let positions = EmbeddingConfig::new(config.seq, config.width);
        Self {
            tokens: tokens.with_initializer(normal(0.02)).init(device),
            positions: positions.with_initializer(normal(0.02)).init(device),
        }
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
    /// Zero where a character may look, far below it where it may not: itself and those before it.
    causal: Tensor<2>,
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
            norm_attention: LayerNormConfig::new(width).init(device),
            query: linear(width, width, 0.02),
            key: linear(width, width, 0.02),
            value: linear(width, width, 0.02),
            merge: linear(width, width, residual),
            norm_dense: LayerNormConfig::new(width).init(device),
            up: linear(width, 4 * width, 0.02),
            down: linear(4 * width, width, residual),
            causal: Tensor::<2>::full([config.seq, config.seq], -1e9, device).triu(1),
            n_heads: config.n_heads,
        }
    }

    fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let [rows, seq, width] = x.dims();
        let head_width = width / self.n_heads;
        let split = |y: Tensor<3>| y.reshape([rows, seq, self.n_heads, head_width]).swap_dims(1, 2);
        let scale = u32::try_from(head_width).map_or(1.0, |n| f64::from(n).sqrt().recip());
        let query = split(self.query.forward(x.clone()) * scale);
        let key = split(self.key.forward(x.clone()));
        let value = split(self.value.forward(x));
        // Shorter texts than the longest look at the corner of the mask that is theirs.
        let causal = self.causal.clone().slice([0..seq, 0..seq]).reshape([1, 1, seq, seq]);
        let weights = softmax(query.matmul(key.transpose()) + causal, 3);
        self.merge.forward(weights.matmul(value).swap_dims(1, 2).reshape([rows, seq, width]))
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
        Self { norm: LayerNormConfig::new(config.width).init(device), out: Linear::new(&out, device) }
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
