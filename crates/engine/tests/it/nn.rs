//! Fused layers against Burn's own: values and gradients, for every kind of tensor they take.

use std::sync::{Arc, Mutex};

use brigade_engine::nn;
use brigade_engine::schedule::Schedule;
use brigade_engine::{EngineError, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig, RmsNormConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::support::{SEQ, Unsplit, VOCAB, WIDTH, formula, gradient_values, tokens};

/// Kernels add up in another order than Burn's and use another exponential: relative to the largest value.
const TOLERANCE: f64 = 3e-6;

/// Compares within the tolerance of the tensor's largest value, or of `floor` where that is more.
fn close(found: &TensorData, expected: &TensorData, floor: f64, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let largest = largest(expected).max(floor);
    for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
        let within = (found - expected).abs() <= TOLERANCE * largest;
        assert!(within, "{what}: {found} and {expected}");
    }
}

fn largest(data: &TensorData) -> f64 {
    data.iter::<f64>().fold(0.0, |largest, x| x.abs().max(largest))
}

/// Values between -4 and 4 that look random.
fn values<const D: usize>(shape: [usize; D], serial: f64, dtype: DType) -> Tensor<D> {
    let n = u32::try_from(shape.iter().product::<usize>()).expect("small");
    let values: Vec<f64> = (0..n).map(|i| 4.0 * (f64::from(i) * 1.7 + serial).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
}

/// Inputs as they come: whole, transposed, and a part of something larger.
fn views(rows: usize, width: usize, dtype: DType) -> [Tensor<2>; 3] {
    let whole = values([rows, width], 0.3, dtype);
    let turned = values([width, rows], 0.3, dtype).transpose();
    let part = values([rows + 2, width + 3], 0.7, dtype).slice([1..rows + 1, 2..width + 2]);
    [whole, turned, part]
}

/// The output of `layer` and the gradients of its input and, in the order of visits, of its parameters.
fn run<M: Module, const D: usize, const E: usize>(
    layer: &M,
    x: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E>,
) -> Vec<TensorData> {
    let x = x.autodiff().require_grad();
    let y = forward(layer, x.clone());
    let dtype = y.dtype();
    let weights = values([y.dims().iter().product()], 2.5, dtype).autodiff().reshape(y.dims());
    let mut gradients = (y.clone() * weights).sum().backward();
    let for_x = x.grad_remove(&mut gradients).expect("x took part");
    let of_parameters = GradientsParams::from_grads(gradients, layer);
    let mut found = vec![y.into_data(), for_x.into_data()];
    found.extend(gradient_values(layer, &of_parameters));
    found
}

/// Compares outputs, and gradients by the largest of all: some are nothing but what cancelling terms leave,
/// such as that of the keys' bias, which no softmax sees.
fn same(found: &[TensorData], expected: &[TensorData], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let floor = expected[1..].iter().map(largest).fold(1e-3, f64::max);
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        close(found, expected, if i == 0 { 1e-3 } else { floor }, &format!("{what}, tensor {i}"));
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// A module without parameters, for functions.
#[derive(Module, Debug)]
struct Nothing {}

#[test]
fn layer_norm_is_burns() {
    for (rows, width) in [(5, 8), (3, 1), (7, 67), (2, 192), (300, 80)] {
        for bias in [true, false] {
            let config = LayerNormConfig::new(width).with_bias(bias).with_epsilon(0.01);
            let burns = formula(config.init(&device()), 3);
            let ours = nn::LayerNorm::from(burns.clone());
            assert_eq!(ours.epsilon.to_bits(), 0.01_f64.to_bits());
            for x in views(rows, width, DType::F32) {
                let expected = run(&burns, x.clone(), |norm, x| norm.forward(x));
                assert_eq!(expected.len(), if bias { 4 } else { 3 });
                same(&run(&ours, x, |norm, x| norm.forward(x)), &expected, "layer norm");
            }
        }
    }
}

#[test]
fn rms_norm_is_burns() {
    for (rows, width) in [(5, 8), (3, 1), (7, 67), (2, 192)] {
        let burns = formula(RmsNormConfig::new(width).with_epsilon(0.01).init(&device()), 3);
        let ours = nn::RmsNorm::from(burns.clone());
        for x in views(rows, width, DType::F32) {
            let expected = run(&burns, x.clone(), |norm, x| norm.forward(x));
            same(&run(&ours, x, |norm, x| norm.forward(x)), &expected, "rms norm");
        }
    }
}

#[test]
fn gelu_is_burns() {
    for dtype in [DType::F32, DType::F64] {
        for x in views(37, 21, dtype) {
            let expected = run(&Nothing {}, x.clone(), |_, x| gelu(x));
            same(&run(&Nothing {}, x, |_, x| nn::gelu(x)), &expected, "gelu");
        }
    }
}

/// Burn's attention in tensors, with the mask as a very low score.
fn plain_attention(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>, n_heads: usize) -> Tensor<3> {
    let [batch, seq, width] = query.dims();
    let apart = |x: Tensor<3>| x.reshape([batch, seq, n_heads, width / n_heads]).swap_dims(1, 2);
    let head_width = f64::from(u32::try_from(width / n_heads).expect("small"));
    let mask = Tensor::<2>::full([seq, seq], -1e9, (&query.device(), query.dtype())).triu(1);
    let scores = apart(query).matmul(apart(key).transpose()) / head_width.sqrt();
    let weights = softmax(scores + mask.reshape([1, 1, seq, seq]), 3);
    weights.matmul(apart(value)).swap_dims(1, 2).reshape([batch, seq, width])
}

#[test]
fn causal_attention_is_burns_with_a_mask() {
    for dtype in [DType::F32, DType::F64] {
        for (batch, seq, width, n_heads) in [(2, 5, 8, 2), (1, 1, 4, 4), (3, 17, 6, 1), (2, 70, 16, 2)] {
            let x = values([batch * seq, 3 * width], 0.1, dtype).reshape([batch, seq, 3 * width]);
            let part =
                |x: &Tensor<3>, i: usize| x.clone().slice([0..batch, 0..seq, i * width..(i + 1) * width]);
            let expected = run(&Nothing {}, x.clone(), |_, x| {
                plain_attention(part(&x, 0), part(&x, 1), part(&x, 2), n_heads)
            });
            let found = run(&Nothing {}, x, |_, x| {
                nn::causal_attention(part(&x, 0), part(&x, 1), part(&x, 2), n_heads)
            });
            same(&found, &expected, "causal attention");
        }
    }
}

#[test]
fn self_attention_is_burns_with_a_causal_mask() {
    let config = MultiHeadAttentionConfig::new(12, 3).with_dropout(0.0);
    let burns = formula(config.init(&device()), 5);
    let ours = nn::CausalSelfAttention::try_from(burns.clone()).expect("no dropout");
    let x = values([2 * 9, 12], 0.9, DType::F32).reshape([2, 9, 12]);
    let expected = run(&burns, x.clone(), |attention, x| {
        let mask = generate_autoregressive_mask(2, 9, &x.device());
        attention.forward(MhaInput::self_attn(x).mask_attn(mask)).context
    });
    assert_eq!(expected.len(), 10);
    same(&run(&ours, x, |attention, x| attention.forward(x)), &expected, "self-attention");
}

#[test]
fn attention_that_drops_or_is_quiet_is_refused() {
    let config = MultiHeadAttentionConfig::new(12, 3).with_dropout(0.1);
    let refused = nn::CausalSelfAttention::try_from(config.init(&device())).expect_err("it drops weights");
    assert_eq!(refused, nn::AttentionError::Dropout { probability: 0.1 });
    let quiet = config.with_quiet_softmax(true);
    let refused = nn::CausalSelfAttention::new(&quiet, &device()).expect_err("it is quiet");
    assert_eq!(refused, nn::AttentionError::QuietSoftmax);
}

fn targets(n: usize, n_classes: usize) -> Tensor<1, Int> {
    let targets: Vec<i64> = (0..n).map(|i| i64::try_from(i * 5 % n_classes).expect("small")).collect();
    Tensor::from_data(TensorData::new(targets, [n]), &Device::flex())
}

#[test]
fn cross_entropy_is_burns_also_with_weights_and_padding() {
    let plain = CrossEntropyLossConfig::new();
    let weighted = plain.clone().with_weights(Some((1..=21_u8).map(f32::from).collect()));
    let padded = plain.clone().with_pad_tokens(Some(vec![0]));
    for dtype in [DType::F32, DType::F64] {
        for x in views(37, 21, dtype) {
            let expected = run(&Nothing {}, x.clone(), |_, x| {
                CrossEntropyLossConfig::new().init(&x.device()).forward(x, targets(37, 21))
            });
            let found = run(&Nothing {}, x, |_, x| nn::cross_entropy(x, targets(37, 21)));
            same(&found, &expected, "cross entropy");
        }
    }
    for config in [plain, weighted, padded] {
        let burns = config.init(&device());
        let ours = nn::CrossEntropyLoss::from(burns.clone());
        let x = values([37, 21], 0.3, DType::F32);
        let expected = run(&Nothing {}, x.clone(), |_, x| burns.forward(x, targets(37, 21)));
        let found = run(&Nothing {}, x, |_, x| ours.forward(x, targets(37, 21)));
        same(&found, &expected, "configured cross entropy");
    }
}

#[test]
fn embedding_is_burns_and_rows_named_twice_get_both_gradients() {
    let burns = formula(EmbeddingConfig::new(11, 6).init(&device()), 2);
    let ours = nn::Embedding::from(burns.clone());
    let (ids, _) = tokens(3, 4);
    let weights = values([4, SEQ, 6], 0.2, DType::F32).autodiff();
    let gradients = (ours.forward(ids.clone().autodiff()) * weights.clone()).sum().backward();
    let expected = (burns.forward(ids.clone().autodiff()) * weights).sum().backward();
    let (found, expected) = (ours.weight.val().grad(&gradients), burns.weight.val().grad(&expected));
    let data = |tensor: Option<Tensor<2>>| tensor.expect("it took part").into_data();
    assert_eq!(data(found), data(expected), "sums of the same order");
    assert_eq!(ours.forward(ids.clone().autodiff()).into_data(), burns.forward(ids.autodiff()).into_data());
}

#[test]
fn double_precision_takes_burns_operations() {
    let device = device();
    let double = |x: Tensor<1>| x.cast(DType::F64);
    let (gamma, beta) = (values([8], 0.4, DType::F32), values([8], 1.4, DType::F32));
    let norm = |gamma: Tensor<1>, beta: Tensor<1>| {
        let mut norm = nn::LayerNorm::new(&LayerNormConfig::new(8), &device);
        norm.gamma = burn::module::Param::from_tensor(gamma.autodiff());
        norm.beta = Some(burn::module::Param::from_tensor(beta.autodiff()));
        norm
    };
    let rms = |gamma: Tensor<1>| {
        let mut norm = nn::RmsNorm::new(&RmsNormConfig::new(8), &device);
        norm.gamma = burn::module::Param::from_tensor(gamma.autodiff());
        norm
    };
    let x = values([5, 8], 0.3, DType::F32);
    let wide = x.clone().cast(DType::F64);
    let layer = norm(double(gamma.clone()), double(beta.clone()));
    let found = run(&layer, wide.clone(), |norm, x| norm.forward(x));
    assert_eq!(found[0].dtype(), DType::F64);
    same(&run(&norm(gamma.clone(), beta), x.clone(), |norm, x| norm.forward(x)), &found, "layer norm");
    let found = run(&rms(double(gamma.clone())), wide, |norm, x| norm.forward(x));
    same(&run(&rms(gamma), x, |norm, x| norm.forward(x)), &found, "rms norm");
}

#[test]
fn a_value_that_is_no_number_stays_one() {
    let mut numbers = vec![0.5_f32; 40];
    numbers[13] = f32::NAN;
    let x = Tensor::<2>::from_data(TensorData::new(numbers, [2, 20]), &Device::flex());
    let is_nan = |x: Tensor<1>| x.into_scalar::<f32>().is_nan();
    assert!(is_nan(nn::gelu(x.clone()).sum()));
    assert!(is_nan(nn::cross_entropy(x.clone(), targets(2, 20))));
    let x = x.reshape([1, 2, 20]);
    assert!(is_nan(nn::causal_attention(x.clone(), x.clone(), x, 2).sum()));
}

#[test]
fn more_threads_change_no_bit() {
    let all = || {
        let x = values([512, 96], 0.3, DType::F32);
        let norm = formula(nn::LayerNorm::new(&LayerNormConfig::new(96), &device()), 1);
        let mut found = run(&norm, x.clone(), |norm, x| nn::gelu(norm.forward(x)));
        let of_loss = run(&norm, x.clone(), |norm, x| nn::cross_entropy(norm.forward(x), targets(512, 96)));
        found.extend(of_loss);
        let x = x.reshape([4, 128, 96]);
        found.extend(run(&norm, x, |norm, x| {
            let x = norm.forward(x);
            nn::causal_attention(x.clone(), x.clone(), x, 2)
        }));
        found
    };
    let on = |n_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("threads start");
        pool.install(all)
    };
    assert_eq!(on(1), on(3));
}

/// The blocks of the unsplit model in fused layers.
#[derive(Module, Debug)]
struct Embed {
    tokens: nn::Embedding,
    positions: nn::Embedding,
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
struct Block {
    norm: nn::LayerNorm,
    attention: nn::CausalSelfAttention,
    up: nn::Linear,
    down: nn::Linear,
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + self.attention.forward(self.norm.forward(x));
        let hidden = nn::gelu(self.up.forward(x.clone()));
        x + self.down.forward(hidden)
    }
}

#[derive(Module, Debug)]
struct Head {
    norm: nn::LayerNorm,
    out: nn::Linear,
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.out.forward(self.norm.forward(x))
    }
}

