//! Where micro-batches come from: two ends or one, with ids, through a function, split.

use std::cell::Cell;

use brigade_engine::schedule::{Plan, Schedule, ScheduleError, Shape};
use brigade_engine::topology::{ProcessTopology, Rank};
use brigade_engine::{
    Cause, DataItem, DataOn, EngineError, EvalOptions, PipelineEngine, PipelineModule, RankHandle, Sampler,
    SamplerConfig, SplitError, StepError, TrainConfig, World,
};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::support::{cross_entropy, data, gpt, tokens};

type Gpt = PipelineEngine<Tensor<2, Int>, Tensor<3>, Tensor<2, Int>>;

fn engine(
    rank: &RankHandle,
    (p, dp): (u64, u64),
    schedule: impl Fn(Shape) -> Result<Plan, ScheduleError> + Send + Sync + 'static,
    m: u32,
    on: DataOn,
) -> Result<Gpt, EngineError> {
    let module = PipelineModule::builder(&gpt(6), cross_entropy)
        .topology(ProcessTopology::pipe_data(p, dp).expect("a small grid"))
        .schedule(schedule)
        .micro_batches(m)
        .build(rank)?;
    let mut config = TrainConfig::new(0.02);
    config.data_on = on;
    PipelineEngine::new(module, AdamWConfig::new().init(), config)
}

/// A source that may be read on the rank of the first stage alone.
fn only_on_first(rank: Rank, first: Rank) -> impl Iterator<Item = (Tensor<2, Int>, Tensor<2, Int>)> {
    (0..12).map(move |serial| {
        assert_eq!(rank, first, "only the first stage has data");
        tokens(serial, 2)
    })
}

/// Data on the first stage alone gives the bits of data on both ends: in training and in evaluation, under
/// every kind of schedule and placement, also where the first and the last stage live on one rank.
#[test]
fn targets_travel_to_the_last_stage() {
    let schedules = [
        Schedule::GPipe,
        Schedule::OneFOneB,
        Schedule::Interleaved { n_virtual: 2 },
        Schedule::ZbH1,
        Schedule::ZbV,
        Schedule::DualPipeV,
        Schedule::DualPipe,
    ];
    for schedule in schedules {
        let run = |on: DataOn| {
            let parts = World::local(2).expect("two ranks").run(move |rank| {
                let mut engine = engine(&rank, (2, 1), move |shape| schedule.plan(shape), 4, on)?;
                let holds_first = engine.module().stages().any(|stage| stage.0 == 0);
                let first = if on == DataOn::First && !holds_first { Rank(u64::MAX) } else { rank.rank() };
                let mut training = only_on_first(rank.rank(), first);
                let mut losses = Vec::new();
                for _ in 0..2 {
                    losses.extend(engine.train_batch(&mut training)?.expect("a batch").micro_batch_losses);
                }
                let mut held_back = only_on_first(rank.rank(), first);
                for m in [3, 1] {
                    losses.extend(engine.eval_batch(&mut held_back, m)?.expect("a batch").micro_batch_losses);
                }
                let mut whole = only_on_first(rank.rank(), first).take(1);
                losses.push(engine.train_batch_split(&mut whole)?.expect("a batch").loss);
                Ok::<_, EngineError>((losses, data(&engine.module().parameters())))
            });
            parts.unwrap_or_else(|error| panic!("{schedule}, {on:?}: {error}"))
        };
        let (both, one) = (run(DataOn::FirstAndLast), run(DataOn::First));
        assert_eq!(one[0].0.len(), 4 + 4 + 3 + 1 + 1);
        assert_eq!(both, one, "{schedule}");
    }
}

