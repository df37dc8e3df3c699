//! A model of one's own, cut into two stages: `cargo run --release --example own_layers`.

use brigade_engine::{EngineError, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, activation::relu};

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        relu(self.linear.forward(x))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dense = |_, device: &Device| Dense { linear: LinearConfig::new(16, 16).init(device) };
    let losses = World::local(2)?.run(move |rank| {
        let mean_square = |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean();
        let layers = Layers::new().repeat(4, dense);
        let module = PipelineModule::builder(&layers, mean_square).micro_batches(4).build(&rank)?;
        let config = TrainConfig::new(1e-2);
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), config)?;
        let mut data = (0..400).map(|i| {
            let x = Tensor::<1, Int>::arange(i..i + 128, &Device::flex()).float().sin().reshape([8, 16]);
            (x.clone(), x.abs())
        });
        let mut losses = Vec::new();
        while let Some(report) = engine.train_batch(&mut data)? {
            losses.push(report.loss);
        }
        Ok::<_, EngineError>(losses)
    })?;
    assert!(losses[0].last() < losses[0].first(), "the loss falls: {losses:?}");
    Ok(())
}
