//! The engine against PyTorch: losses, gradients and weights of a small model within 1e-5.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use brigade_engine::nn::{self, Embedding, LayerNorm, Linear, gelu};
use brigade_engine::{
    EngineError, GradientClipping, Layer, Layers, NamedTensor, PipelineEngine, PipelineModule, TrainConfig,
    World,
};
use burn::module::{Module, Param};
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::support::{SCHEDULES, ScheduleFn};

/// The largest difference that counts as equal, relative to the largest value of the tensor, since a sum
/// of cancelling terms is as exact as its largest term: PyTorch's own f32 and f64 runs of this model
/// differ by up to 3.1e-7.
const TOLERANCE: f64 = 1e-5;

/// Tensors by PyTorch's name: values in row-major order and shape.
type Weights = BTreeMap<String, (Vec<f32>, Vec<usize>)>;

fn folder() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/parity");
    std::env::var_os("BRIGADE_PARITY").map_or_else(default, PathBuf::from)
}

fn read_tensors(path: &Path) -> Weights {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => view
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().expect("whole numbers")))
                .collect(),
            // Compared with an f32 run, so that the sixth digit is what counts.
            Dtype::F64 => view
                .data()
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().expect("whole numbers")))
                .map(|x| x.to_string().parse().expect("a number"))
                .collect(),
            other => panic!("{name} has dtype {other:?}"),
        };
        (name, (values, view.shape().to_vec()))
    });
    tensors.collect()
}

/// A linear layer's weight is stored `[out, in]` by PyTorch and `[in, out]` by Burn.
fn transpose((values, shape): &(Vec<f32>, Vec<usize>)) -> (Vec<f32>, Vec<usize>) {
    let [rows, columns] = shape[..] else { panic!("a matrix has two dimensions") };
    let turned = (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c]));
    (turned.collect(), vec![columns, rows])
}

fn is_linear(name: &str) -> bool {
    name.ends_with("weight") && ["fc1", "fc2", "head"].iter().any(|part| name.contains(part))
}

/// The tensor of PyTorch's name as Burn stores it.
fn burn_layout(weights: &Weights, name: &str) -> (Vec<f32>, Vec<usize>) {
    let stored = weights.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
    if is_linear(name) { transpose(stored) } else { stored.clone() }
}

fn load<const D: usize>(weights: &Weights, name: &str, device: &Device) -> Param<Tensor<D>> {
    let (values, shape) = burn_layout(weights, name);
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}

/// Names of our parameters by PyTorch's: `blocks.0.fc1.weight` is `layer_001.fc1.weight`.
fn our_name(name: &str, n_blocks: usize) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["emb", rest] => format!("layer_000.emb.{rest}"),
        ["head", rest] => format!("layer_{:03}.head.{rest}", n_blocks + 1),
        ["blocks", block, layer, rest] => {
            let rest = if layer == "ln" { if rest == "weight" { "gamma" } else { "beta" } } else { rest };
            format!("layer_{:03}.{layer}.{rest}", 1 + block.parse::<usize>().expect("an index"))
        }
        _ => panic!("unknown parameter {name}"),
    }
}

#[derive(Module, Debug)]
struct Emb {
    emb: Embedding,
}

impl Layer for Emb {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.emb.forward(ids)
    }
}

#[derive(Module, Debug)]
struct Block {
    ln: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Layer for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = gelu(self.fc1.forward(self.ln.forward(x.clone())));
        x + self.fc2.forward(hidden)
    }
}

#[derive(Module, Debug)]
struct Head {
    head: Linear,
}

impl Layer for Head {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.head.forward(x)
    }
}

/// The weight of the embedding, as PyTorch stores it, and a bias of its own.
#[derive(Module, Debug)]
struct Shared {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

/// An output layer that shares the embedding's weight.
#[derive(Module, Debug)]
struct TiedHead {
    head: Shared,
}

impl Layer for TiedHead {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let Shared { weight, bias } = &self.head;
        x.matmul(weight.val().transpose().unsqueeze()) + bias.val().unsqueeze()
    }
}

