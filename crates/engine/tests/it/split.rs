//! The linear layer whose weight gradient waits: Burn's numbers, and the same bits whether it waits or not.

use std::sync::{Arc, Mutex};

use brigade_engine::nn;
use brigade_engine::schedule::Schedule;
use brigade_engine::{EngineError, Layer, Layers, PipelineEngine, PipelineModule, TrainConfig, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};

use crate::support::formula;

fn input<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let n = u16::try_from(shape.iter().product::<usize>()).expect("small");
    let values: Vec<f32> = (0..n).map(|i| f32::from(i % 17) / 17.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

fn close(found: TensorData, expected: TensorData, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
        // f32 sums of at most 24 terms of size 1, in another order.
        assert!((found - expected).abs() < 1e-5, "{what}: {found} and {expected}");
    }
}

fn same_as_burn<const D: usize>(shape: [usize; D], bias: bool) {
    let device = Device::flex().autodiff();
    let burns: Linear = formula(LinearConfig::new(4, 3).with_bias(bias).init(&device), 3);
    let ours = nn::Linear::from(burns.clone());
    let leaf = || input(shape).autodiff().require_grad();
    let (x, z) = (leaf(), leaf());
    let (y, t) = (burns.forward(x.clone()), ours.forward(z.clone()));
    close(t.clone().into_data(), y.clone().into_data(), "output");
    let (dy, dt) = (y.powi_scalar(3).sum().backward(), t.powi_scalar(3).sum().backward());
    close(
        z.grad(&dt).expect("z took part").into_data(),
        x.grad(&dy).expect("x took part").into_data(),
        "gradient of the input",
    );
    let grads = |gradients, weight: Tensor<2>, bias: Option<Tensor<1>>| {
        let bias = bias.map(|bias| bias.grad(gradients).expect("it took part").into_data());
        (weight.grad(gradients).expect("it took part").into_data(), bias)
    };
    let expected = grads(&dy, burns.weight.val(), burns.bias.as_ref().map(|b| b.val()));
    let found = grads(&dt, ours.weight.val(), ours.bias.as_ref().map(|b| b.val()));
    close(found.0, expected.0, "gradient of the weight");
    assert_eq!(found.1.is_some(), bias);
    if let (Some(found), Some(expected)) = (found.1, expected.1) {
        close(found, expected, "gradient of the bias");
    }
}

#[test]
fn values_and_gradients_are_those_of_burns_layer() {
    for bias in [true, false] {
        same_as_burn([5, 4], bias);
        same_as_burn([2, 3, 4], bias);
        same_as_burn([2, 3, 4, 4], bias);
        same_as_burn([1, 4], bias);
    }
}

/// One layer applied twice, or with a frozen weight or bias.
#[derive(Module, Debug)]
struct Odd {
    linear: nn::Linear,
    #[module(skip)]
    twice: bool,
}

impl Layer for Odd {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = self.linear.forward(x).tanh();
        if self.twice { self.linear.forward(y) } else { y }
    }
}

fn gradients(schedule: Schedule, p: usize, kind: usize) -> Vec<(String, TensorData)> {
    let parts = World::local(p).expect("a few ranks").run(move |rank| {
        let layers = Layers::new().repeat(4, move |i, device| {
            let mut linear = formula(nn::Linear::new(&LinearConfig::new(4, 4), device), i);
            if kind == 1 && i % 2 == 0 {
                linear.weight = linear.weight.set_require_grad(false);
            }
            if kind == 2 && i % 2 == 1 {
                linear.bias = linear.bias.map(|bias| bias.set_require_grad(false));
            }
            let linear = if kind == 3 && i == 1 { linear.no_grad() } else { linear };
            Odd { linear, twice: kind == 4 }
        });
        let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
        let module = PipelineModule::builder(&layers, loss)
            .partition("uniform".parse()?)
            .schedule(move |shape| schedule.plan(shape))
            .micro_batches(4)
            .build(&rank)?;
        let config = TrainConfig::new(0.1);
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        engine.observe_gradients(move |named| {
            sink.lock().expect("no panic").extend(named.iter().map(|n| (n.name.clone(), n.data.clone())));
        });
        let mut data = (1..=4).map(|rows| (input([rows, 4]), input([rows, 4]) * 0.3));
        engine.train_batch(&mut data)?.expect("a batch");
        let gradients = std::mem::take(&mut *seen.lock().expect("no panic"));
        Ok::<_, EngineError>(gradients)
    });
    let mut whole: Vec<_> = parts.expect("the batch runs").into_iter().flatten().collect();
    whole.sort_by(|a, b| a.0.cmp(&b.0));
    whole
}

#[test]
fn gradients_that_wait_are_the_same_bits_also_for_frozen_and_shared_weights() {
    for (kind, n_gradients) in [(0, 8), (1, 6), (2, 6), (3, 6), (4, 8)] {
        let whole = gradients(Schedule::OneFOneB, 1, kind);
        assert_eq!(whole.len(), n_gradients, "kind {kind}");
        for p in [1, 2, 4] {
            for schedule in [Schedule::ZbH1, Schedule::ZbH2] {
                assert_eq!(gradients(schedule, p, kind), whole, "{schedule}, p={p}, kind {kind}");
            }
        }
        for schedule in [Schedule::ZbV, Schedule::VHalf, Schedule::VMin] {
            assert_eq!(gradients(schedule, 2, kind), whole, "{schedule}, kind {kind}");
        }
    }
}

/// The second half of a backward pass takes time of its own.
#[test]
fn the_weight_gradient_is_computed_in_its_own_instruction() {
    let parts = World::local(1).expect("one rank").run(|rank| {
        let layers = Layers::new().layer(|device| Odd {
            linear: formula(nn::Linear::new(&LinearConfig::new(256, 4), device), 0),
            twice: false,
        });
        let loss = |y: Tensor<2>, _: ()| y.mean();
        let module = PipelineModule::builder(&layers, loss)
            .schedule(|shape| Schedule::ZbH1.plan(shape))
            .micro_batches(3)
            .build(&rank)?;
        let config = TrainConfig::new(0.1);
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let mut data = (0..3).map(|_| (input([8, 256]), ()));
        Ok::<_, EngineError>(engine.train_batch(&mut data)?.expect("a batch"))
    });
    let report = parts.expect("the batch runs").remove(0);
    let stage = report.times.stages[0];
    assert_eq!((stage.forward.count, stage.backward.count, stage.weight_grad.count), (3, 3, 3));
    assert!(!stage.weight_grad.total.is_zero());
}
