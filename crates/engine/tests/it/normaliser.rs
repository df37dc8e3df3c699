//! What micro-batches count in loss and gradient: however a batch is cut, the step is the same.

use brigade_engine::schedule::{Schedule, gpipe};
use brigade_engine::topology::ProcessTopology;
use brigade_engine::{
    Cause, EngineError, GradientClipping, Layer, Layers, Loss, Metric, NamedTensor, Normaliser, Note,
    PipelineEngine, PipelineModule, StepReport, TrainConfig, World, WorldError, piece_sizes,
};
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::support::{cross_entropy, data, gpt, tokens};

type Gpt = PipelineEngine<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

/// The mean over the tokens whose number is even, with how many they are.
fn even_tokens(logits: Tensor<3>, targets: Tensor<2, Int>) -> Loss {
    let [batch, seq, vocab] = logits.dims();
    let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![1, 3, 5, 7, 9]));
    let n_even = targets.to_data().iter::<i64>().filter(|id| id % 2 == 0).count();
    let loss = config.init(&logits.device());
    let value = loss.forward(logits.reshape([batch * seq, vocab]), targets.reshape([batch * seq]));
    Loss::new(value).weight(f64::from(u32::try_from(n_even).expect("small")))
}

/// Trains with plain SGD, whose update shows the gradient, and returns the reports and all weights.
fn run(
    (p, dp, m): (u64, u64, u32),
    normaliser: Normaliser,
    loss: fn(Tensor<3>, Tensor<2, Int>) -> Loss,
    schedule: Schedule,
    program: impl Fn(&mut Gpt, usize) -> Result<Vec<StepReport>, EngineError> + Send + Sync + 'static,
) -> (Vec<StepReport>, Vec<TensorData>) {
    let world = World::local(usize::try_from(p * dp).expect("small")).expect("a few ranks");
    let parts = world.run(move |rank| {
        let module = PipelineModule::builder(&gpt(3), loss)
            .topology(ProcessTopology::pipe_data(p, dp).expect("a small grid"))
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(m)
            .build(&rank)?;
        let mut config = TrainConfig::new(0.5);
        config.normaliser = normaliser;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        engine.set_gradient_clipping(Some(GradientClipping::GlobalNorm(1e6)))?;
        let replica = engine.module().replica();
        let reports = program(&mut engine, replica)?;
        Ok::<_, EngineError>((reports, engine.module().parameters()))
    });
    let mut parts = parts.expect("the run ends well");
    let losses = |reports: &[StepReport]| reports.iter().map(|r| r.loss).collect::<Vec<_>>();
    assert!(parts.iter().all(|part| losses(&part.0) == losses(&parts[0].0)), "every rank has one loss");
    let reports = std::mem::take(&mut parts[0].0);
    let mut weights: Vec<NamedTensor> = parts.into_iter().flat_map(|part| part.1).collect();
    weights.sort_by(|a, b| a.name.cmp(&b.name));
    weights.dedup_by(|a, b| a.name == b.name);
    (reports, data(&weights))
}

fn plain(logits: Tensor<3>, targets: Tensor<2, Int>) -> Loss {
    cross_entropy(logits, targets).into()
}

/// The largest difference of two lists of weights; f32 sums in another order differ in the last bits.
fn distance(a: &[TensorData], b: &[TensorData]) -> f64 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b).flat_map(|(a, b)| a.iter::<f64>().zip(b.iter::<f64>()).collect::<Vec<_>>());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn one_split(engine: &mut Gpt, n_samples: usize) -> Result<Vec<StepReport>, EngineError> {
    let mut batches = std::iter::once(tokens(5, n_samples));
    let report = engine.train_batch_split(&mut batches)?.expect("one batch");
    assert!(engine.train_batch_split(&mut batches)?.is_none(), "the data has ended");
    Ok(vec![report])
}

/// One batch of 32 samples in 4, 16 or 1 micro-batches: one loss, one gradient, one norm.
#[test]
fn a_batch_cut_into_any_number_of_micro_batches_gives_one_step() {
    let cut = |m| {
        run((2, 1, m), Normaliser::MicroBatches, plain, Schedule::OneFOneB, |engine, _| one_split(engine, 32))
    };
    let whole = cut(1);
    for m in [4, 16] {
        let (reports, weights) = cut(m);
        assert_eq!(reports[0].micro_batch_losses.len(), usize::try_from(m).expect("small"));
        assert!((reports[0].loss - whole.0[0].loss).abs() < 1e-6);
        let norm = |r: &[StepReport]| r[0].gradient_norm.expect("clipped by it");
        assert!((norm(&reports) / norm(&whole.0) - 1.0).abs() < 1e-5);
        assert!(distance(&weights, &whole.1) < 1e-6, "m={m}");
    }
}

