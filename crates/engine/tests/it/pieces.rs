//! Batches cut into micro-batches, results put together, and samples dealt out to replicas.

use std::collections::{BTreeMap, BTreeSet};

use brigade_engine::{
    Merge, MergeError, Sampler, SamplerConfig, SamplerError, SamplerState, SplitError, Tail, merge_pieces,
    piece_sizes, split_batch,
};
use burn::tensor::{Bool, Device, Int, Tensor};

fn rows(n: usize, width: usize) -> Tensor<2> {
    let end = i64::try_from(n * width).expect("small");
    Tensor::<1, Int>::arange(0..end, &Device::flex()).float().reshape([n, width])
}

#[test]
fn pieces_are_as_equal_as_can_be_and_never_empty() {
    for n in 0..40 {
        for m in 1..=12 {
            let sizes = piece_sizes(n, m);
            assert_eq!(sizes.iter().sum::<usize>(), n);
            assert_eq!(sizes.len(), n.min(m));
            assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
            let (most, least) = (sizes.first(), sizes.last());
            assert!(most.zip(least).is_none_or(|(most, &least)| least > 0 && most - least <= 1), "{sizes:?}");
        }
    }
}

/// What is no tensor is in every piece; tensors of any kind and rank are cut, and come together again.
#[test]
fn a_batch_comes_apart_and_together_again() {
    type Batch = (Tensor<2>, Option<Tensor<1, Int>>, BTreeMap<String, Tensor<3, Bool>>, (String, f64, ()));
    let x = rows(10, 3);
    let ids = Tensor::<1, Int>::arange(0..10, &Device::flex());
    let mask = x.clone().greater_elem(7.0).unsqueeze_dim::<3>(2);
    let batch: Batch = (
        x.clone(),
        Some(ids.clone()),
        BTreeMap::from([("mask".to_owned(), mask.clone())]),
        ("name".to_owned(), 0.5, ()),
    );
    let pieces = split_batch(batch, 4).expect("equal first dimensions");
    let sizes: Vec<usize> = pieces.iter().map(|piece| piece.0.dims()[0]).collect();
    assert_eq!(sizes, [3, 3, 2, 2]);
    for piece in &pieces {
        let (name, number, ()) = &piece.3;
        assert_eq!((name.as_str(), *number), ("name", 0.5));
        assert_eq!(piece.1.as_ref().map(|ids| ids.dims()), Some([piece.0.dims()[0]]));
    }
    let (x_again, ids_again, masks, _) = merge_pieces(pieces, Merge::Concatenate).expect("equal structures");
    assert_eq!(x_again.into_data(), x.into_data());
    assert_eq!(ids_again.expect("it was there").into_data(), ids.into_data());
    assert_eq!(masks["mask"].to_data(), mask.into_data());
}

#[test]
fn a_batch_whose_tensors_disagree_is_refused_with_their_places() {
    let error = split_batch((rows(8, 2), vec![rows(8, 1), rows(3, 1)]), 2).expect_err("3 is not 8");
    let expected = SplitError::Samples {
        path: "batch.1.1".to_owned(),
        found: 3,
        first: "batch.0".to_owned(),
        expected: 8,
    };
    assert_eq!(error, expected);
    assert_eq!(split_batch((1_i64, ()), 2).expect_err("no tensor"), SplitError::NoTensor);
    assert_eq!(split_batch(rows(0, 2), 2).expect_err("no samples"), SplitError::Empty);
    assert_eq!(split_batch(rows(4, 2), 0).expect_err("no pieces"), SplitError::NoPieces);
}

#[test]
fn outputs_that_do_not_fit_are_refused_and_means_are_means() {
    let shape = merge_pieces(vec![rows(2, 3), rows(2, 4)], Merge::Concatenate).expect_err("3 and 4 columns");
    assert!(matches!(shape, MergeError::Shape { tensor: 0, piece: 1, .. }), "{shape}");
    let plain = merge_pieces(vec![(rows(2, 3), 1_i64), (rows(1, 3), 2)], Merge::Concatenate);
    assert_eq!(plain.expect_err("1 and 2"), MergeError::Structure { piece: 1 });
    assert_eq!(merge_pieces(Vec::<i64>::new(), Merge::Concatenate).expect_err("none"), MergeError::NoPieces);
    let mean = merge_pieces(vec![rows(1, 2), rows(1, 2) * 3.0], Merge::Mean).expect("equal shapes");
    assert_eq!(mean.into_data().iter::<f64>().collect::<Vec<_>>(), [0.0, 4.0 / 2.0]);
    let ints = vec![Tensor::<1, Int>::arange(0..2, &Device::flex())];
    let error = merge_pieces(ints, Merge::Mean).expect_err("integers");
    assert!(matches!(error, MergeError::NotFloat { tensor: 0, .. }), "{error}");
}

fn epoch(config: &SamplerConfig) -> Vec<Vec<Vec<u64>>> {
    (0..config.n_replicas)
        .map(|replica| {
            let config = config.clone().replica(replica, config.n_replicas);
            Sampler::new(config).expect("sound settings").collect()
        })
        .collect()
}