/// The sizes in `parity.json`.
#[derive(Clone, Copy)]
struct Sizes {
    vocab: usize,
    width: usize,
    hidden: usize,
    n_blocks: usize,
    n_micro_batches: usize,
    batch: usize,
    seq: usize,
    n_steps: usize,
}

impl Sizes {
    fn read(json: &Value) -> Self {
        let model = &json["model"];
        let size = |key: &str| usize::try_from(model[key].as_u64().expect(key)).expect(key);
        Self {
            vocab: size("vocab"),
            width: size("d_model"),
            hidden: size("hidden"),
            n_blocks: size("blocks"),
            n_micro_batches: size("micro_batches"),
            batch: size("batch"),
            seq: size("seq"),
            n_steps: size("steps"),
        }
    }
}

fn layers(sizes: Sizes, weights: &Arc<Weights>, tied: bool) -> Layers<Tensor<2, Int>, Tensor<3>> {
    let (w0, w1, w2) = (Arc::clone(weights), Arc::clone(weights), Arc::clone(weights));
    let embedding = move |d: &Device| {
        let mut emb = Embedding::new(&EmbeddingConfig::new(sizes.vocab, sizes.width), d);
        emb.weight = load(&w0, "emb.weight", d);
        Emb { emb }
    };
    let layers = Layers::new();
    let layers = if tied { layers.tied("emb", ["emb.weight"], embedding) } else { layers.layer(embedding) };
    let layers = layers.repeat(sizes.n_blocks, move |i, d| {
        let name = |rest: &str| format!("blocks.{i}.{rest}");
        let mut ln = LayerNorm::new(&LayerNormConfig::new(sizes.width), d);
        ln.gamma = load(&w1, &name("ln.weight"), d);
        ln.beta = Some(load(&w1, &name("ln.bias"), d));
        let linear = |layer: &str, input, output| {
            let mut linear = Linear::new(&LinearConfig::new(input, output), d);
            linear.weight = load(&w1, &name(&format!("{layer}.weight")), d);
            linear.bias = Some(load(&w1, &name(&format!("{layer}.bias")), d));
            linear
        };
        Block {
            ln,
            fc1: linear("fc1", sizes.width, sizes.hidden),
            fc2: linear("fc2", sizes.hidden, sizes.width),
        }
    });
    if tied {
        return layers.tied("emb", ["head.weight"], move |d| {
            // The owner's values are taken, whatever these are.
            let weight = Param::from_tensor(Tensor::zeros([sizes.vocab, sizes.width], d));
            TiedHead { head: Shared { weight, bias: load(&w2, "head.bias", d) } }
        });
    }
    layers.layer(move |d| {
        let mut head = Linear::new(&LinearConfig::new(sizes.width, sizes.vocab), d);
        head.weight = load(&w2, "head.weight", d);
        head.bias = Some(load(&w2, "head.bias", d));
        Head { head }
    })
}

fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, seq, vocab] = logits.dims();
    nn::cross_entropy(logits.reshape([batch * seq, vocab]), targets.reshape([batch * seq]))
}

/// Burn's optimizer with the settings of `parity.json`, its learning rate, and the norm to clip by.
fn optimizer(settings: &Value) -> Result<(ModuleOptimizer, f64, Option<f64>), String> {
    let number = |key: &str| settings[key].as_f64();
    let learning_rate = number("lr").ok_or("no learning rate")?;
    let clip = number("clip_grad_norm");
    if let (Some(betas), Some(eps)) = (settings["betas"].as_array(), number("eps")) {
        let beta = |i: usize| betas[i].as_f64().map(narrow).ok_or("a beta is no number");
        let config = AdamWConfig::new()
            .with_beta_1(beta(0)?)
            .with_beta_2(beta(1)?)
            .with_epsilon(narrow(eps))
            .with_weight_decay(narrow(number("weight_decay").unwrap_or(0.0)));
        return Ok((config.init(), learning_rate, clip));
    }
    let momentum = number("momentum").filter(|&momentum| momentum != 0.0).map(|momentum| MomentumConfig {
        momentum,
        dampening: number("dampening").unwrap_or(0.0),
        nesterov: settings["nesterov"].as_bool().unwrap_or(false),
    });
    Ok((SgdConfig::new().with_momentum(momentum).init(), learning_rate, clip))
}

