//! Evaluation: outputs in every form, metrics, the count of training, and nothing left behind.

use std::collections::BTreeMap;

use brigade_engine::schedule::{Schedule, gpipe};
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    Cause, DataOn, EngineError, EvalOptions, Layer, Layers, Merge, Metric, Metrics, OutputsOn,
    PipelineEngine, PipelineModule, RankHandle, StepError, TrainConfig, World,
};
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::support::{Unsplit, alone, cross_entropy, data, gpt, tokens};

type Gpt = PipelineEngine<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

fn engine(rank: &RankHandle, m: u32) -> Result<Gpt, EngineError> {
    let module = PipelineModule::builder(&gpt(2), cross_entropy).micro_batches(m).build(rank)?;
    PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.02))
}

/// E T E T T E with other numbers and sizes of micro-batches, split or not, with and without outputs, is
/// T T T: weights, losses and the steps of the random numbers.
#[test]
fn evaluations_of_every_kind_leave_no_trace() {
    let run = |with: bool| {
        let parts = World::local(2).expect("two ranks").run(move |rank| {
            let mut engine = engine(&rank, 2)?;
            let mut training = (0..6).map(|serial| tokens(serial, 2));
            let mut losses = Vec::new();
            for (at, kind) in "ETETTE".chars().enumerate() {
                let options = EvalOptions::new().outputs_as_list();
                if kind == 'T' {
                    losses.push(engine.train_batch(&mut training)?.expect("a batch").loss);
                } else if with {
                    let mut held_back = (50..60).map(|serial| tokens(serial, 8));
                    let m = u32::try_from(at + 1).expect("small");
                    engine.evaluate(&mut held_back, options.micro_batches(m))?.expect("a batch");
                    engine.evaluate_split(&mut held_back, options.micro_batches(3))?.expect("a batch");
                    engine.predict(&mut held_back.by_ref().map(|(x, _)| x), options)?.expect("a batch");
                }
            }
            Ok::<_, EngineError>((losses, engine.n_steps(), data(&engine.module().parameters())))
        });
        parts.expect("the run ends well")
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn the_count_of_training_is_the_default() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank, 3)?;
        let mut source = (0..8).map(|serial| tokens(serial, 2));
        let default = engine.evaluate(&mut source, EvalOptions::new())?.expect("a batch").report;
        let other = engine.evaluate(&mut source, EvalOptions::new().micro_batches(2))?.expect("a batch");
        let outputs = engine.predict(&mut source.map(|(x, _)| x), EvalOptions::new().outputs_as_list())?;
        let counts = (default.micro_batch_losses.len(), other.report.micro_batch_losses.len());
        Ok::<_, EngineError>((counts, other.outputs.len(), outputs.map_or(0, |outputs| outputs.len())))
    });
    for part in parts.expect("the run ends well") {
        assert_eq!(part, ((3, 2), 0, 3));
    }
}

/// Four pieces, or one of their rows; on every rank, or where they were computed.
#[test]
fn outputs_come_as_a_list_or_merged_and_where_they_are_wanted() {
    let model = Unsplit::new(2, &Device::flex().autodiff()).valid();
    let expected: Vec<TensorData> =
        (0..4).map(|serial| model.forward(tokens(serial, 1 + serial % 2).0).into_data()).collect();
    let whole: Vec<f64> = expected.iter().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()).collect();
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let mut engine = engine(&rank, 4)?;
        let mut all = Vec::new();
        for on in [OutputsOn::EveryRank, OutputsOn::LastStage] {
            let options = EvalOptions::new().outputs_on(on);
            for options in [options.outputs_as_list(), options.outputs_merged(Merge::Concatenate)] {
                let mut source = (0..4).map(|serial| tokens(serial, 1 + serial % 2));
                let evaluation = engine.evaluate(&mut source, options)?.expect("a batch");
                let outputs: Vec<_> = evaluation.outputs.into_iter().map(|y| y.into_data()).collect();
                all.push((evaluation.report.micro_batch_losses.len(), outputs));
            }
        }
        Ok::<_, EngineError>(all)
    });
    let parts = parts.expect("the run ends well");
    for (rank, part) in parts.iter().enumerate() {
        assert!(part.iter().all(|(losses, _)| *losses == 4), "losses are on every rank");
        assert_eq!(part[0].1, expected);
        assert_eq!(part[1].1.len(), 1);
        assert_eq!(part[1].1[0].shape().as_slice()[0], 1 + 2 + 1 + 2);
        assert_eq!(part[1].1[0].iter::<f64>().collect::<Vec<_>>(), whole);
        if rank == 1 {
            assert_eq!((&part[2], &part[3]), (&part[0], &part[1]));
        } else {
            assert!(part[2].1.is_empty() && part[3].1.is_empty(), "not asked for on this rank");
        }
    }
}

