//! Keyed dropout: its distribution, when it is off, and that its masks never change.

use brigade_engine::nn::Dropout;
use brigade_engine::random::{PassContext, Stream};
use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};

const N: usize = 200_000;

fn dropout(p: f64) -> Dropout {
    Dropout::new(p).expect("a probability")
}

fn ones(n: usize) -> Tensor<1> {
    Tensor::ones([n], &Device::flex().autodiff())
}

/// The mask of `n` elements in this pass, by call.
fn masks(p: f64, n: usize, pass: PassContext, calls: usize) -> Vec<Vec<f32>> {
    let draw = || (0..calls).map(|_| dropout(p).forward(ones(n)).into_data().iter().collect());
    pass.during(|| draw().collect())
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).expect("small"))
}

#[test]
fn the_share_of_dropped_elements_and_the_scale_are_right() {
    let pass = PassContext::training(1, 1);
    for p in [0.001, 0.1, 0.3, 0.5, 0.9, 0.999] {
        let mask = masks(p, N, pass, 1).remove(0);
        let kept: Vec<f32> = mask.into_iter().filter(|&y| y != 0.0).collect();
        // Five standard deviations of a binomial distribution.
        let (expected, spread) = (count(N) * (1.0 - p), 5.0 * (count(N) * p * (1.0 - p)).sqrt());
        assert!((count(kept.len()) - expected).abs() < spread, "p {p}: {} of {expected}", kept.len());
        let scale: f32 = format!("{}", 1.0 / (1.0 - p)).parse().expect("a number");
        assert!(kept.iter().all(|&y| y == scale), "p {p}");
    }
}

#[test]
fn neighbours_in_every_direction_are_independent() {
    let pass = PassContext::training(1, 1).micro_batch(1).layer(1);
    let mut all = masks(0.5, N, pass, 2);
    for other in
        [PassContext { seed: 2, ..pass }, PassContext { step: 2, ..pass }, pass.micro_batch(2), pass.layer(2)]
    {
        all.extend(masks(0.5, N, other, 1));
    }
    let shifted: Vec<f32> = all[0].iter().cycle().skip(1).take(N).copied().collect();
    all.push(shifted);
    let next_block: Vec<f32> = all[0].iter().cycle().skip(4).take(N).copied().collect();
    all.push(next_block);
    for (i, a) in all.iter().enumerate() {
        for (j, b) in all.iter().enumerate().skip(i + 1) {
            let equal = a.iter().zip(b).filter(|(a, b)| a == b).count();
            let spread = 5.0 * (count(N) * 0.25).sqrt();
            assert!((count(equal) - count(N) / 2.0).abs() < spread, "{i} and {j}: {equal} of {N} equal");
        }
    }
}

#[test]
fn probabilities_at_and_near_the_ends() {
    assert_eq!(masks(0.0, 1000, PassContext::training(1, 1), 1), [vec![1.0; 1000]]);
    let near = masks(1.0 - 1e-9, 1000, PassContext::training(1, 1), 1).remove(0);
    assert_eq!(near, vec![0.0; 1000]);
    for p in [-0.1, -f64::MIN_POSITIVE, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = Dropout::new(p).expect_err("no probability");
        assert!(error.to_string().starts_with("dropout of "), "{error}");
    }
}

#[test]
fn nothing_is_dropped_outside_of_training() {
    let layer = dropout(0.5);
    let x = ones(100);
    let same = x.clone().into_data();
    assert_eq!(layer.forward(x.clone().inner()).into_data(), same, "without autodiff");
    let evaluation = PassContext::evaluation(1, 1);
    assert_eq!(evaluation.during(|| layer.forward(x.clone())).into_data(), same, "in an evaluation");
    assert_eq!(layer.clone().freeze().forward(x.clone()).into_data(), same, "frozen");
    assert_ne!(layer.clone().no_grad().forward(x.clone()).into_data(), same, "only without gradients");
    assert_ne!(layer.forward(x).into_data(), same, "in training");
    assert_eq!(layer.forward(ones(0)).dims(), [0]);
}

#[test]
fn a_probability_of_zero_uses_up_a_call_like_any_other() {
    let pass = PassContext::training(1, 1);
    let second = |first: f64| {
        pass.during(|| {
            let _ = dropout(first).forward(ones(10));
            dropout(0.5).forward(ones(100)).into_data()
        })
    };
    assert_eq!(second(0.0), second(0.9));
}

#[test]
fn gradients_are_scaled_by_the_same_mask() {
    let x = ones(1000).require_grad();
    let y = dropout(0.3).forward(x.clone());
    let gradients = y.clone().sum().backward();
    assert_eq!(x.grad(&gradients).expect("x took part").into_data(), y.into_data());
}

#[test]
fn every_float_type_gets_the_same_mask() {
    let stream = Stream::of(PassContext::training(3, 4), 0);
    let drops = |dtype: DType| -> Vec<bool> {
        let data = TensorData::ones::<f32, _>([500]).convert_dtype(dtype);
        let x = Tensor::<1>::from_data(data, (&Device::flex(), dtype));
        let y = dropout(0.25).forward_with(x, stream);
        assert_eq!(y.dtype(), dtype);
        y.into_data().iter::<f64>().map(|y| y == 0.0).collect()
    };
    let single = drops(DType::F32);
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        assert_eq!(drops(dtype), single, "{dtype:?}");
    }
    let data = TensorData::ones::<f64, _>([50]);
    let x = Tensor::<1>::from_data(data, (&Device::flex(), DType::F64));
    let y = dropout(0.25).forward_with(x, stream).into_data();
    assert!(y.iter::<f64>().all(|y| y == 0.0 || y == 1.0 / 0.75), "no detour through f32");
}

/// A run that goes on from a checkpoint of another version must draw what this one would have drawn.
#[test]
fn streams_are_the_same_in_every_version() {
    let mut words = [0; 6];
    Stream::of(PassContext::training(1234, 5).micro_batch(6).layer(7), 8).fill(0, &mut words);
    let expected = [4_005_202_821, 9_111_810, 3_642_721_000, 1_401_414_228, 515_667_298, 4_053_600_941];
    assert_eq!(words, expected);
}