/// Ten samples over two replicas: each sample once an epoch, and the two ends of a pipeline, which have
/// the same settings, the same samples.
#[test]
fn every_sample_comes_once_an_epoch_over_all_replicas() {
    let config = SamplerConfig::new(10, 1).replica(0, 2).shuffle(3);
    let mut orders = BTreeSet::new();
    let mut replicas: Vec<Sampler> = (0..2)
        .map(|replica| Sampler::new(config.clone().replica(replica, 2)).expect("sound settings"))
        .collect();
    let mut last_stages = replicas.clone();
    for _ in 0..20 {
        let ids: Vec<Vec<u64>> = replicas.iter_mut().map(|sampler| sampler.flatten().collect()).collect();
        let at_the_end: Vec<Vec<u64>> =
            last_stages.iter_mut().map(|sampler| sampler.flatten().collect()).collect();
        assert_eq!(ids, at_the_end);
        let all: BTreeSet<u64> = ids.iter().flatten().copied().collect();
        assert_eq!(all, (0..10).collect());
        assert_eq!(ids.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
        orders.insert(ids);
    }
    assert_eq!(orders.len(), 20, "every epoch has its own order");
}

#[test]
fn a_shuffle_is_a_permutation_at_every_size() {
    let mut moved = 0;
    for n in (1..200).chain([1023, 1024, 1025]) {
        let samples: Vec<u64> = epoch(&SamplerConfig::new(n, 1).shuffle(n)).concat().concat();
        moved += samples.iter().zip(0..).filter(|(sample, place)| **sample != *place).count();
        assert_eq!(samples.into_iter().collect::<BTreeSet<_>>(), (0..n).collect(), "{n}");
    }
    assert!(moved > 20_000, "{moved} of about 23000 places hold another sample");
}

/// Where sample 0 lands is about even: chi-squared over 16 places and 4000 seeds, 15 degrees of freedom.
#[test]
fn shuffles_of_different_seeds_are_about_even() {
    let mut counts = [0_u32; 16];
    for seed in 0..4000 {
        let samples = epoch(&SamplerConfig::new(16, 16).shuffle(seed)).concat().concat();
        counts[samples.iter().position(|&sample| sample == 0).expect("a permutation")] += 1;
    }
    let chi: f64 = counts.iter().map(|&count| (f64::from(count) - 250.0).powi(2) / 250.0).sum();
    assert!(chi < 45.0, "{chi}: above it with chance 1 in 10 000, {counts:?}");
}

#[test]
fn replicas_and_micro_batches_are_slices_of_one_batch() {
    let config = SamplerConfig::new(100, 2).shuffle(9);
    let one = epoch(&config.clone().micro_batches(6));
    let three = epoch(&config.clone().micro_batches(2).replica(0, 3));
    assert_eq!(one[0].len(), 48, "100 samples hold 8 batches of 12");
    for batch in 0..8 {
        let dealt: Vec<_> = three.iter().flat_map(|replica| replica[batch * 2..][..2].to_vec()).collect();
        assert_eq!(dealt, one[0][batch * 6..][..6], "batch {batch}");
    }
}

#[test]
fn the_tail_is_left_out_or_filled_up() {
    let config = SamplerConfig::new(10, 2).micro_batches(2).replica(0, 2).shuffle(1);
    let dropped = epoch(&config);
    assert_eq!(dropped.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(dropped.concat().concat().into_iter().collect::<BTreeSet<_>>().len(), 8);
    let padded = epoch(&config.tail(Tail::Pad));
    assert_eq!(padded.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
    let samples = padded.concat().concat();
    assert_eq!((samples.len(), samples.into_iter().collect::<BTreeSet<_>>().len()), (16, 10));
}

/// A state that was saved after any number of micro-batches goes on with the very next one.
#[test]
fn a_saved_state_goes_on_where_it_was() {
    let config = SamplerConfig::new(20, 2).micro_batches(3).shuffle(5);
    let mut whole = Sampler::new(config.clone()).expect("sound settings");
    for _ in 0..25 {
        let mut resumed = Sampler::resume(config.clone(), whole.state()).expect("a state of its own");
        let next = whole.next();
        // At an epoch's end the one sampler still says so; the other starts with the next.
        if next.is_some() {
            assert_eq!(next, resumed.next());
        }
        assert_eq!(whole.state(), resumed.state());
    }
    let state = SamplerState { epoch: 0, batch: 3, micro_batch: 0 };
    let error = Sampler::resume(config, state).expect_err("an epoch has 3 batches");
    assert!(matches!(error, SamplerError::State { batch: 3, n_batches: 3, .. }), "{error}");
}

#[test]
fn samplers_without_a_batch_are_refused() {
    let error = |config: SamplerConfig| Sampler::new(config).expect_err("no batch");
    assert_eq!(error(SamplerConfig::new(3, 4)), SamplerError::NoBatch { n_samples: 3, batch: 4 });
    assert!(matches!(error(SamplerConfig::new(0, 4)), SamplerError::Zero { .. }));
    assert!(matches!(error(SamplerConfig::new(4, 0)), SamplerError::Zero { .. }));
    assert!(matches!(error(SamplerConfig::new(4, 1).micro_batches(0)), SamplerError::Zero { .. }));
    let replica = error(SamplerConfig::new(4, 1).replica(2, 2));
    assert_eq!(replica, SamplerError::Replica { replica: 2, n_replicas: 2 });
    let most = SamplerConfig::new(u64::MAX, u32::MAX).micro_batches(u32::MAX).replica(0, u32::MAX);
    assert!(matches!(error(most), SamplerError::Samples { .. }));
    let batch = SamplerConfig::new(1, u32::MAX).micro_batches(u32::MAX).tail(Tail::Pad);
    assert!(matches!(error(batch), SamplerError::Samples { .. }));
}