fn narrow(x: f64) -> f32 {
    x.to_string().parse().expect("a number")
}

/// Micro-batches of token ids, step after step.
fn batches(json: &Value, sizes: Sizes) -> Vec<Tensor<2, Int>> {
    let numbers = |value: &Value| -> Vec<i64> {
        let rows = value.as_array().expect("rows").iter();
        rows.flat_map(|row| row.as_array().expect("a row")).map(|id| id.as_i64().expect("an id")).collect()
    };
    let steps = json.as_array().expect("steps").iter();
    steps
        .flat_map(|step| step.as_array().expect("micro-batches"))
        .map(|micro_batch| {
            let data = TensorData::new(numbers(micro_batch), [sizes.batch, sizes.seq]);
            Tensor::from_data(data, &Device::flex())
        })
        .collect()
}

/// What a run gives: losses of every micro-batch, and by step the gradients and the weights after it.
struct Run {
    losses: Vec<Vec<f64>>,
    norms: Vec<f64>,
    gradients: Vec<Vec<NamedTensor>>,
    weights: Vec<Vec<NamedTensor>>,
}

fn run(n_stages: usize, schedule: ScheduleFn, setting: &Setting) -> Run {
    let Setting { sizes, weights, tied, optimizer, learning_rate, clip, inputs, targets } = setting.clone();
    let parts = World::local(n_stages)
        .expect("a few ranks")
        .run(move |rank| {
            let module = PipelineModule::builder(&layers(sizes, &weights, tied), cross_entropy)
                .schedule(schedule)
                .partition("uniform".parse().expect("a method"))
                .micro_batches(u32::try_from(sizes.n_micro_batches).expect("small"))
                .build(&rank)?;
            let config = TrainConfig::new(learning_rate);
            let mut engine = PipelineEngine::new(module, optimizer.clone(), config)?;
            // Any clipping reports the norm; a bound that nothing reaches leaves the gradients alone.
            let bound = clip.unwrap_or(f64::MAX);
            engine.set_gradient_clipping(Some(GradientClipping::GlobalNorm(bound)))?;
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&seen);
            engine.observe_gradients(move |named| sink.lock().expect("no panic").push(named.to_vec()));
            let mut data = inputs.iter().cloned().zip(targets.iter().cloned());
            let mut run = Run { losses: vec![], norms: vec![], gradients: vec![], weights: vec![] };
            while let Some(report) = engine.train_batch(&mut data)? {
                engine.check_copies()?;
                run.norms.push(report.gradient_norm.expect("clipping reports it"));
                run.losses.push(report.micro_batch_losses);
                run.weights.push(engine.module().parameters());
            }
            run.gradients = std::mem::take(&mut *seen.lock().expect("no panic"));
            Ok::<_, EngineError>(run)
        })
        .expect("the pipeline runs");
    let mut whole = Run {
        losses: parts[0].losses.clone(),
        norms: parts[0].norms.clone(),
        gradients: vec![vec![]; sizes.n_steps],
        weights: vec![vec![]; sizes.n_steps],
    };
    for part in parts {
        for step in 0..sizes.n_steps {
            whole.gradients[step].extend_from_slice(&part.gradients[step]);
            whole.weights[step].extend_from_slice(&part.weights[step]);
        }
    }
    whole
}

#[derive(Clone)]
struct Setting {
    sizes: Sizes,
    weights: Arc<Weights>,
    tied: bool,
    optimizer: ModuleOptimizer,
    learning_rate: f64,
    clip: Option<f64>,
    inputs: Vec<Tensor<2, Int>>,
    targets: Vec<Tensor<2, Int>>,
}

fn close(found: f64, expected: f64, scale: f64, what: &str) {
    let difference = (found - expected).abs();
    assert!(
        difference <= TOLERANCE * scale,
        "{what}: found {found}, PyTorch {expected}, difference {difference:e}"
    );
}

