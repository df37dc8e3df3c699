//! Values of random structure survive the way into a tree and back.

use std::collections::BTreeMap;

use brigade_engine::Value;
use burn::tensor::{Device, Int, Tensor, TensorData};
use proptest::prelude::*;

type Nested = Vec<Option<(Vec<Option<i64>>, String, BTreeMap<String, Option<Option<u64>>>, bool)>>;

fn nested() -> impl Strategy<Value = Nested> {
    let integers = prop::collection::vec(prop::option::of(any::<i64>()), 0..4);
    let map = prop::collection::btree_map(".{0,3}", prop::option::of(prop::option::of(any::<u64>())), 0..4);
    prop::collection::vec(prop::option::of((integers, ".{0,5}", map, any::<bool>())), 0..4)
}

fn round_trip<V: Value>(value: V) -> V {
    V::from_tree(value.into_tree().expect("every value has a tree")).expect("a tree gives its value back")
}

proptest! {
    #[test]
    fn nested_values_come_back(value in nested()) {
        prop_assert_eq!(round_trip(value.clone()), value);
    }

    #[test]
    fn floats_come_back_bit_for_bit(bits in any::<u64>()) {
        prop_assert_eq!(round_trip(f64::from_bits(bits)).to_bits(), bits);
    }

    #[test]
    fn tensors_come_back_among_other_values(
        values in prop::collection::vec(any::<i32>(), 0..20),
        count in any::<u64>(),
    ) {
        let length = values.len();
        let data = TensorData::new(values.clone(), [length]);
        let tensor = Tensor::<1, Int>::from_data(data, &Device::flex());
        let (back, (), found) = round_trip((vec![tensor], (), Some(count)));
        prop_assert_eq!(found, Some(count));
        prop_assert_eq!(back[0].clone().into_data().iter::<i32>().collect::<Vec<_>>(), values);
    }

    #[test]
    fn a_value_of_another_type_is_refused(value in any::<i64>(), text in ".{0,5}") {
        prop_assert!(String::from_tree(value.into_tree().expect("a tree")).is_err());
        prop_assert!(<(i64, i64)>::from_tree((1_i64, 2_i64, 3_i64).into_tree().expect("a tree")).is_err());
        prop_assert!(Tensor::<1>::from_tree(text.into_tree().expect("a tree")).is_err());
    }
}