/// A rank that has no data does not read its source, at any number of stages and replicas.
#[test]
fn only_the_first_stage_reads_when_it_alone_has_data() {
    for (p, dp) in [(1, 1), (3, 1), (2, 2)] {
        let n = usize::try_from(p * dp).expect("small");
        let parts = World::local(n).expect("a few ranks").run(move |rank| {
            let mut engine =
                engine(&rank, (p, dp), |shape| Schedule::OneFOneB.plan(shape), 2, DataOn::First)?;
            let holds_first = engine.module().stages().any(|stage| stage.0 == 0);
            let n_read = Cell::new(0);
            let count = |serial| {
                n_read.set(n_read.get() + 1);
                tokens(serial, 2)
            };
            // A rank without data has an empty source.
            let mut source = (0..6).take(if holds_first { 6 } else { 0 }).map(count);
            while let Some(report) = engine.train_batch(&mut source)? {
                assert!(report.loss.is_finite());
            }
            let n_read = n_read.get();
            Ok::<_, EngineError>((holds_first, n_read, engine.n_steps()))
        });
        for (holds_first, n_read, n_steps) in parts.expect("the run ends well") {
            assert_eq!((n_read, n_steps), (if holds_first { 6 } else { 0 }, 3), "p={p}, dp={dp}");
        }
    }
}

fn first_error(
    p: u64,
    program: impl Fn(&mut Gpt, Rank) -> Result<(), StepError> + Send + Sync + 'static,
) -> StepError {
    let parts = World::local(usize::try_from(p).expect("small")).expect("a few ranks").run(move |rank| {
        let one_f_one_b = |shape| Schedule::OneFOneB.plan(shape);
        let mut engine = engine(&rank, (p, 1), one_f_one_b, 2, DataOn::FirstAndLast)?;
        Ok::<_, EngineError>(program(&mut engine, rank.rank()).expect_err("something is wrong"))
    });
    let errors = parts.expect("errors are values here");
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "every rank returns the first error: {texts:?}");
    errors[0].clone()
}

/// The first stage has shuffled its data otherwise than the last: found before any forward runs.
#[test]
fn ends_with_different_samples_are_told() {
    let by_id = first_error(3, |engine, rank| {
        let mut source = (0..2).map(|serial| {
            let (x, y) = tokens(serial, 2);
            // The last rank has the two micro-batches the other way round.
            DataItem::new(x, y).with_id(if rank == Rank(2) {
                1 - u64::try_from(serial).expect("small")
            } else {
                u64::try_from(serial).expect("small")
            })
        });
        engine.train_batch(&mut source).map(drop)
    });
    assert_eq!(by_id.site().rank, Rank(2));
    let expected = (0, Rank(0), Some(0), Some(1));
    match by_id.cause() {
        &Cause::IdsDiffer { item, other, there, here } => assert_eq!((item, other, there, here), expected),
        other => panic!("{other}"),
    }
    let by_data = first_error(2, |engine, rank| {
        let shift = usize::try_from(rank.0).expect("small");
        let mut source = (0..2).map(|serial| {
            // Micro-batch 0 is equal on both, 1 is not.
            DataItem::from(tokens(serial * (1 + shift), 2)).hashed().expect("tensors that can be carried")
        });
        engine.eval_batch(&mut source, 2).map(drop)
    });
    assert!(matches!(by_data.cause(), Cause::IdsDiffer { item: 1, .. }), "{by_data}");
    let none = first_error(2, |engine, rank| {
        let mut source = (0..2).map(|serial| {
            let item = DataItem::from(tokens(serial, 2));
            if rank == Rank(0) { item.with_id(7) } else { item }
        });
        engine.train_batch(&mut source).map(drop)
    });
    assert!(matches!(none.cause(), Cause::IdsDiffer { there: Some(7), here: None, .. }), "{none}");
}

