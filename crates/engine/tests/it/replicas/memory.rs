//! Memory over many steps of replicas that share layers.

use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    EngineError, Layers, OptimizerSharding, PipelineEngine, PipelineModule, TrainConfig, World,
};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;

use super::{dense, rows};
use crate::support::alone;

#[test]
fn a_thousand_steps_keep_memory_flat() {
    if !alone("replicas::memory::a_thousand_steps_keep_memory_flat") {
        return;
    }
    let grown = World::local(4).expect("four ranks").run(|rank| {
        let layers = Layers::new()
            .tied("ends", ["linear.weight"], |d| dense(false, d))
            .repeat(2, |_, d| dense(false, d))
            .tied("ends", ["linear.weight"], |d| dense(false, d));
        let mean_square = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
        let module = PipelineModule::builder(&layers, mean_square)
            .topology(ProcessTopology::pipe_data(2, 2).expect("a grid"))
            .micro_batches(2)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(1e-3))?;
        engine.set_optimizer_sharding(OptimizerSharding::Sharded)?;
        let mut data = (0..).map(|serial| rows(serial % 100));
        let mut resident = Vec::new();
        for step in 0..1_600 {
            engine.train_batch(&mut data)?.expect("endless data");
            if step == 399 || step == 1_599 {
                resident.push(resident_bytes());
            }
        }
        engine.check_copies()?;
        Ok::<_, EngineError>(resident[1].saturating_sub(resident[0]))
    });
    // A tensor of this model kept in each step would be 36 bytes and its bookkeeping, 1200 times; whole
    // pages come and go by the allocator's will.
    let grown = grown.expect("the run ends well")[0];
    assert!(grown < 512 * 1024, "{grown} bytes in 1200 steps");
}

/// Memory of this process; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * 4096
}
