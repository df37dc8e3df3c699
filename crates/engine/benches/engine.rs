//! What the engine itself costs: steps of layers that do next to nothing, and backward from a gradient.

mod clock;
mod gpt;
mod nn;

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use brigade_engine::nn::Dropout;
use brigade_engine::schedule::Schedule;
use brigade_engine::{
    AnyTensor, EngineError, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig, World, backward_with,
};
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Adds its one number.
#[derive(Module, Debug)]
struct Shift {
    by: Param<Tensor<1>>,
}

impl Layer for Shift {
    type Input = Tensor<1>;
    type Output = Tensor<1>;
    fn forward(&self, x: Tensor<1>) -> Tensor<1> {
        x + self.by.val()
    }
}

/// The time of `n_steps` training steps of 16 micro-batches over `n_ranks` ranks, without set-up.
fn steps(n_ranks: usize, schedule: Schedule, n_steps: u64) -> Duration {
    let (sender, spent) = mpsc::channel();
    World::local(n_ranks)
        .expect("a few ranks")
        .run(move |rank| {
            let layers = Layers::new()
                .repeat(8, |_, device| Shift { by: Param::from_tensor(Tensor::zeros([1], device)) });
            let module = PipelineModule::builder(&layers, |y: Tensor<1>, t: Tensor<1>| (y - t).abs())
                .partition("uniform".parse()?)
                .schedule(move |shape| schedule.plan(shape))
                .micro_batches(16)
                .build(&rank)?;
            let config = TrainConfig::new(0.0);
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
            let x = Tensor::<1>::zeros([1], &Device::flex());
            let mut data = std::iter::repeat_with(|| (x.clone(), x.clone()));
            engine.train_batch(&mut data)?;
            let started = Instant::now();
            for _ in 0..n_steps {
                engine.train_batch(&mut data)?;
            }
            if rank.rank().index() == 0 {
                sender.send(started.elapsed()).expect("the benchmark listens");
            }
            Ok::<_, EngineError>(())
        })
        .expect("the steps run");
    spent.recv().expect("rank 0 measures")
}

fn bench_steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step of 8 tiny layers, 16 micro-batches");
    for n_ranks in [1, 2, 4] {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
            let id = BenchmarkId::new(schedule.to_string(), format!("{n_ranks} rank(s)"));
            group.bench_function(id, |bencher| bencher.iter_custom(|n| steps(n_ranks, schedule, n)));
        }
    }
    group.finish();
}

fn bench_backward(criterion: &mut Criterion) {
    let device = Device::flex().autodiff();
    let gradient = Tensor::<2>::ones([512, 256], &Device::flex());
    let leaf = || Tensor::<2>::ones([512, 256], &device).require_grad();
    let mut group = criterion.benchmark_group("backward from a gradient of 512 x 256");
    group.bench_function("injected", |bencher| {
        bencher.iter(|| {
            let output = AnyTensor::new(leaf() * 2.0).expect("rank 2");
            let gradient = AnyTensor::new(gradient.clone()).expect("rank 2");
            black_box(backward_with(vec![(output, gradient)]).expect("shapes are equal"))
        });
    });
    group.bench_function("product and sum", |bencher| {
        bencher.iter(|| black_box(((leaf() * 2.0) * gradient.clone()).sum().backward()));
    });
    group.finish();
}

fn bench_dropout(criterion: &mut Criterion) {
    let (plain, shape) = (Device::flex(), [512, 256]);
    let x = Tensor::<2>::ones(shape, &plain.clone().autodiff());
    let mut group = criterion.benchmark_group("dropout of 512 x 256 elements");
    group.throughput(Throughput::Elements(512 * 256));
    let keyed = Dropout::new(0.1).expect("a probability");
    group.bench_function("keyed", |bencher| bencher.iter(|| black_box(keyed.forward(x.clone()))));
    let burns = burn::nn::DropoutConfig::new(0.1).init();
    group.bench_function("Burn's", |bencher| bencher.iter(|| black_box(burns.forward(x.clone()))));
    group.bench_function("Burn's mask alone", |bencher| {
        let kept = Distribution::Bernoulli(0.9);
        bencher.iter(|| black_box(Tensor::<2>::random(shape, kept, &plain)));
    });
    group.finish();
}

criterion_group!(benches, bench_steps, bench_backward, bench_dropout, nn::bench, gpt::bench);
criterion_main!(benches);