fn fused_gpt(n_blocks: usize) -> Layers<Tensor<2, Int>, Tensor<3>> {
    Layers::new()
        .layer(|device| {
            let tokens = nn::Embedding::new(&EmbeddingConfig::new(VOCAB, WIDTH), device);
            let positions = nn::Embedding::new(&EmbeddingConfig::new(SEQ, WIDTH), device);
            formula(Embed { tokens, positions }, 0)
        })
        .repeat(n_blocks, |i, device| {
            let block = Block {
                norm: nn::LayerNorm::new(&LayerNormConfig::new(WIDTH), device),
                attention: nn::CausalSelfAttention::new(&MultiHeadAttentionConfig::new(WIDTH, 2), device)
                    .expect("no quiet softmax"),
                up: nn::Linear::new(&LinearConfig::new(WIDTH, 2 * WIDTH), device),
                down: nn::Linear::new(&LinearConfig::new(2 * WIDTH, WIDTH), device),
            };
            formula(block, 1 + i)
        })
        .layer(|device| {
            let norm = nn::LayerNorm::new(&LayerNormConfig::new(WIDTH), device);
            let out = nn::Linear::new(&LinearConfig::new(WIDTH, VOCAB).with_bias(false), device);
            formula(Head { norm, out }, 20)
        })
}