/// Pieces of 3, 3 and 2 samples, or 3, 3, 2 and 2, count by their samples: the step of the whole batch,
/// under both of the rules that know of samples, at several splits and with replicas.
#[test]
fn uneven_pieces_give_the_step_of_the_whole_batch() {
    for (n_samples, m, sizes) in [(8, 3, vec![3, 3, 2]), (10, 4, vec![3, 3, 2, 2])] {
        assert_eq!(piece_sizes(n_samples, usize::try_from(m).expect("small")), sizes);
        for normaliser in [Normaliser::MicroBatches, Normaliser::Samples] {
            let one = move |p, m, schedule| {
                run((p, 1, m), normaliser, plain, schedule, move |engine, _| one_split(engine, n_samples))
            };
            let whole = one(1, 1, Schedule::GPipe);
            let unsplit = one(1, m, Schedule::GPipe);
            assert!((whole.0[0].loss - unsplit.0[0].loss).abs() < 1e-6, "{m}, {normaliser:?}");
            assert!(distance(&whole.1, &unsplit.1) < 1e-6, "{m}, {normaliser:?}");
            for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
                let cut = one(3, m, schedule);
                assert_eq!(cut.0[0].loss, unsplit.0[0].loss, "bit for bit at every split");
                assert_eq!(cut.1, unsplit.1, "bit for bit at every split");
            }
        }
    }
}

/// Two replicas with 5 and 3 samples are one batch of 8.
#[test]
fn replicas_with_different_numbers_of_samples_count_by_them() {
    let rows = |from: usize, to: usize| {
        let (x, y) = tokens(5, 8);
        (x.narrow(0, from, to - from), y.narrow(0, from, to - from))
    };
    let whole = run((1, 1, 1), Normaliser::Samples, plain, Schedule::GPipe, |e, _| one_split(e, 8));
    let two = run((2, 2, 2), Normaliser::Samples, plain, Schedule::OneFOneB, move |engine, replica| {
        let batch = [rows(0, 5), rows(5, 8)][replica].clone();
        Ok(vec![engine.train_batch_split(&mut std::iter::once(batch))?.expect("one batch")])
    });
    assert_eq!(two.0[0].micro_batch_losses.len(), 4);
    assert!((whole.0[0].loss - two.0[0].loss).abs() < 1e-6);
    assert!(distance(&whole.1, &two.1) < 1e-6);
}

/// Fewer samples than micro-batches: one micro-batch for each sample, and the report says so.
#[test]
fn a_batch_of_one_sample_is_one_micro_batch_and_noted() {
    let steps = |m| {
        run((2, 1, m), Normaliser::MicroBatches, plain, Schedule::OneFOneB, |engine, _| {
            let mut reports = Vec::new();
            // A full batch before and after: nothing is left set.
            let mut batches = [4, 1, 4, 1].into_iter().map(|n| tokens(n, n));
            while let Some(report) = engine.train_batch_split(&mut batches)? {
                reports.push(report);
            }
            Ok(reports)
        })
    };
    let (four, one) = (steps(4), steps(1));
    let counts: Vec<_> = four.0.iter().map(|r| r.micro_batch_losses.len()).collect();
    assert_eq!(counts, [4, 1, 4, 1]);
    let notes: Vec<_> = four.0.iter().map(|r| r.note).collect();
    let note = Note::FewerMicroBatches { wanted: 4, made: 1 };
    assert_eq!(notes, [None, Some(note), None, Some(note)]);
    assert!(note.to_string().contains("1 of 4"));
    assert!(distance(&four.1, &one.1) < 1e-5);
}

