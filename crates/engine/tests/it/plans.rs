//! Plans that come as text run like any other, and outputs leave as soon as they are there.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use brigade_engine::schedule::{Plan, Schedule, Shape, gpipe, one_f_one_b, zb_h1};
use brigade_engine::{
    BuildError, EngineError, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig, World,
};
use burn::module::Module;
use burn::nn::Linear;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;

use crate::runs::{batch, linear, same_at_every_split, square, train, uniform};

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }
}

fn dense(n: usize) -> Layers<Tensor<2>, Tensor<2>> {
    Layers::new().repeat(n, |i, d| Dense { linear: linear(i, d) })
}

#[test]
fn a_plan_from_a_file_trains_like_the_schedule_that_wrote_it() {
    let data = batch(&[2, 3, 2, 1]);
    let reference = train(1, gpipe, uniform(), &dense(6), square, &data);
    for schedule in ["1f1b", "interleaved:3", "zb-v", "dual-pipe-v", "v-half"] {
        let schedule: Schedule = schedule.parse().expect("a schedule");
        let plan = schedule.plan(Shape { n_ranks: 2, n_micro_batches: 4 }).expect("a plan");
        let read = Plan::from_csv(&plan.to_csv()).expect("what was written");
        let seen = train(2, move |_| Ok(read.clone()), uniform(), &dense(6), square, &data);
        assert_eq!(seen, reference, "{schedule}");
    }
    // One that no schedule makes: the last stage's backward passes come in the other order.
    let text = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n";
    let own = Plan::from_csv(text).expect("a plan");
    let reference = train(1, gpipe, uniform(), &dense(6), square, &data[..2]);
    let seen = train(2, move |_| Ok(own.clone()), uniform(), &dense(6), square, &data[..2]);
    assert_eq!(seen, reference);
}

#[test]
fn a_plan_for_another_number_of_micro_batches_or_ranks_is_refused() {
    for text in ["0F0,0B0\n1F0,1B0\n", "0F0,0F1,0B0,0B1\n", "0F0\n1F0\n"] {
        let plan = Plan::from_csv(text).expect("a plan");
        let errors = World::local(2).expect("two ranks").run(move |rank| {
            let plan = plan.clone();
            let built = PipelineModule::builder(&dense(4), square)
                .schedule(move |_| Ok(plan.clone()))
                .micro_batches(2)
                .build(&rank);
            Ok::<_, EngineError>(built.err().map(|error| error.to_string()))
        });
        for error in errors.expect("the ranks end") {
            assert!(error.is_some(), "{text} was taken");
        }
    }
}

/// Told when the second stage has begun its first forward.
type Begun = Arc<(Mutex<bool>, Condvar)>;

/// A rank whose second forward waits until the next rank has got the first one's output: were outputs
/// sent later than that, it would wait in vain.
#[test]
fn an_output_is_sent_before_the_next_forward_runs() {
    for schedule in [gpipe, one_f_one_b, zb_h1] {
        let begun: Begun = Arc::default();
        let (first, second) = (Arc::clone(&begun), Arc::clone(&begun));
        let n_forwards = Arc::new(Mutex::new(0));
        let layers = dense(1)
            .map(move |x: Tensor<2>| {
                let mut n_forwards = n_forwards.lock().expect("no panic");
                *n_forwards += 1;
                if *n_forwards == 2 {
                    let begun = first.0.lock().expect("no panic");
                    let waited = first.1.wait_timeout_while(begun, Duration::from_secs(20), |begun| !*begun);
                    assert!(!waited.expect("no panic").1.timed_out(), "the first output has not been sent");
                }
                x
            })
            .map(move |x: Tensor<2>| {
                *second.0.lock().expect("no panic") = true;
                second.1.notify_all();
                x
            })
            .then(dense(1));
        let seen =
            train(2, schedule, "cuts:0,2,4".parse().expect("cuts"), &layers, square, &batch(&[1, 1, 1, 1]));
        assert_eq!(seen.losses.len(), 4);
        assert!(*begun.0.lock().expect("no panic"));
    }
}

/// Sends its output to both users of it always; the second one uses it for every other micro-batch.
#[derive(Module, Debug)]
struct Chooser {
    linear: Linear,
}

impl Layer for Chooser {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = Tensor<2>;
    fn forward(&self, (x, y): Self::Input) -> Tensor<2> {
        let x = self.linear.forward(x);
        // Micro-batches with an even number of rows use it.
        if x.dims()[0].is_multiple_of(2) { x + y } else { x }
    }
}

#[derive(Module, Debug)]
struct Both {
    linear: Linear,
    other: Linear,
}

impl Layer for Both {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2>);
    fn forward(&self, x: Tensor<2>) -> Self::Output {
        (self.linear.forward(x.clone()), self.other.forward(x))
    }
}

#[test]
fn a_value_may_be_used_for_some_micro_batches_only() {
    let layers = dense(1)
        .layer(|d| Both { linear: linear(1, d), other: linear(2, d) })
        .layer(|d| Chooser { linear: linear(3, d) })
        .then(Layers::new().layer(|d| Dense { linear: linear(4, d) }));
    let mixed = same_at_every_split(&layers, square, &batch(&[2, 1, 4, 3]));
    assert_eq!(mixed.gradients.len(), 10);
    let never = same_at_every_split(&layers, square, &batch(&[1, 3, 1]));
    assert!(never.gradients.iter().all(|(name, _)| !name.contains("other")), "{never:?}");
    assert_eq!(never.gradients.len(), 8);
}

