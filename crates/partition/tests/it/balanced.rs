//! `balanced` against plain enumeration, and on lists made to be hard.

use std::cmp::Reverse;

use brigade_partition::{Report, balanced, uniform};
use proptest::prelude::*;

use crate::support::{every_cuts, heaviest, sums};

/// Returns the best cuts of all: by heaviest stage, then lightest stage, then longest first stages.
fn best(weights: &[u64], n_stages: usize) -> Vec<usize> {
    let mut best: Option<(u64, Reverse<u64>, Reverse<Vec<usize>>)> = None;
    every_cuts(weights.len(), n_stages, false, &mut |cuts| {
        let sums = sums(cuts, weights);
        let (most, least) = (sums.iter().max().unwrap(), sums.iter().min().unwrap());
        let known =
            best.as_ref().map(|(most, least, Reverse(cuts))| (*most, *least, Reverse(cuts.as_slice())));
        if known.is_none_or(|known| (*most, Reverse(*least), Reverse(cuts)) < known) {
            best = Some((*most, Reverse(*least), Reverse(cuts.to_vec())));
        }
    });
    best.unwrap().2.0
}

/// Checks every list of `n_layers` weights out of an alphabet, at every number of stages up to 5.
fn check_all(alphabet: &[u64], n_layers: u32) -> usize {
    let mut n_checked = 0;
    for code in 0..alphabet.len().pow(n_layers) {
        let mut rest = code;
        let mut weights = Vec::new();
        for _ in 0..n_layers {
            weights.push(alphabet[rest % alphabet.len()]);
            rest /= alphabet.len();
        }
        for n_stages in 1..=weights.len().min(5) {
            let ours = balanced(&weights, n_stages).unwrap();
            assert_eq!(ours.boundaries(), best(&weights, n_stages), "{weights:?} on {n_stages}");
            n_checked += 1;
        }
    }
    n_checked
}

#[test]
fn all_short_lists_over_four_weights() {
    for n_layers in 1..=6 {
        check_all(&[0, 1, 2, 5], n_layers);
    }
}

#[test]
fn all_lists_of_up_to_nine_layers_over_three_weights() {
    for n_layers in 7..=9 {
        assert!(check_all(&[0, 1, 3], n_layers) > 10_000);
    }
}

#[test]
fn all_lists_of_nine_layers_over_two_large_weights() {
    check_all(&[7, u64::MAX / 16], 9);
}

proptest! {
    #[test]
    fn lists_of_any_weights_are_cut_best(weights in prop::collection::vec(0_u64..=40, 1..=9), n_stages in 1_usize..=5) {
        prop_assume!(n_stages <= weights.len());
        let expected = best(&weights, n_stages);
        prop_assert_eq!(&Vec::from(balanced(&weights, n_stages).unwrap()), &expected);
        // The same in any type, and as floats of any unit.
        let wide: Vec<u128> = weights.iter().map(|&weight| u128::from(weight) << 80).collect();
        prop_assert_eq!(&Vec::from(balanced(&wide, n_stages).unwrap()), &expected);
        let small: Vec<f64> = weights.iter().map(|&weight| f64::from(u32::try_from(weight).unwrap()) / 1024.0).collect();
        prop_assert_eq!(&Vec::from(balanced(&small, n_stages).unwrap()), &expected);
        let short: Vec<u8> = weights.iter().map(|&weight| u8::try_from(weight).unwrap()).collect();
        prop_assert_eq!(&Vec::from(balanced(&short, n_stages).unwrap()), &expected);
    }

    #[test]
    fn equal_weights_are_cut_as_uniform_does(n_layers in 1_usize..=300, n_stages in 1_usize..=40, weight in 0_u64..=3) {
        prop_assume!(n_stages <= n_layers);
        let cuts = balanced(&vec![weight; n_layers], n_stages).unwrap();
        if weight == 0 {
            // Nothing to balance: only the order of ties is left, longest stages first.
            prop_assert_eq!(cuts.stage(0).len(), n_layers - n_stages + 1);
        } else {
            prop_assert_eq!(cuts, uniform(n_layers, n_stages).unwrap());
        }
    }

    #[test]
    fn long_lists_keep_the_invariants(weights in prop::collection::vec(0_u64..=1_000_000, 1..=400), n_stages in 1_usize..=60) {
        prop_assume!(n_stages <= weights.len());
        let cuts = balanced(&weights, n_stages).unwrap();
        prop_assert_eq!((cuts.n_stages(), cuts.n_layers(), cuts.first_empty()), (n_stages, weights.len(), None));
        let maximum = heaviest(&cuts, &weights);
        // Filling greedily shows that a smaller maximum needs more stages.
        if maximum > 0 {
            let (mut stages, mut sum) = (1, 0);
            for &weight in &weights {
                if sum + weight > maximum - 1 {
                    (stages, sum) = (stages + 1, 0);
                }
                sum += weight;
            }
            prop_assert!(stages > n_stages || weights.iter().any(|&weight| weight > maximum - 1));
        }
    }

    #[test]
    fn floats_of_any_size_are_cut(bits in prop::collection::vec(any::<u64>(), 1..=9), n_stages in 1_usize..=5) {
        prop_assume!(n_stages <= bits.len());
        let weights: Vec<f64> = bits.into_iter().map(|bits| f64::from_bits(bits >> 1)).collect();
        let cuts = balanced(&weights, n_stages);
        if weights.iter().all(|weight| weight.is_finite()) {
            prop_assert_eq!(cuts.unwrap().first_empty(), None);
        } else {
            prop_assert!(cuts.is_err());
        }
    }
}