/// Replicas evaluate their own data; every rank reads all of it in their order.
#[test]
fn replicas_share_losses_and_outputs() {
    let parts = World::local(4).expect("four ranks").run(|rank| {
        let module = PipelineModule::builder(&gpt(2), cross_entropy)
            .topology(ProcessTopology::pipe_data(2, 2).expect("a small grid"))
            .schedule(gpipe)
            .micro_batches(2)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        let first = engine.module().replica() * 2;
        let mut source = (first..first + 2).map(|serial| tokens(serial, 2));
        let options = EvalOptions::new().outputs_merged(Merge::Concatenate);
        let evaluation = engine.evaluate(&mut source, options)?.expect("a batch");
        let outputs: Vec<_> = evaluation.outputs.into_iter().map(|y| y.into_data()).collect();
        Ok::<_, EngineError>((evaluation.report.loss, evaluation.report.micro_batch_losses, outputs))
    });
    let single = World::local(1).expect("one rank").run(|rank| {
        let mut engine = engine(&rank, 4)?;
        let mut source = (0..4).map(|serial| tokens(serial, 2));
        let options = EvalOptions::new().outputs_merged(Merge::Concatenate);
        let evaluation = engine.evaluate(&mut source, options)?.expect("a batch");
        let outputs: Vec<_> = evaluation.outputs.into_iter().map(|y| y.into_data()).collect();
        Ok::<_, EngineError>((evaluation.report.loss, evaluation.report.micro_batch_losses, outputs))
    });
    let single = single.expect("the run ends well").remove(0);
    for part in parts.expect("the run ends well") {
        assert_eq!(part, single);
    }
}

type Named = BTreeMap<String, Tensor<2>>;

/// Gives logits, and beside them what it keeps for later.
#[derive(Module, Debug)]
struct WithCache {
    weight: Param<Tensor<2>>,
}

impl Layer for WithCache {
    type Input = Tensor<2>;
    type Output = Named;
    fn forward(&self, x: Tensor<2>) -> Named {
        let logits = x.clone().matmul(self.weight.val());
        BTreeMap::from([("logits".to_owned(), logits), ("cache".to_owned(), x * 10.0)])
    }
}

/// A last stage that returns a map, of which the loss uses one entry: it trains, and both come back.
#[test]
fn a_last_stage_may_return_more_than_the_loss_uses() {
    for p in 1..=2 {
        let parts = World::local(p).expect("a few ranks").run(|rank| {
            let layers = Layers::new()
                .layer(|d| Halve { factor: Param::from_tensor(Tensor::full([1], 0.5, d)) })
                .layer(|d| WithCache { weight: Param::from_tensor(Tensor::eye(2, d)) });
            let loss = |y: Named, t: Tensor<2>| (y["logits"].clone() - t).powi_scalar(2).mean();
            let module = PipelineModule::builder(&layers, loss).micro_batches(2).build(&rank)?;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.01))?;
            let x = Tensor::<2>::from_floats([[2.0, 4.0]], &Device::flex());
            let mut source = std::iter::repeat((x.clone(), x));
            let options = EvalOptions::new().outputs_as_list();
            let before = engine.evaluate(&mut source, options)?.expect("endless");
            let trained = engine.train_batch(&mut source)?.expect("endless");
            let after = engine.evaluate(&mut source, options)?.expect("endless");
            assert_eq!(before.report.loss, trained.loss);
            assert!(after.report.loss < before.report.loss);
            let values = |y: &Named| y["cache"].to_data().iter::<f64>().collect::<Vec<_>>();
            let caches: Vec<Vec<f64>> = before.outputs.iter().map(values).collect();
            assert_eq!(caches, [[10.0, 20.0], [10.0, 20.0]]);
            Ok::<_, EngineError>(())
        });
        parts.unwrap_or_else(|error| panic!("p={p}: {error}"));
    }
}