/// A tensor without elements that depends on weights: its gradient is as empty.
#[test]
fn an_empty_tensor_with_a_gradient_crosses_and_comes_back() {
    let nothing = 0..0;
    let layers = dense(1)
        .map(move |x: Tensor<2>| (x.clone(), x.slice([nothing.clone()])))
        .map(|(x, none): (Tensor<2>, Tensor<2>)| (x, none * 2.0))
        .map(|(x, none): (Tensor<2>, Tensor<2>)| Tensor::cat(vec![x, none], 0))
        .then(Layers::new().layer(|d| Dense { linear: linear(1, d) }));
    let seen = same_at_every_split(&layers, square, &batch(&[2, 3]));
    assert_eq!(seen.gradients.len(), 4);
}

/// A frozen layer with an adapter beside it.
#[derive(Module, Debug)]
struct Adapted {
    base: Linear,
    adapter: Linear,
}

impl Layer for Adapted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        (self.base.forward(x.clone()) + self.adapter.forward(x)).tanh()
    }
}

fn adapted(n: usize) -> Layers<Tensor<2>, Tensor<2>> {
    Layers::new()
        .repeat(n, |i, d| Adapted { base: linear(2 * i, d).no_grad(), adapter: linear(2 * i + 1, d) })
}

#[test]
fn only_adapters_may_learn() {
    let seen = same_at_every_split(&adapted(4), square, &batch(&[2, 3, 1]));
    assert_eq!(seen.gradients.len(), 8);
    assert!(seen.gradients.iter().all(|(name, _)| name.contains("adapter")), "{seen:?}");
}

/// The first stages learn nothing and their input is data: nothing upstream asks for a gradient.
#[test]
fn a_stage_whose_input_needs_no_gradient_sends_none() {
    let frozen = Layers::new().repeat(2, |i, d| Dense { linear: linear(i, d).no_grad() });
    let layers = frozen.then(Layers::new().repeat(2, |i, d| Dense { linear: linear(2 + i, d) }));
    let seen = same_at_every_split(&layers, square, &batch(&[2, 3]));
    assert_eq!(seen.gradients.len(), 4);
}

/// Weight decay moves what learns; a frozen weight has no optimizer state that could move it.
#[test]
fn decay_leaves_frozen_weights_alone() {
    for p in 1..=4 {
        let parts = World::local(p).expect("ranks").run(|rank| {
            let module = PipelineModule::builder(&adapted(4), square)
                .partition(uniform())
                .micro_batches(2)
                .build(&rank)?;
            let before = module.parameters();
            let optimizer = AdamWConfig::new().with_weight_decay(0.5).init();
            let mut engine = PipelineEngine::new(module, optimizer, TrainConfig::new(0.1))?;
            for _ in 0..3 {
                engine.train_batch(&mut batch(&[2, 2]).into_iter())?.expect("a batch");
            }
            let after = engine.module().parameters();
            let pairs = before.into_iter().zip(after);
            let moved = pairs.map(|(before, after)| (after.name, before.data != after.data));
            Ok::<_, EngineError>(moved.collect::<Vec<(String, bool)>>())
        });
        let moved = parts.expect("the ranks train").concat();
        assert_eq!(moved.len(), 16);
        for (name, has_moved) in moved {
            assert_eq!(has_moved, name.contains("adapter"), "{name}, p={p}");
        }
    }
}

/// Cuts by parameters have nothing to weigh when all is frozen: still a split, and no step to take.
#[test]
fn a_model_that_is_frozen_whole_is_split_and_evaluated() {
    let losses: Vec<Vec<f64>> = (1..=3)
        .map(|p| {
            let parts = World::local(p).expect("ranks").run(|rank| {
                let layers = Layers::new().repeat(6, |i, d| Dense { linear: linear(i, d).no_grad() });
                let module = PipelineModule::builder(&layers, square)
                    .partition("parameters".parse()?)
                    .micro_batches(2)
                    .build(&rank)?;
                let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
                let data = batch(&[2, 2]);
                let trained = engine.train_batch(&mut data.iter().cloned())?.expect("a batch").loss;
                let evaluated = engine.eval_batch(&mut data.into_iter(), 2)?.expect("a batch").loss;
                // The layers run with and without autodiff: the last bits may differ.
                assert!((trained - evaluated).abs() < 1e-6, "{trained} and {evaluated}");
                Ok::<_, EngineError>(trained)
            });
            parts.unwrap_or_else(|error| panic!("p={p}: {error}"))
        })
        .collect();
    assert!(losses.iter().flatten().all(|loss| loss.to_bits() == losses[0][0].to_bits()), "{losses:?}");
}

/// A plan that keeps two copies of a stage says so in its placement; one for a loop does not fit a V.
#[test]
fn a_stage_on_another_rank_than_the_plan_has_it_is_refused() {
    // Stage 2 runs on both ranks: no placement has that.
    let text = "0F0,2F0,2B0,0B0\n1F0,2F1,2B1,1B0\n";
    let error = Plan::from_csv(text).expect_err("no placement");
    assert!(error.to_string().contains("stage"), "{error}");
    let refused: Vec<BuildError> = World::local(3)
        .expect("three ranks")
        .run(|rank| {
            let plan = one_f_one_b(Shape { n_ranks: 2, n_micro_batches: 2 });
            let built = PipelineModule::builder(&dense(6), square)
                .schedule(move |_| plan.clone())
                .micro_batches(2)
                .build(&rank);
            Ok::<_, EngineError>(built.expect_err("a plan for two ranks"))
        })
        .expect("the ranks end");
    assert!(refused.iter().all(|error| matches!(error, BuildError::PlanRanks { .. })), "{refused:?}");
}
