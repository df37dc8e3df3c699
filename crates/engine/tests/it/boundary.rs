//! Values of every structure cross a stage boundary whole, with the right gradients.

use brigade_engine::schedule::{gpipe, one_f_one_b};
use brigade_engine::{Layer, Layers};
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::runs::{WIDTH, batch, input, linear, same_at_every_split, square, train, uniform};

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

/// Everything that a value can hold, beside the one tensor that trains.
type Luggage = (
    Tensor<2>,
    Tensor<2>,
    Option<Tensor<1>>,
    (Tensor<1, Int>, Tensor<2, Bool>, Vec<Tensor<2>>),
    Option<i64>,
    (bool, u64, f64, String, ()),
    Tensor<1>,
);

/// Makes the luggage out of a tensor: among it an empty tensor, a constant, an absent value.
#[derive(Module, Debug)]
struct Pack {
    linear: Linear,
}

impl Layer for Pack {
    type Input = Tensor<2>;
    type Output = Luggage;
    fn forward(&self, x: Tensor<2>) -> Luggage {
        let device = x.device();
        let y = self.linear.forward(x.clone());
        let empty = Tensor::<1>::from_data(TensorData::new(Vec::<f32>::new(), [0]), &device);
        (
            y.clone(),
            x.clone().detach(),
            None,
            (Tensor::<1, Int>::arange(0..3, &device), x.greater_elem(0.0), vec![y.clone() * 2.0, y]),
            Some(-7),
            (true, u64::MAX, 0.1, "a text".to_owned(), ()),
            empty,
        )
    }
}

/// Carries the luggage on, changes the first tensor and checks the rest.
#[derive(Module, Debug)]
struct Carry {
    linear: Linear,
}

impl Layer for Carry {
    type Input = Luggage;
    type Output = Luggage;
    fn forward(&self, (y, x, none, tensors, count, scalars, empty): Luggage) -> Luggage {
        assert!(none.is_none() && count == Some(-7));
        assert_eq!(scalars, (true, u64::MAX, 0.1, "a text".to_owned(), ()));
        assert_eq!(empty.dims(), [0]);
        assert_eq!(tensors.0.clone().into_data().iter::<i64>().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(tensors.1.dims(), x.dims());
        let y = self.linear.forward(y) + x.clone();
        (y, x, none, tensors, count, scalars, empty)
    }
}

/// Uses all tensors that have a gradient.
#[derive(Module, Debug)]
struct Unpack {
    linear: Linear,
}

impl Layer for Unpack {
    type Input = Luggage;
    type Output = Tensor<2>;
    fn forward(&self, (y, x, _, (_, mask, list), ..): Luggage) -> Tensor<2> {
        let [twice, once] = <[Tensor<2>; 2]>::try_from(list).expect("two tensors");
        let y = self.linear.forward(y).mask_fill(mask, 0.25);
        y + x + twice * once
    }
}

#[test]
fn tuples_options_lists_scalars_integers_and_empty_tensors_cross_whole() {
    let layers = Layers::new()
        .layer(|d| Pack { linear: linear(0, d) })
        .repeat(2, |i, d| Carry { linear: linear(1 + i, d) })
        .layer(|d| Unpack { linear: linear(3, d) });
    let seen = same_at_every_split(&layers, square, &batch(&[2, 2, 2]));
    assert_eq!(seen.gradients.len(), 8, "every weight and bias has a gradient");
}

/// Shapes differ between the micro-batches of one batch, with no flag.
#[test]
fn shapes_may_change_with_every_micro_batch() {
    let seen = same_at_every_split(&dense(4), square, &batch(&[5, 7, 1, 3, 5]));
    assert_eq!(seen.losses.len(), 5);
}

/// The gradient is the mean over micro-batches at every stage, for every m.
#[test]
fn the_gradient_does_not_depend_on_how_a_batch_is_cut_into_micro_batches() {
    let whole = [(input(0, 24), input(1, 24))];
    let cut = |n: usize| -> Vec<(Tensor<2>, Tensor<2>)> {
        let (x, t) = whole[0].clone();
        x.chunk(n, 0).into_iter().zip(t.chunk(n, 0)).collect()
    };
    let reference = train(1, gpipe, uniform(), &dense(4), square, &whole);
    for m in [2, 3, 4, 8] {
        for p in 1..=4 {
            let seen = train(p, one_f_one_b, uniform(), &dense(4), square, &cut(m));
            for ((name, found), (_, expected)) in seen.gradients.iter().zip(&reference.gradients) {
                for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                    // Another order of f32 sums of 24 rows.
                    assert!((found - expected).abs() < 1e-6, "{name}: {found} and {expected}, m={m}, p={p}");
                }
            }
        }
    }
}