#[derive(Module, Debug)]
struct Halve {
    factor: Param<Tensor<1>>,
}

impl Layer for Halve {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x * self.factor.val().unsqueeze()
    }
}

/// One number for each micro-batch, with each way to put it together.
fn with_metrics(y: Tensor<1>, t: f64) -> (Tensor<1>, Metrics) {
    let metrics = Metrics::new()
        .mean("mean", t)
        .sum("sum", y.clone())
        .list("list", Tensor::<1, Int>::from_ints([3], &Device::flex()));
    // A metric that only some micro-batches have.
    let metrics = if t > 2.0 { metrics.mean("late", t) } else { metrics };
    (y, metrics)
}

#[derive(Module, Debug)]
struct Add {
    number: Param<Tensor<1>>,
}

impl Layer for Add {
    type Input = Tensor<1>;
    type Output = Tensor<1>;
    fn forward(&self, x: Tensor<1>) -> Tensor<1> {
        x + self.number.val()
    }
}

fn add(d: &Device) -> Add {
    Add { number: Param::from_tensor(Tensor::zeros([1], d)) }
}

fn numbers() -> impl Iterator<Item = (Tensor<1>, f64)> {
    [1.0, 2.0, 3.0, 4.0].into_iter().cycle().map(|t| (Tensor::<1>::full([1], t, &Device::flex()), t))
}

/// Losses 1, 2, 3, 4, and what the loss function returned beside them: equal on every rank, in training and
/// in evaluation, also with targets that came with the first stage's data.
#[test]
fn metrics_are_put_together_as_declared_on_every_rank() {
    for (p, on) in [(1, DataOn::FirstAndLast), (2, DataOn::FirstAndLast), (3, DataOn::First)] {
        let parts = World::local(p).expect("a few ranks").run(move |rank| {
            let layers = Layers::new().repeat(3, |_, d| add(d));
            let module = PipelineModule::builder(&layers, with_metrics).micro_batches(4).build(&rank)?;
            let mut config = TrainConfig::new(0.0);
            config.data_on = on;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
            let mut source = numbers();
            let evaluated = engine.evaluate(&mut source, EvalOptions::new())?.expect("endless").report;
            let trained = engine.train_batch(&mut source)?.expect("endless");
            let three = engine.eval_batch(&mut source, 3)?.expect("endless");
            assert_eq!(three.loss, 2.0);
            assert_eq!(evaluated.loss, trained.loss);
            assert_eq!(evaluated.metrics, trained.metrics);
            Ok::<_, EngineError>((trained.loss, trained.metrics))
        });
        let expected = BTreeMap::from([
            ("late".to_owned(), Metric::Number(3.5)),
            ("list".to_owned(), Metric::List(vec![3.0; 4])),
            ("mean".to_owned(), Metric::Number(2.5)),
            ("sum".to_owned(), Metric::Number(10.0)),
        ]);
        for part in parts.expect("the run ends well") {
            assert_eq!(part, (2.5, expected.clone()));
        }
    }
}

fn metric_error(loss: fn(Tensor<1>, f64) -> (Tensor<1>, Metrics)) -> StepError {
    let parts = World::local(2).expect("two ranks").run(move |rank| {
        let layers = Layers::new().repeat(2, |_, d| add(d));
        let module = PipelineModule::builder(&layers, loss).micro_batches(4).build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.0))?;
        let error = engine.evaluate(&mut numbers(), EvalOptions::new()).expect_err("an odd metric");
        Ok::<_, EngineError>(error)
    });
    let errors = parts.expect("errors are values here");
    assert_eq!(errors[0].to_string(), errors[1].to_string());
    errors[0].clone()
}

