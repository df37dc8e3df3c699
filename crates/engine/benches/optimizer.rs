//! An AdamW step over 4.0 million parameters: Burn's, the fused one, and a plain copy of the same memory.

use std::hint::black_box;

use brigade_engine::{AdamWSettings, FusedAdamW};
use burn::optim::{AdamWConfig, AdamWState, Optimizer};
use burn::tensor::{Device, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// The shapes of 8 transformer blocks of width 200 and an embedding: 4.0 million parameters.
fn shapes() -> Vec<[usize; 2]> {
    let blocks = (0..8).flat_map(|_| [[200, 600], [200, 200], [200, 800], [800, 200], [1, 2000]]);
    blocks.chain([[720, 200]]).collect()
}

struct Run<const D: usize> {
    weight: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<AdamWState<D>>,
}

fn runs() -> Vec<Run<2>> {
    let tensor = |shape, x| Tensor::<2>::full(shape, x, &Device::flex());
    let run = |shape| Run { weight: tensor(shape, 0.5), gradient: tensor(shape, 0.01), state: None };
    shapes().into_iter().map(run).collect()
}

fn step(optimizer: &impl Optimizer<State<2> = AdamWState<2>>, runs: &mut [Run<2>]) {
    for run in runs {
        // Moved out, so that the optimizer has the only handle, as in a training step.
        let weight = std::mem::replace(&mut run.weight, Tensor::empty([1, 1], &Device::flex()));
        let (weight, state) = optimizer.step(1e-3, weight, run.gradient.clone(), run.state.take());
        (run.weight, run.state) = (weight, state);
    }
}

fn bench_adamw(criterion: &mut Criterion) {
    // One worker, as a rank has unless asked otherwise.
    let _pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().expect("a pool");
    let n: usize = shapes().iter().map(|[rows, columns]| rows * columns).sum();
    let mut group = criterion.benchmark_group(format!("AdamW step of {n} parameters, one thread"));
    // Parameter and two moments read and written, the gradient read.
    group.throughput(Throughput::Bytes(u64::try_from(n * 7 * 4).expect("small")));
    let burn = AdamWConfig::new().with_weight_decay(0.01).build();
    let mut state = runs();
    group.bench_function("Burn", |bencher| bencher.iter(|| step(&burn, &mut state)));
    let fused = FusedAdamW::new(AdamWSettings { weight_decay: 0.01, ..AdamWSettings::default() });
    let mut state = runs();
    group.bench_function("fused", |bencher| bencher.iter(|| step(&fused, &mut state)));
    // 3.5 copies read and write as many bytes as a step.
    let (source, mut target) = (vec![1.0_f32; n * 7 / 2], vec![0.0_f32; n * 7 / 2]);
    group.bench_function("copy of as many bytes", |bencher| {
        bencher.iter(|| {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
        });
    });
    group.finish();
}

criterion_group!(benches, bench_adamw);
criterion_main!(benches);
