//! The cost of a question to a topology of 2^40 ranks: `cargo bench -p brigade-topology`.

use std::hint::black_box;

use brigade_topology::{PipelineGrid, Placement, ProcessTopology, Rank, Stage};
use criterion::{Criterion, criterion_group, criterion_main};

const AXES: [(&str, u64); 4] = [("pipe", 1 << 10), ("data", 1 << 14), ("expert", 1 << 6), ("model", 1 << 10)];
const RANK: Rank = Rank(987_654_321_012);

fn questions(criterion: &mut Criterion) {
    let topology = ProcessTopology::new(&AXES).expect("the axes are valid");
    assert_eq!(topology.world_size(), 1 << 40);
    let coord = topology.coord(RANK).expect("the rank exists");
    let named: Vec<(&str, u64)> = coord.iter().collect();

    let mut group = criterion.benchmark_group("2^40 ranks");
    group.bench_function("new", |bencher| bencher.iter(|| ProcessTopology::new(black_box(&AXES))));
    group.bench_function("coord, all axes", |bencher| {
        bencher.iter(|| {
            let coord = topology.coord(black_box(RANK)).expect("the rank exists");
            coord.iter().map(|(_, value)| value).sum::<u64>()
        });
    });
    group.bench_function("coord, one axis", |bencher| {
        bencher.iter(|| topology.coord(black_box(RANK)).map(|coord| coord.get("model")));
    });
    group.bench_function("rank", |bencher| bencher.iter(|| topology.rank(black_box(&named))));
    group.bench_function("axis_comm_list", |bencher| {
        bencher.iter(|| topology.axis_comm_list(black_box("pipe"), 123_456_789));
    });
    group.bench_function("axis_comm_list_of", |bencher| {
        bencher.iter(|| topology.axis_comm_list_of(black_box("pipe"), RANK));
    });
    group.bench_function("filter_match, first rank", |bencher| {
        bencher.iter(|| topology.filter_match(black_box(&[("data", 77)])).map(|mut ranks| ranks.next()));
    });
    group.bench_function("PipelineGrid::new", |bencher| {
        bencher.iter(|| PipelineGrid::new(topology.clone(), black_box(RANK)));
    });
    group.finish();

    let placement = Placement::v(1 << 20).expect("the placement is valid");
    criterion.bench_function("placement of 2^21 stages, rank_of", |bencher| {
        bencher.iter(|| placement.rank_of(black_box(Stage(1_500_000))));
    });
}

criterion_group!(benches, questions);
criterion_main!(benches);