fn fused_loss(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, n_classes] = logits.dims();
    nn::cross_entropy(logits.reshape([batch * seq, n_classes]), targets.reshape([batch * seq]))
}

/// Loss and gradients of one step of four micro-batches.
fn step(schedule: Schedule, p: usize) -> (f64, Vec<(String, TensorData)>) {
    let parts = World::local(p).expect("a few ranks").run(move |rank| {
        let module = PipelineModule::builder(&fused_gpt(2), fused_loss)
            .partition("uniform".parse()?)
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(4)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        engine.observe_gradients(move |named| {
            sink.lock().expect("no panic").extend(named.iter().map(|n| (n.name.clone(), n.data.clone())));
        });
        let report = engine.train_batch(&mut (0..4).map(|i| tokens(i, 2)))?.expect("a batch");
        let gradients = std::mem::take(&mut *seen.lock().expect("no panic"));
        Ok::<_, EngineError>((report.loss, gradients))
    });
    let parts = parts.expect("the batch runs");
    let loss = parts[0].0;
    let mut whole: Vec<_> = parts.into_iter().flat_map(|(_, gradients)| gradients).collect();
    whole.sort_by(|a, b| a.0.cmp(&b.0));
    (loss, whole)
}

#[test]
fn a_gpt_of_fused_layers_has_the_unsplit_numbers_and_the_same_bits_under_every_split() {
    let model = Unsplit::new(2, &device());
    let losses = (0..4).map(|i| {
        let (ids, targets) = tokens(i, 2);
        crate::support::cross_entropy(model.forward(ids.autodiff()), targets.autodiff())
    });
    let loss = losses.reduce(|a, b| a + b).expect("four micro-batches") / 4.0;
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let expected = gradient_values(&model, &gradients);

    let (found_loss, found) = step(Schedule::OneFOneB, 1);
    assert!((found_loss - loss.into_scalar::<f64>()).abs() < 1e-6);
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.len(), 2 + 2 * 14 + 3);
    for p in [1, 2, 4] {
        for schedule in [Schedule::OneFOneB, Schedule::ZbH1, Schedule::ZbH2] {
            assert_eq!(step(schedule, p), (found_loss, found.clone()), "{schedule}, p={p}");
        }
    }
    // By name they come in another order than by visit: compare as sets of norms and shapes.
    let key = |data: &TensorData| {
        let square: f64 = data.iter::<f64>().map(|x| x * x).sum();
        (data.shape().to_vec(), square.sqrt())
    };
    let mut expected: Vec<_> = expected.iter().map(key).collect();
    let mut found: Vec<_> = found.iter().map(|(_, data)| key(data)).collect();
    let order = |a: &(Vec<usize>, f64), b: &(Vec<usize>, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
    expected.sort_by(order);
    found.sort_by(order);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.0, expected.0);
        assert!((found.1 - expected.1).abs() <= 1e-5 * expected.1.max(1e-3), "{found:?} and {expected:?}");
    }
}
