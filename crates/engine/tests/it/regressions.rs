//! What ran wrong elsewhere or here once, one story a test.

use brigade_engine::schedule::one_f_one_b;
use brigade_engine::{EngineError, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::optim::AdamWConfig;

use crate::support::{cross_entropy, gpt, tokens};

/// CASES B107: graphs of stages on several threads are independent; Burn once lost gradients under
/// backward passes that ran at the same time, and two threads that share leaves deadlock.
#[test]
fn hundreds_of_steps_on_four_threads_stay_equal_to_each_other() {
    let run = || {
        World::local(4)
            .expect("four ranks")
            .run(|rank| {
                let module = PipelineModule::builder(&gpt(2), cross_entropy)
                    .schedule(one_f_one_b)
                    .micro_batches(6)
                    .build(&rank)?;
                let config = TrainConfig { learning_rate: 0.003 };
                let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), config)?;
                let mut source = (0..300 * 6).map(|serial| tokens(serial % 7, 1));
                let mut losses = Vec::new();
                while let Some(report) = engine.train_batch(&mut source)? {
                    losses.push(report.loss);
                }
                Ok::<_, EngineError>(losses)
            })
            .expect("the run ends well")
    };
    let losses = run();
    assert_eq!(losses[0].len(), 300);
    assert!(losses[0][299] < 0.5 * losses[0][0], "{} to {}", losses[0][0], losses[0][299]);
    assert!(losses.iter().all(|rank| *rank == losses[0]));
    assert_eq!(run(), losses, "a second run gives the same numbers");
}
