//! Each fused layer against Burn's own, forward and backward, on one thread.

use std::hint::black_box;

use brigade_engine::nn;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig, RmsNormConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Distribution, Int, Tensor};
use criterion::Criterion;

use crate::clock::on_one_thread;

/// Forward, and backward from a gradient of ones, of both.
fn both<const D: usize>(
    criterion: &mut Criterion,
    name: &str,
    shape: [usize; D],
    burns: impl Fn(Tensor<D>) -> Tensor<D>,
    ours: impl Fn(Tensor<D>) -> Tensor<D>,
) {
    let x = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex());
    let leaf = || x.clone().autodiff().require_grad();
    let mut group = criterion.benchmark_group(name);
    group.bench_function("Burn's", |bencher| {
        on_one_thread(bencher, || black_box(burns(leaf()).backward()));
    });
    group.bench_function("ours", |bencher| {
        on_one_thread(bencher, || black_box(ours(leaf()).backward()));
    });
    group.finish();
}

fn attention(x: Tensor<3>) -> Tensor<3> {
    let apart = |x: Tensor<3>| x.reshape([4, 128, 4, 48]).swap_dims(1, 2);
    let (query, key, value) = (apart(x.clone()), apart(x.clone()), apart(x));
    let mask = Tensor::<2>::full([128, 128], -1e9, &query.device()).triu(1).reshape([1, 1, 128, 128]);
    let weights = softmax(query.matmul(key.transpose()) / 48_f64.sqrt() + mask, 3);
    weights.matmul(value).swap_dims(1, 2).reshape([4, 128, 192])
}

pub(crate) fn bench(criterion: &mut Criterion) {
    let device = Device::flex().autodiff();
    let burns = LayerNormConfig::new(192).init(&device);
    let ours = nn::LayerNorm::from(burns.clone());
    both(criterion, "layer norm of 512 x 192", [512, 192], |x| burns.forward(x), |x| ours.forward(x));

    let burns = RmsNormConfig::new(192).init(&device);
    let ours = nn::RmsNorm::from(burns.clone());
    both(criterion, "rms norm of 512 x 192", [512, 192], |x| burns.forward(x), |x| ours.forward(x));

    both(criterion, "GELU of 512 x 768", [512, 768], gelu, nn::gelu);

    let ours = |x: Tensor<3>| nn::causal_attention(x.clone(), x.clone(), x, 4);
    both(criterion, "causal attention of 4 x 128 x 192, 4 heads", [4, 128, 192], attention, ours);

    let burns = LinearConfig::new(192, 768).init(&device);
    let ours = nn::Linear::from(burns.clone());
    both(
        criterion,
        "linear of 4 x 128 x 192 to 768",
        [4, 128, 192],
        |x| burns.forward(x),
        |x| ours.forward(x),
    );

    let ids = Tensor::<1, Int>::arange(0..512, &device);
    let burns = CrossEntropyLossConfig::new().init(&device);
    let loss = |loss: Tensor<1>| loss.reshape([1, 1]);
    both(
        criterion,
        "cross entropy of 512 x 1024",
        [512, 1024],
        |x| loss(burns.forward(x, ids.clone())),
        |x| loss(nn::cross_entropy(x, ids.clone())),
    );

    let burns = EmbeddingConfig::new(1024, 192).init(&device);
    let ours = nn::Embedding::from(burns.clone());
    let ids = ids.reshape([4, 128]);
    let mut group = criterion.benchmark_group("embedding of 4 x 128 in 1024 x 192");
    group.bench_function("Burn's", |bencher| {
        on_one_thread(bencher, || black_box(burns.forward(ids.clone()).backward()));
    });
    group.bench_function("ours", |bencher| {
        on_one_thread(bencher, || black_box(ours.forward(ids.clone()).backward()));
    });
    group.finish();
}