/// Gives views of one tensor: turned, strided, offset and spread.
#[derive(Module, Debug)]
struct Views {
    linear: Linear,
}

impl Layer for Views {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<2>, Tensor<2>, Tensor<2>);
    fn forward(&self, x: Tensor<2>) -> Self::Output {
        let y = self.linear.forward(x);
        let [rows, width] = y.dims();
        let strided =
            y.clone().reshape([rows, width / 2, 2]).slice([0..rows, 0..width / 2, 0..1]).squeeze_dim(2);
        let offset = y.clone().slice([0..rows, 1..3]);
        let spread = y.clone().slice([0..1, 0..width]).expand([rows, width]);
        (y.transpose(), strided, offset, spread)
    }
}

#[derive(Module, Debug)]
struct Join {
    linear: Linear,
}

impl Layer for Join {
    type Input = (Tensor<2>, Tensor<2>, Tensor<2>, Tensor<2>);
    type Output = Tensor<2>;
    fn forward(&self, (turned, strided, offset, spread): Self::Input) -> Tensor<2> {
        let both = Tensor::cat(vec![strided, offset], 1);
        self.linear.forward(turned.transpose() * both) + spread
    }
}

/// Tensors that are not contiguous arrive equal.
#[test]
fn views_arrive_equal() {
    let layers =
        Layers::new().layer(|d| Views { linear: linear(0, d) }).layer(|d| Join { linear: linear(1, d) });
    same_at_every_split(&layers, square, &batch(&[3, 2]));
}

/// Gives its second output only for inputs of an even number of rows, and cuts the first from the graph
/// for inputs of one row.
#[derive(Module, Debug)]
struct Sometimes {
    linear: Linear,
}

impl Layer for Sometimes {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Option<Tensor<2>>);
    fn forward(&self, x: Tensor<2>) -> Self::Output {
        let [rows, _] = x.dims();
        let y = self.linear.forward(x);
        let extra = (rows % 2 == 0).then(|| y.clone().tanh());
        (if rows == 1 { y.detach() } else { y }, extra)
    }
}

#[derive(Module, Debug)]
struct Perhaps {
    linear: Linear,
}

impl Layer for Perhaps {
    type Input = (Tensor<2>, Option<Tensor<2>>);
    type Output = Tensor<2>;
    fn forward(&self, (y, extra): Self::Input) -> Tensor<2> {
        let y = self.linear.forward(y);
        extra.map_or(y.clone(), |extra| y + extra)
    }
}

/// Presence and gradients change with every micro-batch; a missing gradient goes upstream
/// as such.
#[test]
fn presence_and_gradients_may_change_with_every_micro_batch() {
    let layers = Layers::new()
        .repeat(1, |_, d| Dense { linear: linear(0, d) })
        .layer(|d| Sometimes { linear: linear(1, d) })
        .layer(|d| Perhaps { linear: linear(2, d) });
    same_at_every_split(&layers, square, &batch(&[1, 2, 3, 1, 4]));
    // A batch without any gradient for the first stages: they report none.
    let seen = same_at_every_split(&layers, square, &batch(&[1, 1]));
    assert!(seen.gradients.iter().all(|(name, _)| name.starts_with("layer_002")), "{seen:?}");
}

/// Ignores its input's gradient: what it gives is made from nothing but its own weights.
#[derive(Module, Debug)]
struct Source {
    weight: Param<Tensor<2>>,
}

impl Layer for Source {
    type Input = (Tensor<2>, Option<Tensor<2>>);
    type Output = Tensor<2>;
    fn forward(&self, (y, _): Self::Input) -> Tensor<2> {
        let [rows, _] = y.dims();
        self.weight.val().expand([rows, WIDTH])
    }
}

