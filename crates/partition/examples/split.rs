//! Cuts a transformer in several ways and prints how even the stages are.
//!
//! `cargo run -p brigade-partition --example split -- 24 8`: 24 blocks on 8 stages.

use std::io::Write;

use brigade_partition::{LayerInfo, LayerProfile, MemoryLimit, Options, Report, partition};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let n_blocks = given.next().transpose()?.unwrap_or(24);
    let n_stages = given.next().transpose()?.unwrap_or(8);
    let mut out = std::io::stdout().lock();

    let layer = |name: &str, parameters: u64, time_ns: u64| {
        let profile = LayerProfile {
            time_ns,
            fixed_bytes: 16 * parameters,
            in_flight_bytes: 40 << 20,
            output_bytes: 8 << 20,
        };
        LayerInfo::new(name, parameters).measured(profile)
    };
    let mut layers = vec![layer("Embedding", 51_463_168, 90_000)];
    layers.extend(vec![layer("Block", 12_596_224, 1_300_000); n_blocks]);
    layers.push(layer("Norm", 2_048, 40_000));
    layers.push(layer("Head", 51_463_168, 2_900_000));

    // 1F1B keeps a micro-batch less in flight on each stage.
    let in_flight = (1..=n_stages).rev().map(u64::try_from).collect::<Result<_, _>>()?;
    let memory = MemoryLimit { bytes: vec![24 << 30; n_stages], in_flight };
    let limited = Options { memory: Some(memory), cost_per_byte: 0.02, ..Options::default() };
    for (text, options) in
        [("uniform", Options::default()), ("type:block", Options::default()), ("profile", limited)]
    {
        let method = text.parse()?;
        let cuts = partition(&method, &layers, n_stages, &options)?;
        // Whatever the method, what counts in the end is time.
        let report = Report::of(&"profile".parse()?, &layers, &cuts, &options)?;
        writeln!(out, "{text}: cuts:{cuts}\n{report}\n")?;
        assert_eq!((cuts.n_layers(), cuts.first_empty()), (layers.len(), None));
    }
    Ok(())
}