#[test]
fn ends_with_batches_of_different_sizes_are_told() {
    let sizes = |rank: Rank| usize::try_from(4 + rank.0).expect("small");
    let split = first_error(2, move |engine, rank| {
        engine.train_batch_split(&mut std::iter::once(tokens(0, sizes(rank)))).map(drop)
    });
    assert!(matches!(split.cause(), Cause::SamplesDiffer { item: 0, there: 4, here: 5, .. }), "{split}");
    let pieces = first_error(2, move |engine, rank| {
        engine.train_batch(&mut (0..2).map(|serial| tokens(serial, sizes(rank)))).map(drop)
    });
    assert!(matches!(pieces.cause(), Cause::SamplesDiffer { .. }), "{pieces}");
    let mut kinds = first_error(2, move |engine, rank| {
        if rank == Rank(0) {
            engine.train_batch(&mut (0..2).map(|serial| tokens(serial, 2))).map(drop)
        } else {
            engine.train_batch_split(&mut std::iter::once(tokens(0, 4))).map(drop)
        }
    });
    assert!(matches!(kinds.cause(), Cause::CallsDiffer { .. }), "{kinds}");
    kinds = first_error(1, |engine, _| {
        let (x, y) = tokens(0, 4);
        engine.train_batch_split(&mut std::iter::once((x, y.narrow(0, 0, 3)))).map(drop)
    });
    let expected =
        SplitError::Samples { path: "target".to_owned(), found: 3, first: "input".to_owned(), expected: 4 };
    assert!(matches!(kinds.cause(), Cause::Split(error) if *error == expected), "{kinds}");
}

/// A schedule that always gives one plan, as one from a file does, has none for a smaller batch.
#[test]
fn a_batch_too_small_for_the_only_plan_is_an_error_on_every_rank() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let fixed = |shape| Schedule::OneFOneB.plan(Shape { n_micro_batches: 4, ..shape });
        let mut engine = engine(&rank, (2, 1), fixed, 4, DataOn::FirstAndLast)?;
        let mut batches = [4, 3].into_iter().map(|n| tokens(0, n));
        assert!(engine.train_batch_split(&mut batches)?.is_some(), "a plan for 4");
        Ok::<_, EngineError>(engine.train_batch_split(&mut batches).expect_err("no plan for 3"))
    });
    for error in parts.expect("errors are values here") {
        assert!(matches!(error.cause(), Cause::Plan { n_micro_batches: 3, .. }), "{error}");
    }
}

/// What `batch_fn` makes of the data is what the model sees, in training and evaluation, until it is unset.
#[test]
fn a_batch_function_changes_what_the_data_gives() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        let one_f_one_b = |shape| Schedule::OneFOneB.plan(shape);
        let mut plain = engine(&rank, (2, 1), one_f_one_b, 2, DataOn::FirstAndLast)?;
        let mut with = engine(&rank, (2, 1), one_f_one_b, 2, DataOn::FirstAndLast)?;
        let mut n_calls = 0_u32;
        with.set_batch_fn(Some(move |x: Tensor<2, Int>, y: Tensor<2, Int>| {
            n_calls += 1;
            assert!(n_calls <= 5, "once for each micro-batch");
            ((x + 1) % 11, y)
        }));
        let changed = || (0..4).map(|serial| tokens(serial, 2)).map(|(x, y)| ((x + 1) % 11, y));
        let (mut a, mut b) = (changed(), (0..4).map(|serial| tokens(serial, 2)));
        for _ in 0..2 {
            let (a, b) = (plain.train_batch(&mut a)?, with.train_batch(&mut b)?);
            assert_eq!(a.expect("a batch").loss, b.expect("a batch").loss);
        }
        let options = EvalOptions::new().micro_batches(1);
        let a = plain.evaluate(&mut changed(), options)?.expect("a batch");
        let b = with.evaluate(&mut (0..4).map(|serial| tokens(serial, 2)), options)?.expect("a batch");
        assert_eq!(a.report.loss, b.report.loss);
        with.set_batch_fn(None::<fn(Tensor<2, Int>, Tensor<2, Int>) -> (Tensor<2, Int>, Tensor<2, Int>)>);
        let b = with.evaluate(&mut changed(), options)?.expect("a batch");
        assert_eq!(a.report.loss, b.report.loss);
        Ok::<_, EngineError>(())
    });
    parts.expect("the run ends well");
}

