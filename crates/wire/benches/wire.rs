//! Times of what a stage boundary costs: flatten and unflatten, headers, text, and the payload path.
//!
//! `cargo bench -p brigade-wire --bench wire`

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on fails")]

use std::hint::black_box;

use brigade_wire::{
    DType, DecodeOptions, Dialect, Direction, EncodeOptions, Header, Leaf, Metadata, PayloadCheck, Shape,
    Tag, TensorView, Tree, decode, decode_metadata, encode_into, encode_metadata, flatten, unflatten,
};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const HEADER: Header =
    Header { run_id: 7, sender: 1, tag: Tag { stage: 1, direction: Direction::Forward, micro_batch: 3 } };

const SHAPE: [usize; 3] = [8, 512, 1024];

/// What a stage of a transformer sends: a hidden state, and pairs of keys and values; `n_tensors` in all.
fn message<T: Copy>(n_tensors: usize, tensor: T) -> Tree<T> {
    let pairs = (1..n_tensors).step_by(2).map(|first| {
        let pair = (first..(first + 2).min(n_tensors)).map(|_| Tree::Tensor(tensor));
        Tree::Tuple(pair.collect())
    });
    Tree::from((Tree::Tensor(tensor), Tree::Tuple(pairs.collect()), None::<bool>))
}

fn views(n_tensors: usize, data: &[u8]) -> (Metadata, Vec<Leaf<TensorView<'_>>>) {
    // A quantised payload may have any size, so that one buffer serves every shape.
    let dtype = DType::Quantized { scheme: b"q8s" };
    flatten(message(n_tensors, TensorView { dtype, shape: Shape::from(&SHAPE), wants_grad: true, data }))
}

fn trees(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tree");
    for n_tensors in [1, 8, 64] {
        let tree = message(n_tensors, 0_u64);
        group.bench_function(BenchmarkId::new("flatten", n_tensors), |bench| {
            bench.iter_batched(|| tree.clone(), |tree| black_box(flatten(tree)), BatchSize::SmallInput);
        });
        let (metadata, leaves) = flatten(tree.clone());
        group.bench_function(BenchmarkId::new("unflatten", n_tensors), |bench| {
            let unflatten = |leaves| black_box(unflatten(&metadata, leaves)).unwrap();
            bench.iter_batched(|| leaves.clone(), unflatten, BatchSize::SmallInput);
        });
        group.bench_function(BenchmarkId::new("flatten_unflatten", n_tensors), |bench| {
            let there_and_back = |tree| {
                let (metadata, leaves) = flatten(black_box(tree));
                unflatten(&metadata, leaves).unwrap()
            };
            bench.iter_batched(|| tree.clone(), there_and_back, BatchSize::SmallInput);
        });
    }
    group.finish();
}

fn headers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("header");
    for n_tensors in [1, 8, 64] {
        let (metadata, leaves) = views(n_tensors, &[]);
        group.bench_function(BenchmarkId::new("encode", n_tensors), |bench| {
            let mut buffer = Vec::new();
            bench.iter(|| {
                let buffer_in = std::mem::take(&mut buffer);
                let options = EncodeOptions::default();
                let frame = encode_into(buffer_in, &HEADER, &metadata, black_box(&leaves), options).unwrap();
                buffer = frame.into_buffer();
            });
        });
        let bytes =
            encode_into(Vec::new(), &HEADER, &metadata, &leaves, EncodeOptions::default()).unwrap().to_vec();
        group.bench_function(BenchmarkId::new("decode", n_tensors), |bench| {
            bench.iter(|| decode(black_box(&bytes), DecodeOptions::default()).unwrap().n_leaves());
        });
        group.bench_function(BenchmarkId::new("decode_to_tree", n_tensors), |bench| {
            bench.iter(|| decode(black_box(&bytes), DecodeOptions::default()).unwrap().to_tree());
        });
    }
    group.finish();
}

fn texts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("text");
    for n_tensors in [1, 8, 64] {
        let (metadata, _) = flatten(message(n_tensors, ()));
        group.bench_function(BenchmarkId::new("encode", n_tensors), |bench| {
            bench.iter(|| encode_metadata(black_box(&metadata), Dialect::Extended).unwrap());
        });
        let text = encode_metadata(&metadata, Dialect::Extended).unwrap();
        group.bench_function(BenchmarkId::new("decode", n_tensors), |bench| {
            bench.iter(|| decode_metadata(black_box(&text), Dialect::Extended).unwrap());
        });
    }
    group.finish();
}

fn payloads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("payload");
    let data = vec![7; 16 << 20];
    let (metadata, leaves) = views(1, &data);
    let encode = |options| encode_into(Vec::new(), &HEADER, &metadata, &leaves, options).unwrap();
    group.throughput(Throughput::Bytes(16 << 20));
    let mut copy = vec![0; data.len()];
    group.bench_function("memcpy", |bench| bench.iter(|| copy.copy_from_slice(black_box(&data))));
    group.bench_function("encode_vectored", |bench| {
        bench.iter(|| encode(EncodeOptions::default()).slices().map(<[u8]>::len).sum::<usize>());
    });
    group.bench_function("encode_into_one_buffer", |bench| {
        let frame = encode(EncodeOptions::default());
        let mut bytes = Vec::with_capacity(usize::try_from(frame.n_bytes()).unwrap());
        bench.iter(|| {
            bytes.clear();
            frame.slices().for_each(|slice| bytes.extend_from_slice(slice));
        });
    });
    group.bench_function("encode_with_checksum", |bench| {
        bench.iter(|| encode(EncodeOptions { payload_checksum: true }).n_bytes());
    });
    let bytes = encode(EncodeOptions { payload_checksum: true }).to_vec();
    for (name, payload_check) in
        [("decode", PayloadCheck::Skip), ("decode_with_checksum", PayloadCheck::Required)]
    {
        group.bench_function(name, |bench| {
            bench.iter(|| decode(black_box(&bytes), DecodeOptions { payload_check }).unwrap().n_leaves());
        });
    }
    group.finish();
}

criterion_group!(benches, trees, headers, texts, payloads);
criterion_main!(benches);
