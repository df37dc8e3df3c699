//! Small models with weights from a formula, so that no test depends on random numbers.

use brigade_engine::nn::Linear as SplitLinear;
use brigade_engine::schedule::{Plan, ScheduleError, Shape, gpipe, one_f_one_b};
use brigade_engine::{Layer, Layers, NamedTensor};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor, TensorData};

pub(crate) const VOCAB: usize = 11;
pub(crate) const WIDTH: usize = 8;
pub(crate) const SEQ: usize = 5;

pub(crate) type ScheduleFn = fn(Shape) -> Result<Plan, ScheduleError>;

/// The schedules that every comparison runs under.
pub(crate) const SCHEDULES: [(&str, ScheduleFn); 2] = [("gpipe", gpipe), ("1f1b", one_f_one_b)];

/// Replaces every float parameter by sines that depend on `seed` and the element.
pub(crate) fn formula<M: Module>(module: M, seed: usize) -> M {
    struct Fill(f64);
    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let shape = param.lazy_shape();
            self.0 += 1.0;
            let values: Vec<f32> = (0..u16::try_from(shape.num_elements()).expect("small"))
                .map(|i| (f64::from(i) * 1.7 + self.0 * 0.37).sin() * 0.4)
                .map(|x| format!("{x:.6}").parse().expect("a number"))
                .collect();
            let data = TensorData::new(values, shape);
            let value = Tensor::from_data(data, &param.lazy_device()).require_grad();
            Param::initialized(param.id, value)
        }
    }
    module.map(&mut Fill(f64::from(u16::try_from(seed).expect("small")) * 10.0))
}

#[derive(Module, Debug)]
pub(crate) struct Embed {
    tokens: Embedding,
    positions: Embedding,
}

impl Embed {
    pub(crate) fn new(device: &Device) -> Self {
        let tokens = EmbeddingConfig::new(VOCAB, WIDTH).init(device);
        let positions = EmbeddingConfig::new(SEQ, WIDTH).init(device);
        formula(Self { tokens, positions }, 0)
    }

    /// Logits over the tokens by the same weight, the other way round.
    pub(crate) fn unembed(&self, x: Tensor<3>) -> Tensor<3> {
        x.matmul(self.tokens.weight.val().transpose().unsqueeze())
    }
}

impl Layer for Embed {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let [batch, seq] = ids.dims();
        let end = i64::try_from(seq).expect("small");
        let places = Tensor::<1, Int>::arange(0..end, &ids.device()).reshape([1, seq]).repeat_dim(0, batch);
        self.tokens.forward(ids) + self.positions.forward(places)
    }
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    up: SplitLinear,
    down: SplitLinear,
}

impl Block {
    pub(crate) fn new(index: usize, device: &Device) -> Self {
        let block = Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, 2).with_dropout(0.0).init(device),
            up: SplitLinear::new(&LinearConfig::new(WIDTH, 2 * WIDTH), device),
            down: SplitLinear::new(&LinearConfig::new(2 * WIDTH, WIDTH), device),
        };
        formula(block, 1 + index)
    }
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let mask = generate_autoregressive_mask(batch, seq, &x.device());
        let normed = self.norm.forward(x.clone());
        let x = x + self.attention.forward(MhaInput::self_attn(normed).mask_attn(mask)).context;
        let hidden = gelu(self.up.forward(x.clone()));
        x + self.down.forward(hidden)
    }
}

#[derive(Module, Debug)]
pub(crate) struct Head {
    norm: LayerNorm,
    out: Linear,
}

impl Head {
    pub(crate) fn new(device: &Device) -> Self {
        let norm = LayerNormConfig::new(WIDTH).init(device);
        let out = LinearConfig::new(WIDTH, VOCAB).with_bias(false).init(device);
        formula(Self { norm, out }, 20)
    }
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.out.forward(self.norm.forward(x))
    }
}

/// Mean cross entropy over all positions of a micro-batch.
pub(crate) fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, vocab] = logits.dims();
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits.reshape([batch * seq, vocab]), targets.reshape([batch * seq]))
}

/// Embedding, `n_blocks` blocks and a head.
pub(crate) fn gpt(n_blocks: usize) -> Layers<Tensor<2, Int>, Tensor<3>> {
    Layers::new().layer(Embed::new).repeat(n_blocks, Block::new).layer(Head::new)
}

/// The same model without Brigade.
#[derive(Module, Debug)]
pub(crate) struct Unsplit {
    embed: Embed,
    blocks: Vec<Block>,
    head: Head,
}

impl Unsplit {
    pub(crate) fn new(n_blocks: usize, device: &Device) -> Self {
        Self {
            embed: Embed::new(device),
            blocks: (0..n_blocks).map(|i| Block::new(i, device)).collect(),
            head: Head::new(device),
        }
    }

    pub(crate) fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let x = self.blocks.iter().fold(self.embed.forward(ids), |x, block| block.forward(x));
        self.head.forward(x)
    }
}

/// Token ids and the next ids, different for every `serial`; `batch` rows.
pub(crate) fn tokens(serial: usize, batch: usize) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let row = |shift: usize| {
        let ids: Vec<i64> = (0..batch * SEQ)
            .map(|i| i64::try_from((i * 3 + serial * 5 + shift + i * i * serial) % VOCAB).expect("small"))
            .collect();
        Tensor::<2, Int>::from_data(TensorData::new(ids, [batch, SEQ]), &Device::flex())
    };
    (row(0), row(4))
}

/// Float data of any shape, different for every `serial`.
pub(crate) fn rows<const D: usize>(shape: [usize; D], serial: usize, device: &Device) -> Tensor<D> {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..u16::try_from(n).expect("small"))
        .map(|i| f32::from(i) * 0.61 + f32::from(u16::try_from(serial).expect("small")) * 1.37)
        .map(f32::sin)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Float values of every parameter, in the order of visits.
pub(crate) fn values<M: Module>(module: &M) -> Vec<TensorData> {
    struct Collect(Vec<TensorData>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}

/// Gradients of every parameter, in the order of visits.
pub(crate) fn gradient_values<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<TensorData> {
    struct Collect<'a>(Vec<TensorData>, &'a GradientsParams);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(self.1.get::<D>(param.id).map(|g| g.into_data()));
        }
    }
    let mut collect = Collect(Vec::new(), gradients);
    module.visit(&mut collect);
    collect.0
}

/// The data of a list of named tensors.
pub(crate) fn data(named: &[NamedTensor]) -> Vec<TensorData> {
    named.iter().map(|n| n.data.clone()).collect()
}

/// Runs the test of this name in a process of its own, since other tests share the random state and the
/// memory of this one; tells whether this is that process.
pub(crate) fn alone(name: &str) -> bool {
    if std::env::var_os("BRIGADE_TEST_ALONE").is_some() {
        return true;
    }
    let here = std::env::current_exe().expect("a test has a path");
    let output = std::process::Command::new(here)
        .args(["--exact", name, "--test-threads=1"])
        .env("BRIGADE_TEST_ALONE", "1")
        .output()
        .expect("the test starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Keeps panics of ranks out of the output: tests that provoke them look at the error instead, and a
/// backtrace, where one is asked for, takes longer than what they measure.
pub(crate) fn quiet_ranks() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            if !thread.name().is_some_and(|name| name.starts_with("brigade-rank-")) {
                default(info);
            }
        }));
    });
}
