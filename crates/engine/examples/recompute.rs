//! What recompute saves and costs: peak memory and time of a GPipe step on one rank.
//!
//! ```text
//! cargo run --release -p brigade-engine --example recompute
//! ```

use std::time::{Duration, Instant};

use brigade_engine::nn::{Dropout, Linear};
use brigade_engine::schedule::gpipe;
use brigade_engine::{EngineError, Layers, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};

const ROWS: usize = 512;
const WIDTH: usize = 256;
const N_LAYERS: usize = 8;
const N_MICRO_BATCHES: u32 = 8;

/// The feed-forward half of a transformer's block.
#[derive(Module, Debug)]
struct Mlp {
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let linear = |from, to| Linear::new(&LinearConfig::new(from, to), device);
        Self {
            up: linear(WIDTH, 4 * WIDTH),
            down: linear(4 * WIDTH, WIDTH),
            dropout: Dropout::new(0.1).expect("a probability"),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.clone() + self.dropout.forward(self.down.forward(gelu(self.up.forward(x))))
    }
}

/// What a step took.
struct Measured {
    peak_mib: f64,
    time: Duration,
    loss: f64,
}

fn measure(interval: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let mut parts = World::local(1)?.run(move |rank| {
        let layers = (0..N_LAYERS).fold(Layers::new(), |layers, _| layers.with(Mlp::new, Mlp::forward));
        let loss = |y: Tensor<2>, _: ()| y.powi_scalar(2).mean();
        let module = PipelineModule::builder(&layers, loss)
            .schedule(gpipe)
            .micro_batches(N_MICRO_BATCHES)
            .recompute_every(interval)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.01))?;
        let x = Tensor::<2>::ones([ROWS, WIDTH], &Device::flex());
        let mut data = std::iter::repeat_with(|| (x.clone(), ()));
        engine.train_batch(&mut data)?;
        let mut peak = 0;
        let mut times = Vec::new();
        let mut loss = 0.0;
        for _ in 0..5 {
            let started = Instant::now();
            let mut report = Ok(None);
            let info = allocation_counter::measure(|| report = engine.train_batch(&mut data));
            times.push(started.elapsed());
            peak = peak.max(info.bytes_max);
            loss = report?.map_or(0.0, |report| report.loss);
        }
        times.sort();
        Ok::<_, EngineError>((peak, times[times.len() / 2], loss))
    })?;
    let (peak, time, loss) = parts.remove(0);
    let kib = u32::try_from(peak >> 10)?;
    Ok(Measured { peak_mib: f64::from(kib) / 1024.0, time, loss })
}

#[expect(clippy::print_stdout, reason = "an example shows its figures")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{N_LAYERS} layers of {WIDTH} x {}, {N_MICRO_BATCHES} micro-batches of {ROWS} rows", 4 * WIDTH);
    println!("| recompute every | peak of a step, MiB | step, ms |");
    println!("| ---: | ---: | ---: |");
    let mut all = Vec::new();
    for interval in [0, 1, 2, 4, 8] {
        let measured = measure(interval)?;
        let ms = measured.time.as_secs_f64() * 1e3;
        println!("| {interval} | {:.1} | {ms:.0} |", measured.peak_mib);
        all.push(measured);
    }
    assert!(all.iter().all(|measured| measured.loss == all[0].loss), "recompute changes no number");
    assert!(all[1..].iter().all(|measured| measured.peak_mib < all[0].peak_mib), "it saves memory");
    Ok(())
}