/// Tokens are counted by the loss function: the mean is over all tokens that count, not over the means of
/// micro-batches that hold different numbers of them.
#[test]
fn returned_weights_make_the_mean_over_tokens() {
    let steps = |(p, dp, m), schedule| {
        run((p, dp, m), Normaliser::Weights, even_tokens, schedule, move |engine, replica| {
            let batches = [tokens(5, 12), tokens(6, 12)];
            let dp = engine.module().n_replicas();
            let mine = batches.map(|(x, y)| {
                let n = 12 / dp;
                (x.narrow(0, replica * n, n), y.narrow(0, replica * n, n))
            });
            let mut batches = mine.into_iter();
            let mut reports = Vec::new();
            while let Some(report) = engine.train_batch_split(&mut batches)? {
                reports.push(report);
            }
            Ok(reports)
        })
    };
    let whole = steps((1, 1, 1), Schedule::GPipe);
    let unsplit = steps((1, 1, 4), Schedule::GPipe);
    for (a, b) in whole.0.iter().zip(&unsplit.0) {
        assert!((a.loss - b.loss).abs() < 1e-6);
        let mean = b.micro_batch_losses.iter().sum::<f64>() / 4.0;
        assert!((b.loss - mean).abs() > 1e-4, "the plain mean is another number: {mean}");
    }
    assert!(distance(&whole.1, &unsplit.1) < 1e-6);
    for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
        let cut = steps((2, 1, 4), schedule);
        assert_eq!(cut.1, unsplit.1, "bit for bit at every split");
    }
    let replicas = steps((2, 2, 2), Schedule::OneFOneB);
    assert!(distance(&whole.1, &replicas.1) < 1e-6);
    assert!((whole.0[1].loss - replicas.0[1].loss).abs() < 1e-6);
}

#[derive(Module, Debug)]
struct Shift {
    number: Param<Tensor<1>>,
}

impl Layer for Shift {
    type Input = Tensor<1>;
    type Output = Tensor<1>;
    fn forward(&self, x: Tensor<1>) -> Tensor<1> {
        x * self.number.val()
    }
}

/// A loss of `target.0`, no number where the weight `target.1` is 0, on two stages.
fn weighted(pairs: Vec<(f64, f64)>) -> Result<Vec<(f64, Vec<f64>)>, WorldError<EngineError>> {
    World::local(2).expect("two ranks").run(move |rank| {
        let layers =
            Layers::new().repeat(2, |_, d| Shift { number: Param::from_tensor(Tensor::ones([1], d)) });
        let loss =
            |y: Tensor<1>, (factor, weight): (f64, f64)| Loss::new(y * (factor / weight)).weight(weight);
        let module = PipelineModule::builder(&layers, loss)
            .schedule(gpipe)
            .micro_batches(u32::try_from(pairs.len()).expect("small"))
            .build(&rank)?;
        let mut config = TrainConfig::new(1.0);
        config.normaliser = Normaliser::Weights;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let one = Tensor::<1>::ones([1], &Device::flex());
        let mut data = pairs.iter().map(|pair| (one.clone(), *pair));
        let report = engine.train_batch(&mut data)?.expect("a batch");
        let moved = data_of(&engine.module().parameters());
        Ok((report.loss, moved))
    })
}

fn data_of(named: &[NamedTensor]) -> Vec<f64> {
    named.iter().flat_map(|n| n.data.iter::<f64>().collect::<Vec<_>>()).collect()
}

/// A micro-batch that counts nothing, whose mean is no number, leaves loss and weights whole.
#[test]
fn a_micro_batch_of_weight_zero_does_not_count() {
    let parts = weighted(vec![(2.0, 4.0), (0.0, 0.0), (4.0, 4.0)]).expect("some count");
    // Loss (2 + 4) / 8, gradient the same for each number.
    for (loss, moved) in parts {
        assert_eq!((loss, moved), (0.75, vec![0.25]));
    }
}

#[test]
fn a_step_in_which_nothing_counts_and_odd_weights_are_errors() {
    let cause = |pairs: Vec<(f64, f64)>| match weighted(pairs).expect_err("nothing to train on") {
        WorldError::Rank { source: EngineError::Step(error), .. } => error.cause().clone(),
        other => panic!("{other}"),
    };
    assert!(matches!(cause(vec![(0.0, 0.0); 2]), Cause::NothingCounts));
    assert!(matches!(cause(vec![(1.0, 1.0), (1.0, -1.0)]), Cause::LossWeight { weight } if weight == -1.0));
    assert!(matches!(cause(vec![(1.0, f64::NAN)]), Cause::LossWeight { .. }));
    let parts = World::local(1).expect("one rank").run(|rank| {
        let module = PipelineModule::builder(&gpt(1), cross_entropy).build(&rank)?;
        let mut config = TrainConfig::new(1.0);
        config.normaliser = Normaliser::Weights;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let error = engine.train_batch(&mut std::iter::once(tokens(0, 1))).expect_err("no weight");
        Ok::<_, EngineError>(error)
    });
    for error in parts.expect("errors are values here") {
        assert!(matches!(error.cause(), Cause::NoWeight), "{error}");
    }
}

