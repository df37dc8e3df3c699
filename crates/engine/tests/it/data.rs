//! Evaluation and prediction: other sizes and numbers of micro-batches, and no effect on the training.

use brigade_engine::schedule::gpipe;
use brigade_engine::{Cause, EngineError, PipelineEngine, PipelineModule, RankHandle, TrainConfig, World};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::support::{Unsplit, cross_entropy, data, gpt, tokens};

type Gpt = PipelineEngine<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

fn engine(rank: &RankHandle) -> Result<Gpt, EngineError> {
    let module =
        PipelineModule::builder(&gpt(2), cross_entropy).schedule(gpipe).micro_batches(3).build(rank)?;
    PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.02))
}

/// Evaluations of other sizes between the steps change nothing.
#[test]
fn evaluations_between_steps_change_nothing() {
    let run = |with_evaluations: bool| {
        let parts = World::local(3).expect("three ranks").run(move |rank| {
            let mut engine = engine(&rank)?;
            let mut training = (0..9).map(|serial| tokens(serial, 2));
            let mut losses = Vec::new();
            let mut evaluations = Vec::new();
            for step in 0..3_u32 {
                if with_evaluations {
                    let mut held_back = (0..20).map(|serial| tokens(100 + serial, 1 + serial % 4));
                    for m in [1, 4, 2, 4 + step] {
                        let report = engine.eval_batch(&mut held_back, m)?.expect("enough data");
                        assert_eq!(report.micro_batch_losses.len(), usize::try_from(m).expect("small"));
                        evaluations.push(report.loss);
                    }
                }
                losses.push(engine.train_batch(&mut training)?.expect("a batch").loss);
            }
            Ok::<_, EngineError>((losses, data(&engine.module().parameters()), evaluations))
        });
        parts.expect("the run ends well")
    };
    let (plain, evaluated) = (run(false), run(true));
    for (plain, evaluated) in plain.iter().zip(&evaluated) {
        assert_eq!(plain.0, evaluated.0, "losses");
        assert_eq!(plain.1, evaluated.1, "weights");
        assert_eq!(evaluated.2.len(), 12);
    }
    // Every rank reads the same loss.
    assert!(evaluated.iter().all(|rank| rank.2 == evaluated[0].2));
}

#[test]
fn the_evaluation_loss_is_that_of_the_unsplit_model() {
    let parts = World::local(3).expect("three ranks").run(|rank| {
        let mut engine = engine(&rank)?;
        let mut source = (0..4).map(|serial| tokens(serial, 2));
        Ok::<_, EngineError>(engine.eval_batch(&mut source, 4)?.expect("enough data"))
    });
    let model = Unsplit::new(2, &Device::flex().autodiff()).valid();
    let expected: Vec<f64> = (0..4)
        .map(|serial| {
            let (ids, targets) = tokens(serial, 2);
            f64::from(cross_entropy(model.forward(ids), targets).into_scalar::<f32>())
        })
        .collect();
    for report in parts.expect("the run ends well") {
        assert_eq!(report.micro_batch_losses, expected);
    }
}

/// Outputs come back in order, one for each micro-batch, on every rank.
#[test]
fn predictions_are_those_of_the_unsplit_model() {
    let parts = World::local(3).expect("three ranks").run(|rank| {
        let mut engine = engine(&rank)?;
        let mut source = (0..4).map(|serial| tokens(serial, 1 + serial).0);
        let outputs = engine.predict_batch(&mut source, 4)?.expect("enough data");
        assert!(engine.predict_batch(&mut source, 4)?.is_none(), "the data has ended");
        Ok::<_, EngineError>(outputs.into_iter().map(|y| y.into_data()).collect::<Vec<TensorData>>())
    });
    let model = Unsplit::new(2, &Device::flex().autodiff()).valid();
    let expected: Vec<TensorData> =
        (0..4).map(|serial| model.forward(tokens(serial, 1 + serial).0).into_data()).collect();
    for outputs in parts.expect("the run ends well") {
        assert_eq!(outputs, expected);
    }
}

#[test]
fn an_evaluation_of_no_micro_batches_is_refused_on_every_rank() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank)?;
        let mut source = (0..4).map(|serial| tokens(serial, 2));
        Ok::<_, EngineError>(engine.eval_batch(&mut source, 0).expect_err("nothing to evaluate"))
    });
    for error in parts.expect("errors are values here") {
        assert!(matches!(error.cause(), Cause::Plan { n_micro_batches: 0, .. }), "{error}");
    }
}

/// The mean of the losses of this call, which later calls do not change.
#[test]
fn the_reported_loss_is_the_mean_of_this_call() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank)?;
        engine.set_learning_rate(0.0)?;
        let mut source = (0..3).chain(0..3).map(|serial| tokens(serial, 2));
        let first = engine.train_batch(&mut source)?.expect("a batch");
        let kept = first.loss;
        let second = engine.train_batch(&mut source)?.expect("a batch");
        assert_eq!((first.loss, second.loss), (kept, kept), "the weights stood still");
        let mean = first.micro_batch_losses.iter().sum::<f64>() / 3.0;
        assert_eq!(first.loss, mean);
        assert_eq!((first.step, second.step), (1, 2));
        Ok::<_, EngineError>(())
    });
    parts.expect("the run ends well");
}

#[test]
fn the_times_of_a_step_add_up_and_can_be_replayed() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank)?;
        let mut source = (0..3).map(|serial| tokens(serial, 2));
        let report = engine.train_batch(&mut source)?.expect("a batch");
        assert_eq!(report.times.ranks.len(), 2);
        assert_eq!(report.times.stages.len(), 2);
        for rank in &report.times.ranks {
            assert!(rank.busy + rank.waiting <= rank.wall && rank.optimizer < rank.busy);
        }
        for stage in &report.times.stages {
            assert_eq!((stage.forward.count, stage.backward.count), (3, 3));
        }
        let bubble = report.times.bubble_wall();
        assert!((0.0..1.0).contains(&bubble));
        let timeline = engine.replay(&report.times).expect("the times are finite");
        assert!(timeline.makespan_s() > 0.0);
        Ok::<_, EngineError>(())
    });
    parts.expect("the run ends well");
}