/// An output that nobody uses gets an explicit "no gradient".
#[test]
fn an_unused_value_sends_no_gradient_back() {
    let layers = Layers::new().layer(|d| Sometimes { linear: linear(1, d) }).layer(|d| {
        let weight = Tensor::<2>::from_data(TensorData::from([[0.1, 0.2, 0.3, 0.4]]), d);
        Source { weight: Param::from_tensor(weight) }
    });
    let seen = same_at_every_split(&layers, square, &batch(&[2, 3]));
    assert_eq!(seen.gradients.len(), 1);
}

/// Frozen layers, frozen stages and a layer with one frozen parameter.
#[test]
fn frozen_parameters_get_no_gradient_and_let_others_through() {
    for frozen in 0_usize..16 {
        let layers = Layers::new().repeat(4, move |i, d| {
            let mut layer = Dense { linear: linear(i, d) };
            if frozen >> i & 1 == 1 {
                layer = layer.no_grad();
            }
            layer
        });
        let seen = same_at_every_split(&layers, square, &batch(&[2, 3, 2]));
        let n_trained = 4 - usize::try_from(frozen.count_ones()).expect("small");
        assert_eq!(seen.gradients.len(), 2 * n_trained, "frozen {frozen:04b}");
    }
    let half = Layers::new().repeat(2, |i, d| {
        let mut layer = Dense { linear: linear(i, d) };
        layer.linear.bias = layer.linear.bias.map(|bias| bias.set_require_grad(false));
        layer
    });
    let seen = same_at_every_split(&half, square, &batch(&[2, 3]));
    assert!(seen.gradients.iter().all(|(name, _)| name.ends_with("weight")) && seen.gradients.len() == 2);
}

/// A layer without parameters that passes integers on beside the tensor.
#[derive(Module, Debug)]
struct Shift {
    #[module(skip)]
    by: f64,
}

impl Layer for Shift {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x + self.by
    }
}

/// A stage without any parameter forwards and sends gradients back.
#[test]
fn stages_without_parameters_take_part() {
    let layers = dense(1)
        .layer(|_| Shift { by: 0.5 })
        .layer(|_| Shift { by: -1.0 })
        .then(Layers::new().layer(|d| Dense { linear: linear(9, d) }));
    assert_eq!(same_at_every_split(&layers, square, &batch(&[2, 2])).gradients.len(), 4);
}

/// A value of the first stage that later stages use too, carried through them.
#[test]
fn a_carried_value_gets_the_gradients_of_all_its_users() {
    #[derive(Module, Debug)]
    struct Open {
        linear: Linear,
    }
    impl Layer for Open {
        type Input = Tensor<2>;
        type Output = (Tensor<2>, Tensor<2>);
        fn forward(&self, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
            let y = self.linear.forward(x);
            (y.clone(), y)
        }
    }
    #[derive(Module, Debug)]
    struct Along {
        linear: Linear,
    }
    impl Layer for Along {
        type Input = (Tensor<2>, Tensor<2>);
        type Output = (Tensor<2>, Tensor<2>);
        fn forward(&self, (y, skip): (Tensor<2>, Tensor<2>)) -> (Tensor<2>, Tensor<2>) {
            (self.linear.forward(y) * skip.clone(), skip)
        }
    }
    #[derive(Module, Debug)]
    struct Close {
        linear: Linear,
    }
    impl Layer for Close {
        type Input = (Tensor<2>, Tensor<2>);
        type Output = Tensor<2>;
        fn forward(&self, (y, skip): (Tensor<2>, Tensor<2>)) -> Tensor<2> {
            self.linear.forward(y) + skip
        }
    }
    let layers = Layers::new()
        .layer(|d| Open { linear: linear(0, d) })
        .repeat(2, |i, d| Along { linear: linear(1 + i, d) })
        .layer(|d| Close { linear: linear(3, d) });
    let batch = batch(&[3, 2]);
    let seen = {
        let whole = train(1, gpipe, uniform(), &layers, square, &batch);
        for p in 2..=4 {
            let split = train(p, one_f_one_b, uniform(), &layers, square, &batch);
            assert_eq!(split.losses, whole.losses);
            for ((name, found), (_, expected)) in split.gradients.iter().zip(&whole.gradients) {
                for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                    // A boundary sums the users behind it first: another order of a few f32 terms.
                    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(0.1), "{name}, p={p}");
                }
            }
        }
        whole
    };
    assert_eq!(seen.gradients.len(), 8);
}
