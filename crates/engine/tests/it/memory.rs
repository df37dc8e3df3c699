//! What a step keeps for each micro-batch in flight, counted by the allocator.

use brigade_engine::nn::Linear;
use brigade_engine::schedule::Schedule;
use brigade_engine::{EngineError, Layers, PipelineEngine, PipelineModule, Recompute, TrainConfig, World};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};

use crate::support::alone;

const ROWS: usize = 128;
const WIDTH: usize = 32;
const N_LAYERS: usize = 4;

/// One boundary value.
const BOUNDARY: f64 = 16_384.0;

/// Eight times as wide inside as at its borders.
#[derive(Module, Debug)]
struct Wide {
    up: Linear,
    down: Linear,
}

impl Wide {
    fn new(device: &Device) -> Self {
        let linear = |from, to| Linear::new(&LinearConfig::new(from, to), device);
        Self { up: linear(WIDTH, 8 * WIDTH), down: linear(8 * WIDTH, WIDTH) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(self.up.forward(x).tanh())
    }
}

/// The most bytes that one step of GPipe with `m` micro-batches has at once on a single rank, beside what
/// was there before it.
fn peak(m: u32, recompute: Recompute) -> f64 {
    let bytes = World::local(1).expect("one rank").run(move |rank| {
        let layers = (0..N_LAYERS).fold(Layers::new(), |layers, _| layers.with(Wide::new, Wide::forward));
        let loss = |y: Tensor<2>, _: ()| y.powi_scalar(2).mean();
        let module = PipelineModule::builder(&layers, loss)
            .schedule(|shape| Schedule::GPipe.plan(shape))
            .micro_batches(m)
            .recompute(recompute.clone())
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        let x = Tensor::<2>::ones([ROWS, WIDTH], &Device::flex());
        // The same data for all, so that only what the step makes is counted.
        let mut data = std::iter::repeat_with(|| (x.clone(), ()));
        engine.train_batch(&mut data)?;
        let mut result = Ok(None);
        let info = allocation_counter::measure(|| result = engine.train_batch(&mut data));
        result?.expect("endless data");
        Ok::<_, EngineError>(info.bytes_max)
    });
    let bytes = bytes.expect("the steps run").remove(0);
    f64::from(u32::try_from(bytes).expect("a small model"))
}

/// What a micro-batch more adds to the peak, in boundary values.
fn kept(recompute: &Recompute) -> f64 {
    (peak(16, recompute.clone()) - peak(8, recompute.clone())) / 8.0 / BOUNDARY
}

#[test]
fn gpipe_with_recompute_holds_the_borders_of_segments_and_one_interior() {
    // A backward pass frees graphs that other tests have dropped, which would count here.
    if !alone("memory::gpipe_with_recompute_holds_the_borders_of_segments_and_one_interior") {
        return;
    }
    let everything = kept(&Recompute::default());
    assert!(everything > 32.0, "four layers of 8 boundaries each at least: {everything}");
    // The first input is the caller's own, which the step does not allocate. Besides the borders each
    // segment notes some 3 KiB: leaves of Burn's graph, and handles.
    for (every, n_segments, borders) in [(1, 4.0, 3.0), (2, 2.0, 1.0), (4, 1.0, 0.0)] {
        let kept = kept(&Recompute::every(every));
        // The peak is not at the same place of every run.
        assert!(kept > borders - 0.3, "every {every}: {kept} of {borders} boundaries");
        assert!(kept < borders + 0.25 * n_segments + 0.1, "every {every}: {kept} of {borders} boundaries");
    }
    // What is left at any number of micro-batches: the interior of what runs again, and gradients.
    let (whole, without) = (peak(16, Recompute::every(4)), peak(16, Recompute::default()));
    assert!(whole < 0.5 * without, "{whole} of {without}");
}
