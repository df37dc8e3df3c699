//! The cost of partitions, small and huge: `cargo bench -p brigade-partition`.

use std::hint::black_box;

use brigade_partition::{
    LayerInfo, LayerProfile, MemoryLimit, Options, PartitionMethod, balanced, deepspeed, partition,
};
use criterion::{Criterion, criterion_group, criterion_main};

/// Returns numbers that look random, below 2 to the power of `bits`.
fn numbers(count: usize, bits: u32) -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> (64 - bits)
    };
    (0..count).map(next).collect()
}

/// Returns measured layers with times and sizes that look random.
fn measured(count: usize) -> Vec<LayerInfo> {
    let layer = |number: u64| {
        let profile = LayerProfile {
            time_ns: 50_000 + number % 50_000,
            fixed_bytes: 1 << 24,
            in_flight_bytes: 1 << 20,
            output_bytes: 1 << 16,
        };
        LayerInfo::new("Block", number).measured(profile)
    };
    numbers(count, 40).into_iter().map(layer).collect()
}

fn plain(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("balanced");
    for (name, n_layers, n_stages) in
        [("96 layers, 16 stages", 96, 16), ("10^4 layers, 10^2 stages", 10_000, 100)]
    {
        let weights = numbers(n_layers, 30);
        group.bench_function(name, |bencher| bencher.iter(|| balanced(black_box(&weights), n_stages)));
    }
    group.sample_size(10);
    for bits in [10, 30, 50] {
        let weights = numbers(1_000_000, bits);
        group.bench_function(format!("10^6 layers of {bits} bits, 10^4 stages"), |bencher| {
            bencher.iter(|| balanced(black_box(&weights), 10_000));
        });
    }
    let floats: Vec<f64> =
        numbers(1_000_000, 52).into_iter().map(|number| f64::from_bits(number | 1023 << 52)).collect();
    group.bench_function("10^6 floats, 10^4 stages", |bencher| {
        bencher.iter(|| balanced(black_box(&floats), 10_000));
    });
    group.finish();
    let weights = numbers(96, 30);
    criterion.bench_function("deepspeed::balanced, 96 layers, 16 stages", |bencher| {
        bencher.iter(|| deepspeed::balanced(black_box(&weights), 16));
    });
}

fn constrained(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("partition by profile");
    group.sample_size(10);
    for (name, n_layers, n_stages) in
        [("96 layers, 16 stages", 96, 16_u32), ("1000 layers, 64 stages", 1_000, 64)]
    {
        let layers = measured(n_layers);
        let stages = usize::try_from(n_stages).unwrap_or(usize::MAX);
        let options = Options {
            speeds: (0..n_stages).map(|rank| f64::from(rank % 3 + 4)).collect(),
            memory: Some(MemoryLimit {
                bytes: vec![1 << 33; stages],
                in_flight: (1..=n_stages).rev().map(u64::from).collect(),
            }),
            cost_per_byte: 0.04,
            ..Options::default()
        };
        group.bench_function(format!("{name}: speeds, memory, sending"), |bencher| {
            bencher.iter(|| partition(&PartitionMethod::Profile, black_box(&layers), stages, &options));
        });
        let half = stages / 2;
        let v = Options { ranks: (0..half).chain((0..half).rev()).collect(), ..Options::default() };
        group.bench_function(format!("{name}: a V"), |bencher| {
            bencher.iter(|| partition(&PartitionMethod::Profile, black_box(&layers), stages, &v));
        });
        let looped = Options { ranks: (0..stages).map(|stage| stage % half).collect(), ..Options::default() };
        group.bench_function(format!("{name}: a loop"), |bencher| {
            bencher.iter(|| partition(&PartitionMethod::Profile, black_box(&layers), stages, &looped));
        });
    }
    group.finish();
}

criterion_group!(benches, plain, constrained);
criterion_main!(benches);
