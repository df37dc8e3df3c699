//! Models whose values skip stages, each as a list of layers and as a plain Burn module.

use brigade_engine::nn::Linear;
use brigade_engine::{Layer, Layers};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Bool, Device, Tensor, TensorData};

use crate::harness::Model;
use crate::support::formula;

pub(crate) const FEATURES: usize = 4;
const ROWS: usize = 3;

/// A linear map and a tanh.
#[derive(Module, Debug)]
pub(crate) struct Dense {
    linear: Linear,
}

impl Dense {
    pub(crate) fn new(index: usize, device: &Device) -> Self {
        formula(Self { linear: Linear::new(&LinearConfig::new(FEATURES, FEATURES), device) }, 1 + index)
    }
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }
}

/// Joins two values by one linear map.
#[derive(Module, Debug)]
pub(crate) struct Join {
    linear: Linear,
}

impl Join {
    fn new(index: usize, device: &Device) -> Self {
        formula(Self { linear: Linear::new(&LinearConfig::new(2 * FEATURES, FEATURES), device) }, 1 + index)
    }
}

impl Layer for Join {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = Tensor<2>;
    fn forward(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<2> {
        tanh(self.linear.forward(Tensor::cat(vec![x, y], 1)))
    }
}

/// Drops the second part of a pair.
#[derive(Module, Debug)]
struct First {}

impl Layer for First {
    type Input = (Tensor<2>, Tensor<2, Bool>);
    type Output = Tensor<2>;
    fn forward(&self, (x, _): Self::Input) -> Tensor<2> {
        x
    }
}

#[derive(Module, Debug)]
struct Flagged {}

impl Layer for Flagged {
    type Input = (Tensor<2>, bool);
    type Output = Tensor<2>;
    fn forward(&self, (x, _): Self::Input) -> Tensor<2> {
        x
    }
}

fn wave(serial: usize, phase: f64) -> Tensor<2> {
    let base = f64::from(u32::try_from(serial).expect("small")) * 0.61 + phase;
    let values: Vec<f32> = (0..u32::try_from(ROWS * FEATURES).expect("small"))
        .map(|i| format!("{:.6}", (f64::from(i) * 1.3 + base).sin()).parse().expect("a number"))
        .collect();
    Tensor::from_data(TensorData::new(values, [ROWS, FEATURES]), &Device::flex())
}

fn pair(serial: usize) -> (Tensor<2>, Tensor<2>) {
    (wave(serial, 0.0), wave(serial, 2.0))
}

fn mean_square(y: Tensor<2>, t: Tensor<2>) -> Tensor<1> {
    (y - t).powi_scalar(2).mean()
}

/// The layers of a model without those entries that have no parameters.
#[derive(Module, Debug)]
pub(crate) struct Plain {
    dense: Vec<Dense>,
}

fn plain<const N: usize>(device: &Device) -> Plain {
    Plain { dense: (0..N).map(|i| Dense::new(i, device)).collect() }
}

type Same<M = Plain> = Model<Tensor<2>, Tensor<2>, Tensor<2>, M>;

/// The output of the first of ten layers is added to that of the last.
pub(crate) fn residual() -> Same {
    Model {
        name: "residual across stages",
        layers: Layers::new()
            .layer(|d| Dense::new(0, d))
            .stash("x", Tensor::<2>::clone)
            .repeat(9, |i, d| Dense::new(1 + i, d))
            .pop("x", |y: Tensor<2>, x: Tensor<2>| y + x),
        build: plain::<10>,
        forward: |model, x| {
            let x = model.dense[0].forward(x);
            model.dense[1..].iter().fold(x.clone(), |y, dense| dense.forward(y)) + x
        },
        loss: mean_square,
        data: pair,
    }
}

/// `f3(f2(f1(x))) + x` of the model's own input, which needs no gradient.
pub(crate) fn residual_of_the_input() -> Same {
    Model {
        name: "residual of the input",
        layers: Layers::new()
            .stash("x", Tensor::<2>::clone)
            .repeat(3, Dense::new)
            .pop("x", |y: Tensor<2>, x: Tensor<2>| y + x),
        build: plain::<3>,
        forward: |model, x| model.dense.iter().fold(x.clone(), |y, dense| dense.forward(y)) + x,
        loss: mean_square,
        data: pair,
    }
}

/// One value of the first stage is used by several later ones, twice in a row in the end.
pub(crate) fn shared() -> Same {
    fn add(y: Tensor<2>, h: Tensor<2>) -> Tensor<2> {
        y + h
    }
    Model {
        name: "one value for many stages",
        layers: Layers::new()
            .layer(|d| Dense::new(0, d))
            .stash("h", Tensor::<2>::clone)
            .layer(|d| Dense::new(1, d))
            .peek("h", add)
            .layer(|d| Dense::new(2, d))
            .peek("h", |y: Tensor<2>, h: Tensor<2>| y * h)
            .layer(|d| Dense::new(3, d))
            .peek("h", add)
            .layer(|d| Dense::new(4, d))
            .layer(|d| Dense::new(5, d))
            .peek("h", |y: Tensor<2>, h: Tensor<2>| y - h)
            .pop("h", |y: Tensor<2>, h: Tensor<2>| y * h),
        build: plain::<6>,
        forward: |model, x| {
            let h = model.dense[0].forward(x);
            let y = model.dense[1].forward(h.clone()) + h.clone();
            let y = model.dense[2].forward(y) * h.clone();
            let y = model.dense[3].forward(y) + h.clone();
            let y = model.dense[5].forward(model.dense[4].forward(y)) - h.clone();
            y * h
        },
        loss: mean_square,
        data: pair,
    }
}

/// A mask, which is not a float, comes with the input and is used before every layer.
pub(crate) fn masked() -> Model<(Tensor<2>, Tensor<2, Bool>), Tensor<2>, Tensor<2>, Plain> {
    type Mask = (Tensor<2, Bool>, Option<i64>, Option<Tensor<2>>);
    fn hide(y: Tensor<2>, (mask, rows, none): Mask) -> Tensor<2> {
        assert_eq!(rows, i64::try_from(y.dims()[0]).ok());
        assert!(none.is_none());
        y.mask_fill(mask, 0.25)
    }
    let mask = |(x, mask): &(Tensor<2>, Tensor<2, Bool>)| -> Mask {
        (mask.clone(), i64::try_from(x.dims()[0]).ok(), None)
    };
    let mut layers = Layers::new().stash("mask", mask).layer(|_| First {});
    for i in 0..6 {
        layers = layers.peek("mask", hide).layer(move |d| Dense::new(i, d));
    }
    Model {
        name: "a mask in every stage",
        layers,
        build: plain::<6>,
        forward: |model, (x, mask)| {
            model.dense.iter().fold(x, |x, dense| dense.forward(x.mask_fill(mask.clone(), 0.25)))
        },
        loss: mean_square,
        data: |serial| {
            let (x, t) = pair(serial);
            let mask = wave(serial, 1.0).greater_elem(0.3);
            ((x, mask), t)
        },
    }
}

/// Down, the middle, and up again with joins.
#[derive(Module, Debug)]
pub(crate) struct UNet {
    down: Vec<Dense>,
    middle: Dense,
    up: Vec<Join>,
}

/// A nest of skips: what goes down last comes up first.
pub(crate) fn u_net() -> Same<UNet> {
    const DEPTH: usize = 3;
    let mut layers = Layers::new();
    for i in 0..DEPTH {
        layers = layers.layer(move |d| Dense::new(i, d)).stash(format!("level{i}"), Tensor::<2>::clone);
    }
    layers = layers.layer(|d| Dense::new(DEPTH, d));
    for i in (0..DEPTH).rev() {
        layers = layers
            .pop(format!("level{i}"), |y: Tensor<2>, x: Tensor<2>| (y, x))
            .layer(move |d| Join::new(10 + i, d));
    }
    Model {
        name: "u-net",
        layers,
        build: |d| UNet {
            down: (0..DEPTH).map(|i| Dense::new(i, d)).collect(),
            middle: Dense::new(DEPTH, d),
            up: (0..DEPTH).rev().map(|i| Join::new(10 + i, d)).collect(),
        },
        forward: |model, x| {
            let mut levels = Vec::new();
            let mut y = x;
            for down in &model.down {
                y = down.forward(y);
                levels.push(y.clone());
            }
            y = model.middle.forward(y);
            for up in &model.up {
                y = up.forward((y, levels.pop().expect("as many as went down")));
            }
            y
        },
        loss: mean_square,
        data: pair,
    }
}

/// A value that only every other micro-batch has.
pub(crate) fn sometimes() -> Model<(Tensor<2>, bool), Tensor<2>, Tensor<2>, Plain> {
    Model {
        name: "a value of some micro-batches",
        layers: Layers::new()
            .stash("x", |(x, has): &(Tensor<2>, bool)| has.then(|| x.clone()))
            .layer(|_| Flagged {})
            .repeat(2, Dense::new)
            .stash("h", |h: &Tensor<2>| (h.dims()[0] > 0).then(|| h.clone()))
            .peek("x", |y: Tensor<2>, x: Option<Tensor<2>>| match x {
                Some(x) => (y.clone() + x, Some(y)),
                None => (y, None),
            })
            .stash("again", |(_, y): &(Tensor<2>, Option<Tensor<2>>)| y.clone())
            .pop("h", |(y, _): (Tensor<2>, Option<Tensor<2>>), h: Option<Tensor<2>>| {
                y + h.expect("every micro-batch has rows")
            })
            .repeat(3, |i, d| Dense::new(2 + i, d))
            .pop("again", |y: Tensor<2>, x: Option<Tensor<2>>| match x {
                Some(x) => y * x,
                None => y,
            }),
        build: plain::<5>,
        forward: |model, (x, has)| {
            let h = model.dense[1].forward(model.dense[0].forward(x.clone()));
            let y = if has { h.clone() + x } else { h.clone() };
            let y = model.dense[2..].iter().fold(y + h.clone(), |y, dense| dense.forward(y));
            if has { y * h } else { y }
        },
        loss: mean_square,
        data: |serial| {
            let (x, t) = pair(serial);
            ((x, serial % 3 != 1), t)
        },
    }
}

/// One list with a skip inside, three times.
pub(crate) fn repeated_blocks() -> Same {
    let mut layers = Layers::new();
    for block in 0..3 {
        let residual = Layers::new()
            .stash("x", Tensor::<2>::clone)
            .repeat(2, move |i, d| Dense::new(2 * block + i, d))
            .pop("x", |y: Tensor<2>, x: Tensor<2>| y + x);
        layers = layers.then_namespaced(&format!("block{block}"), residual);
    }
    Model {
        name: "blocks with a skip inside",
        layers,
        build: plain::<6>,
        forward: |model, x| {
            model
                .dense
                .chunks(2)
                .fold(x, |x, block| block.iter().fold(x.clone(), |y, dense| dense.forward(y)) + x)
        },
        loss: mean_square,
        data: pair,
    }
}