/// Two calls of 4 micro-batches and one step are one call of 8: a power of two, so bit for bit.
#[test]
fn accumulated_batches_are_one_big_batch() {
    let source = || (0..16).map(|serial| tokens(serial, 2));
    for (schedule, dp) in [(Schedule::OneFOneB, 1), (Schedule::ZbH1, 1), (Schedule::OneFOneB, 2)] {
        let big = run((2, dp, 8), Normaliser::MicroBatches, plain, schedule, move |engine, _| {
            let mut data = source();
            Ok(vec![
                engine.train_batch(&mut data)?.expect("a batch"),
                engine.train_batch(&mut data)?.expect("a batch"),
            ])
        });
        let small = run((2, dp, 4), Normaliser::MicroBatches, plain, schedule, move |engine, _| {
            let mut data = source();
            let mut reports = Vec::new();
            for step in 0..2 {
                let part = engine.accumulate_batch(&mut data)?.expect("a batch");
                assert_eq!((part.step, part.is_update), (step + 1, false));
                assert_eq!(engine.n_accumulated(), part.micro_batch_losses.len());
                // An evaluation in between changes nothing.
                engine.eval_batch(&mut (0..3).map(|serial| tokens(serial, 1)), 3)?;
                let whole = engine.train_batch(&mut data)?.expect("a batch");
                assert_eq!((whole.step, whole.is_update, engine.n_accumulated()), (step + 1, true, 0));
                assert!(engine.n_steps() == step + 1, "one step for both");
                reports.push(whole);
            }
            Ok(reports)
        });
        for (a, b) in big.0.iter().zip(&small.0) {
            assert_eq!(a.gradient_norm, b.gradient_norm);
            if dp == 1 {
                assert_eq!((a.loss, &a.micro_batch_losses), (b.loss, &b.micro_batch_losses));
            }
        }
        assert_eq!(big.1, small.1, "{schedule}, dp={dp}");
    }
}

/// Accumulated under weights, and of batches with other numbers of samples: one mean over everything.
#[test]
fn accumulation_follows_the_normaliser() {
    let rows = |from: usize, n: usize| {
        let (x, y) = tokens(5, 12);
        (x.narrow(0, from, n), y.narrow(0, from, n))
    };
    type LossFn = fn(Tensor<3>, Tensor<2, Int>) -> Loss;
    let rules: [(Normaliser, LossFn); 2] = [(Normaliser::Weights, even_tokens), (Normaliser::Samples, plain)];
    for (normaliser, loss) in rules {
        let whole = run((1, 1, 1), normaliser, loss, Schedule::GPipe, |engine, _| one_split(engine, 12));
        let parts = run((2, 1, 3), normaliser, loss, Schedule::OneFOneB, move |engine, _| {
            engine.accumulate_batch_split(&mut std::iter::once(rows(0, 7)))?;
            engine.accumulate_batch_split(&mut std::iter::once(rows(7, 1)))?;
            Ok(vec![engine.train_batch_split(&mut std::iter::once(rows(8, 4)))?.expect("a batch")])
        });
        assert!((whole.0[0].loss - parts.0[0].loss).abs() < 1e-6);
        assert!(distance(&whole.1, &parts.1) < 1e-6, "{normaliser:?}");
        assert_eq!(parts.0[0].micro_batch_losses.len(), 3 + 1 + 3);
    }
}

#[test]
fn a_mean_metric_counts_like_the_loss() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let loss = |y: Tensor<3>, t: Tensor<2, Int>| {
            let loss = even_tokens(y, t);
            let value = loss.value.clone();
            loss.metrics(brigade_engine::Metrics::new().mean("again", value))
        };
        let module = PipelineModule::builder(&gpt(2), loss).micro_batches(3).build(&rank)?;
        let mut config = TrainConfig::new(0.1);
        config.normaliser = Normaliser::Weights;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let report = engine.train_batch_split(&mut std::iter::once(tokens(3, 7)))?.expect("a batch");
        assert_eq!(report.metrics["again"], Metric::Number(report.loss));
        Ok::<_, EngineError>(())
    });
    parts.expect("the run ends well");
}