#[test]
fn floats_are_summed_exactly() {
    // In 64-bit floats 1e16 + 1 + 1 + 1 + 1 is 1e16, and nothing would tell these cuts apart.
    let cuts = balanced(&[1e16, 1.0, 1.0, 1.0, 1.0], 2).unwrap();
    assert_eq!(cuts.boundaries(), [0, 1, 5]);
    // 0.1 three times is more than 0.3 here: what counts is the value that a float has.
    assert_eq!(balanced(&[0.1, 0.1, 0.1, 0.3, 0.1], 2).unwrap().boundaries(), [0, 3, 5]);
    let tiny = f64::from_bits(1);
    assert_eq!(balanced(&[tiny, tiny, tiny, tiny], 2).unwrap().boundaries(), [0, 2, 4]);
    assert_eq!(balanced(&[f64::MAX, f64::MAX, f64::MAX], 3).unwrap().boundaries(), [0, 1, 2, 3]);
}

#[test]
fn one_heavy_layer_anywhere_stands_alone() {
    for heavy in 0..12 {
        let mut weights = vec![1_u64; 12];
        weights[heavy] = 1 << 60;
        let cuts = balanced(&weights, 4).unwrap();
        assert_eq!(heaviest(&cuts, &weights), 1 << 60, "{heavy}");
    }
}

#[test]
fn as_many_stages_as_layers_leave_no_choice() {
    for n_layers in 1..=20 {
        let weights: Vec<u64> = (0..n_layers).map(|layer| layer * 7 % 5).collect();
        let cuts = balanced(&weights, weights.len()).unwrap();
        assert!(cuts.stages().all(|stage| stage.len() == 1));
    }
}

#[test]
fn a_million_layers_over_ten_thousand_stages_are_balanced() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let weights: Vec<u64> = (0..1_000_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 40
        })
        .collect();
    let cuts = balanced(&weights, 10_000).unwrap();
    let report = Report::new(&cuts, &weights).unwrap();
    assert_eq!(cuts.first_empty(), None);
    assert!(report.imbalance < 1.01, "{}", report.imbalance);
}

/// Boundaries were once looked for from the far end of every stage, which took a square of the stages.
#[test]
fn a_million_stages_of_nothing_are_cut() {
    for weight in [0, 1] {
        let cuts = balanced(&vec![weight; (1 << 20) + 1], 1 << 20).unwrap();
        assert_eq!((cuts.stage(0), cuts.first_empty()), (0..2, None));
    }
    let mut ends = vec![0_u64; 300_000];
    (ends[0], ends[299_999]) = (7, 7);
    let cuts = balanced(&ends, 100_000).unwrap();
    assert_eq!(cuts.stage(0).len(), 200_001);
}

/// Doubling the step down from the mean once overflowed, where one layer outweighs all others by nearly
/// 2^62.
#[test]
fn one_layer_near_the_largest_sum_of_64_bits() {
    let heavy = (1_u64 << 62) - 10;
    let cuts = balanced(&[0, 2, 1, heavy, 0], 4).unwrap();
    assert_eq!(cuts.boundaries(), [0, 2, 3, 4, 5]);
    let cuts = balanced(&[0, 1, 2, 1_u64 << 61, 0, 0], 5).unwrap();
    assert_eq!(heaviest(&cuts, &[0, 1, 2, 1 << 61, 0, 0]), 1 << 61);
}
