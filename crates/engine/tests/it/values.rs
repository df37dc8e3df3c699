//! A user's own structs, maps and values of unknown form cross a stage boundary with their gradients.

use std::collections::HashMap;

use brigade_engine::wire::Tree;
use brigade_engine::{AnyTensor, Layers, value_struct};
use burn::tensor::{Int, Tensor};

use crate::runs::{batch, linear, same_at_every_split, square};

struct Hidden {
    value: Tensor<2>,
    parts: HashMap<String, Tensor<2>>,
    ids: [Tensor<1, Int>; 2],
    n_layers: usize,
    scale: f32,
    text: Box<(String, f64)>,
}
value_struct!(Hidden { value, parts, ids, n_layers, scale, text });

/// Every field of the struct comes through every stage, and the tensors in the map bring gradients back.
#[test]
fn structs_with_maps_cross_whole() {
    let layers = Layers::<Tensor<2>, _>::new()
        .with(
            |d| linear(0, d),
            |linear, x| {
                let value = linear.forward(x);
                let ids = Tensor::<1, Int>::arange(0..3, &value.device());
                let parts = (0_u16..5).map(|i| (format!("part {i}"), value.clone() * f32::from(i)));
                Hidden {
                    parts: parts.collect(),
                    ids: [ids.clone(), ids],
                    n_layers: 1,
                    scale: f32::from_bits(0x7fc0_0123),
                    text: Box::new(("as it is".to_owned(), 0.1)),
                    value,
                }
            },
        )
        .with(
            |d| linear(1, d),
            |linear, hidden: Hidden| {
                assert_eq!(hidden.ids[1].dims(), [3]);
                let value = linear.forward(hidden.value);
                Hidden { value, n_layers: hidden.n_layers + 1, ..hidden }
            },
        )
        .try_map(|mut hidden: Hidden| {
            assert_eq!((hidden.n_layers, hidden.scale.to_bits()), (2, 0x7fc0_0123));
            assert_eq!(*hidden.text, ("as it is".to_owned(), 0.1));
            let third = hidden.parts.remove("part 3").ok_or("the map has lost a key")?;
            let first = hidden.parts.remove("part 1").ok_or("the map has lost a key")?;
            Ok::<_, String>(hidden.value * third + first)
        });
    let seen = same_at_every_split(&layers, square, &batch(&[2, 3, 1]));
    assert_eq!(seen.gradients.len(), 4);
}

/// A layer that looks at the structure itself, and one that takes a tensor of any rank.
#[test]
fn values_of_unknown_form_cross_whole() {
    let layers = Layers::<Tensor<2>, _>::new()
        .with(|d| linear(0, d), |linear, x| linear.forward(x))
        .try_map(|x: Tensor<2>| AnyTensor::new(x))
        .map(|x: AnyTensor| Tree::List(vec![Tree::Tensor(x), Tree::I64(2)]))
        .try_map(|tree: Tree<AnyTensor>| {
            let [tensor, count] = tree.into_array().map_err(|error| error.to_string())?;
            let Tree::I64(2) = count else { return Err("the count is another".to_owned()) };
            tensor.into_tensor().map_err(|error| error.to_string())
        })
        .try_map(|x: AnyTensor| x.into_tensor::<2, burn::tensor::Float>())
        .with(|d| linear(1, d), |linear, x: Tensor<2>| linear.forward(x).tanh());
    let seen = same_at_every_split(&layers, square, &batch(&[2, 1]));
    assert_eq!(seen.gradients.len(), 4);
}
