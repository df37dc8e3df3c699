//! One batch of a list of layers, over any split and under any schedule.

use std::sync::{Arc, Mutex};

use brigade_engine::partition::PartitionMethod;
use brigade_engine::schedule::{Plan, Schedule, ScheduleError, Shape, gpipe};
use brigade_engine::{
    EngineError, Layers, NamedTensor, PipelineEngine, PipelineModule, TrainConfig, Value, World,
};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};

use crate::support::formula;

pub(crate) const WIDTH: usize = 4;

/// The most ranks that a batch runs over.
const RANKS_MAX: u32 = 4;

pub(crate) fn linear(seed: usize, device: &Device) -> Linear {
    formula(LinearConfig::new(WIDTH, WIDTH).init(device), seed)
}

pub(crate) fn input(serial: u16, rows: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..u16::try_from(rows * WIDTH).expect("small"))
        .map(|i| f32::from((i * 7 + serial * 3) % 11) / 11.0 - 0.4)
        .collect();
    Tensor::from_data(TensorData::new(values, [rows, WIDTH]), &Device::flex())
}

pub(crate) fn square(y: Tensor<2>, t: Tensor<2>) -> Tensor<1> {
    (y - t).powi_scalar(2).mean()
}

/// One micro-batch for each number of rows.
pub(crate) fn batch(rows: &[usize]) -> Vec<(Tensor<2>, Tensor<2>)> {
    let pair = |(i, &rows): (usize, &usize)| {
        let serial = u16::try_from(i).expect("small");
        (input(serial, rows), input(serial + 1, rows))
    };
    rows.iter().enumerate().map(pair).collect()
}

/// Losses and gradients of one training batch.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) losses: Vec<f64>,
    pub(crate) gradients: Vec<(String, TensorData)>,
}

/// Trains one batch over `p` ranks.
pub(crate) fn train<I: Value + Clone + Sync, O: Value, T: Value + Clone + Sync>(
    p: u32,
    schedule: impl Fn(Shape) -> Result<Plan, ScheduleError> + Clone + Send + Sync + 'static,
    method: PartitionMethod,
    layers: &Layers<I, O>,
    loss: fn(O, T) -> Tensor<1>,
    batch: &[(I, T)],
) -> Seen {
    let (layers, batch) = (layers.clone(), batch.to_vec());
    let parts = World::local(usize::try_from(p).expect("small"))
        .expect("a few ranks")
        .run(move |rank| {
            let module = PipelineModule::builder(&layers, loss)
                .partition(method.clone())
                .schedule(schedule.clone())
                .partition_options(brigade_engine::partition::Options {
                    allow_empty: true,
                    ..Default::default()
                })
                .micro_batches(u32::try_from(batch.len()).expect("small"))
                .build(&rank)?;
            let config = TrainConfig::new(0.1);
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&seen);
            engine.observe_gradients(move |named: &[NamedTensor]| {
                *sink.lock().expect("no panic") =
                    named.iter().map(|n| (n.name.clone(), n.data.clone())).collect();
            });
            let report = engine.train_batch(&mut batch.iter().cloned())?.expect("a whole batch");
            let gradients = std::mem::take(&mut *seen.lock().expect("no panic"));
            Ok::<_, EngineError>(Seen { losses: report.micro_batch_losses, gradients })
        })
        .expect("the batch runs");
    let losses = parts[0].losses.clone();
    assert!(parts.iter().all(|part| part.losses == losses), "every rank reports the same losses");
    let mut gradients: Vec<_> = parts.into_iter().flat_map(|part| part.gradients).collect();
    // By layer; those of one layer, which come from one rank, stay in the order of its fields.
    gradients.sort_by(|(a, _), (b, _)| a.split('.').next().cmp(&b.split('.').next()));
    Seen { losses, gradients }
}

/// Every schedule that trains, with the numbers of ranks at which it can be made for `m` micro-batches,
/// one copy of each stage, and a number of stages that `fits`.
pub(crate) fn schedules(m: usize, fits: impl Fn(u32) -> bool) -> Vec<(Schedule, u32)> {
    let n_micro_batches = u32::try_from(m).expect("small");
    let training = Schedule::ALL.into_iter().filter(|&schedule| schedule != Schedule::ForwardOnly);
    let all = training.flat_map(|schedule| (1..=RANKS_MAX).map(move |p| (schedule, p)));
    let can = |&(schedule, n_ranks): &(Schedule, u32)| {
        schedule.plan(Shape { n_ranks, n_micro_batches }).is_ok_and(|plan| {
            let placement = plan.placement();
            !placement.is_bidirectional() && fits(placement.n_stages())
        })
    };
    all.filter(can).collect()
}

pub(crate) fn uniform() -> PartitionMethod {
    "uniform".parse().expect("a method")
}

/// The same batch over 1 rank and over all numbers of stages up to that of the layers, under every
/// schedule: the same bits.
pub(crate) fn same_at_every_split<I: Value + Clone + Sync, O: Value, T: Value + Clone + Sync>(
    layers: &Layers<I, O>,
    loss: fn(O, T) -> Tensor<1>,
    batch: &[(I, T)],
) -> Seen {
    let whole = train(1, gpipe, uniform(), layers, loss, batch);
    assert!(whole.losses.iter().all(|loss| loss.is_finite()));
    let n_layers = u32::try_from(layers.len()).expect("small");
    let schedules = schedules(batch.len(), |n_stages| n_stages <= n_layers);
    assert!(schedules.len() >= 6, "{} schedules", schedules.len());
    for (schedule, p) in schedules {
        let plan = move |shape| schedule.plan(shape);
        assert_eq!(train(p, plan, uniform(), layers, loss, batch), whole, "{schedule}, p={p}");
    }
    whole
}