#[test]
fn metrics_that_cannot_be_put_together_are_errors() {
    let shape = metric_error(|y, _| (y, Metrics::new().sum("s", Tensor::<1>::zeros([2], &Device::flex()))));
    assert!(matches!(shape.cause(), Cause::MetricShape { elements: 2, .. }), "{shape}");
    let twice = metric_error(|y, _| (y, Metrics::new().sum("s", 1.0).mean("s", 1.0)));
    assert!(matches!(twice.cause(), Cause::MetricTwice { .. }), "{twice}");
    let differs = metric_error(|y, t| {
        (y, if t > 1.0 { Metrics::new().sum("s", 1.0) } else { Metrics::new().mean("s", 1.0) })
    });
    assert!(matches!(differs.cause(), Cause::MetricDiffers { .. }), "{differs}");
}

/// A thousand evaluations hold no more memory than fifty: no graph is left behind.
#[test]
fn a_thousand_evaluations_hold_no_memory() {
    if !alone("evaluation::a_thousand_evaluations_hold_no_memory") {
        return;
    }
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let layers =
            Layers::new().repeat(4, |_, d| Wide { weight: Param::from_tensor(Tensor::zeros([64, 64], d)) });
        let loss =
            |y: Tensor<2>, t: Tensor<2>| ((y - t).powi_scalar(2).mean(), Metrics::new().mean("m", 1.0));
        let module = PipelineModule::builder(&layers, loss).micro_batches(2).build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        let x = Tensor::<2>::ones([64, 64], &Device::flex());
        let mut source = std::iter::repeat((x.clone(), x));
        engine.train_batch(&mut source)?;
        let mut resident = Vec::new();
        for round in 0..1000 {
            engine.evaluate(&mut source, EvalOptions::new().outputs_as_list())?.expect("endless");
            if round == 50 || round == 999 {
                resident.push(resident_kib());
            }
        }
        Ok::<_, EngineError>(resident)
    });
    let resident = parts.expect("the run ends well").remove(0);
    // One evaluation holds 2 micro-batches of 5 tensors of 16 KiB; 949 of them would be 150 MB.
    if let [Some(early), Some(late)] = resident[..] {
        assert!(late < early + 8_000, "{early} KiB after 50, {late} KiB after 1000");
    }
}

/// Memory of this process, where the system tells.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?
        .trim()
        .parse()
        .ok()
}

#[derive(Module, Debug)]
struct Wide {
    weight: Param<Tensor<2>>,
}

impl Layer for Wide {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val())
    }
}

/// A hundred samples in batches of 8, micro-batches of 4: the last batch has one micro-batch, and all ranks
/// agree on that.
#[test]
fn the_last_batch_of_an_evaluation_may_be_smaller() {
    let parts = World::local(3).expect("three ranks").run(|rank| {
        let module = PipelineModule::builder(&gpt(2), cross_entropy)
            .schedule(|shape| Schedule::OneFOneB.plan(shape))
            .micro_batches(2)
            .build(&rank)?;
        let mut engine = PipelineEngine::new(module, AdamWConfig::new().init(), TrainConfig::new(0.1))?;
        let mut source = (0..25).map(|serial| tokens(serial, 4));
        let mut counts = Vec::new();
        for batch in 0..13 {
            let m = if batch == 12 { 1 } else { 2 };
            counts.push(engine.eval_batch(&mut source, m)?.expect("enough data").micro_batch_losses.len());
        }
        assert!(engine.eval_batch(&mut source, 2)?.is_none());
        Ok::<_, EngineError>(counts)
    });
    for counts in parts.expect("the run ends well") {
        assert_eq!(counts.iter().sum::<usize>(), 25);
    }
}