fn compare_tensors(
    found: &[NamedTensor],
    expected: &Weights,
    prefix: &str,
    sizes: Sizes,
    case: &str,
) -> usize {
    let found: BTreeMap<&str, &TensorData> = found.iter().map(|n| (n.name.as_str(), &n.data)).collect();
    let mut n_values = 0;
    for name in expected.keys().filter_map(|key| key.strip_prefix(prefix)) {
        let key = format!("{prefix}{name}");
        let stored = &expected[&key];
        let (values, shape) = if is_linear(name) { transpose(stored) } else { stored.clone() };
        let ours = our_name(name, sizes.n_blocks);
        let data = found.get(ours.as_str()).unwrap_or_else(|| panic!("{case}: no {ours}"));
        assert_eq!(data.shape().as_slice(), shape, "{case}: shape of {ours}");
        let scale = values.iter().fold(0.0, |max: f64, &x| max.max(f64::from(x).abs()));
        for (i, (found, expected)) in data.iter::<f64>().zip(values).enumerate() {
            close(found, f64::from(expected), scale, &format!("{case}, {key}, element {i}"));
            n_values += 1;
        }
    }
    n_values
}

#[test]
#[expect(clippy::print_stdout, reason = "says what was compared and what was skipped")]
fn losses_gradients_and_weights_equal_pytorch() {
    let folder = folder();
    let text = std::fs::read_to_string(folder.join("parity.json")).expect("parity.json is in the folder");
    let json: Value = serde_json::from_str(&text).expect("parity.json is JSON");
    let sizes = Sizes::read(&json);
    let runs = json["runs"].as_object().expect("runs");
    let mut n_compared = 0;
    let mut skipped = Vec::new();
    for (name, steps) in runs {
        let (tie, rest) = name.split_once('_').expect("tie_optimizer_dtype");
        let (optimizer_name, dtype) = rest.rsplit_once('_').expect("tie_optimizer_dtype");
        let (optimizer, learning_rate, clip) = match optimizer(&json["optimizers"][optimizer_name]) {
            Ok(found) => found,
            Err(reason) => {
                skipped.push(format!("{name}: {reason}"));
                continue;
            }
        };
        let setting = Setting {
            sizes,
            weights: Arc::new(read_tensors(&folder.join(format!("init_{tie}.safetensors")))),
            tied: tie == "tied",
            optimizer,
            learning_rate,
            clip,
            inputs: batches(&json["inputs"], sizes),
            targets: batches(&json["targets"], sizes),
        };
        let expected = read_tensors(&folder.join(format!("{name}.safetensors")));
        for p in 1..=3 {
            for (schedule_name, schedule) in SCHEDULES {
                let case = format!("{name}, p={p}, {schedule_name}");
                let found = run(p, schedule, &setting);
                let steps = steps.as_array().expect("steps");
                assert_eq!(found.losses.len(), steps.len(), "{case}: steps");
                for (step, (losses, expected_step)) in found.losses.iter().zip(steps).enumerate() {
                    let expected_losses = expected_step["micro_losses"].as_array().expect("losses");
                    assert_eq!(losses.len(), expected_losses.len(), "{case}: micro-batches");
                    let norm = expected_step["grad_norm"].as_f64().expect("a norm");
                    close(found.norms[step], norm, norm, &format!("{case}, norm of step {step}"));
                    for (found, expected) in losses.iter().zip(expected_losses) {
                        let expected = expected.as_f64().expect("a loss");
                        close(*found, expected, expected.abs(), &format!("{case}, step {step}"));
                    }
                    let n = compare_tensors(
                        &found.gradients[step],
                        &expected,
                        &format!("step{step}/grad/"),
                        sizes,
                        &case,
                    ) + compare_tensors(
                        &found.weights[step],
                        &expected,
                        &format!("step{step}/weight/"),
                        sizes,
                        &case,
                    );
                    assert!(n > 0, "{case}, step {step}: the file holds tensors to compare");
                    n_compared += n;
                }
            }
        }
        println!(
            "parity {name} ({dtype}): {} steps at p = 1, 2, 3 under 1f1b and gpipe",
            steps.as_array().map_or(0, Vec::len)
        );
    }
    for line in &skipped {
        println!("parity skipped {line}");
    }
    println!(
        "parity: {n_compared} numbers within {TOLERANCE:e}, {} of {} runs skipped",
        skipped.len(),
        runs.len()
    );
    assert!(n_compared > 0, "no run of {} could be compared", folder.display());
}