/// Three stages, two replicas, one shuffled epoch of ten samples: each sample once, the same on the first
/// and the last stage of a replica, checked by the engine itself.
#[test]
fn a_shuffled_epoch_gives_every_sample_once() {
    let parts = World::local(6).expect("six ranks").run(|rank| {
        let one_f_one_b = |shape| Schedule::OneFOneB.plan(shape);
        let mut engine = engine(&rank, (3, 2), one_f_one_b, 5, DataOn::FirstAndLast)?;
        let (replica, n) = (engine.module().replica(), engine.module().n_replicas());
        let number = |n: usize| u32::try_from(n).expect("small");
        let config = SamplerConfig::new(10, 1).micro_batches(5).shuffle(42);
        let mut sampler = Sampler::new(config.replica(number(replica), number(n))).expect("sound settings");
        let mut epochs = Vec::new();
        for epoch in 0..2_u64 {
            let mut seen = Vec::new();
            let mut source = sampler.by_ref().map(|samples| {
                seen.extend(samples.clone());
                let serial = usize::try_from(samples[0]).expect("small");
                DataItem::from(tokens(serial, 1)).with_samples(&samples)
            });
            // One batch is the epoch; then the data has ended, for this epoch.
            assert!(engine.train_batch(&mut source)?.is_some());
            assert!(engine.train_batch(&mut source)?.is_none());
            drop(source);
            epochs.push(seen);
            let stages = engine.module().stages().next().map_or(0, |stage| stage.0);
            if stages != 1 {
                assert_eq!(sampler.state().epoch, epoch + 1);
            }
        }
        let stage = engine.module().stages().next().expect("one each");
        Ok::<_, EngineError>((stage.0, replica, epochs))
    });
    let parts = parts.expect("the run ends well");
    let of = |stage: u32, replica: usize| {
        let part = parts.iter().find(|part| (part.0, part.1) == (stage, replica));
        part.map(|part| part.2.clone()).expect("every place has a rank")
    };
    for replica in 0..2 {
        assert_eq!(of(0, replica), of(2, replica), "the same shuffle on first and last stage");
        assert!(of(1, replica).iter().all(Vec::is_empty), "the stage between reads no data");
    }
    for (a, b) in of(0, 0).iter().zip(&of(0, 1)) {
        let mut all = [a.clone(), b.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<u64>>());
    }
    assert_ne!(of(0, 0)[0], of(0, 0)[1], "another shuffle in the next epoch");
}

/// Whatever is no tensor is in every piece of a batch that the engine splits.
#[test]
fn plain_values_are_in_every_micro_batch() {
    let parts = World::local(2).expect("two ranks").run(|rank| {
        type Input = (Tensor<2>, String, f64);
        let layers = brigade_engine::Layers::<Input, Input>::new();
        let layers = layers.repeat(2, |_, _| Pass);
        let loss = |(y, name, factor): Input, (t, names): (Tensor<1>, Vec<String>)| {
            assert_eq!((name.as_str(), names.len()), ("a", 2));
            (y.sum() - t.sum()) * factor
        };
        let module = PipelineModule::builder(&layers, loss).micro_batches(3).build(&rank)?;
        let mut engine =
            PipelineEngine::new(module, burn::optim::SgdConfig::new().init(), TrainConfig::new(1.0))?;
        let values: Vec<f32> = (0..8_u8).map(f32::from).collect();
        let x = Tensor::<2>::from_data(TensorData::new(values, [8, 1]), &Device::flex());
        let input = (x, "a".to_owned(), 2.0);
        let target = (Tensor::<1>::zeros([8], &Device::flex()), vec!["x".to_owned(), "y".to_owned()]);
        let report = engine.train_batch_split(&mut std::iter::once((input, target)))?.expect("a batch");
        // Rows 0, 1, 2; 3, 4, 5; 6, 7.
        assert_eq!(report.micro_batch_losses, [6.0, 24.0, 26.0]);
        assert_eq!(report.loss, (6.0 * 3.0 + 24.0 * 3.0 + 26.0 * 2.0) / 8.0);
        Ok::<_, EngineError>(())
    });
    parts.expect("the run ends well");
}

#[derive(burn::module::Module, Debug)]
struct Pass;

impl brigade_engine::Layer for Pass {
    type Input = (Tensor<2>, String, f64);
    type Output = (Tensor<2>, String, f64);
    fn forward(&self, x: Self::Input) -> Self::Output {
        x
    }
}
