//! Micro-batches and uneven batches: one mean, however the samples are spread.

use proptest::prelude::*;

use super::*;
use crate::LossScaler;

/// The gradients of one step over 12 samples on one rank.
fn whole_batch() -> Vec<Option<Vec<f32>>> {
    dealt(DdpConfig::default(), &[&[12]], false).remove(0)
}

/// Gradients are what a step of rate 1 moves.
fn assert_gradients_close(found: &[Option<Vec<f32>>], expected: &[Option<Vec<f32>>]) {
    let named = |gradients: &[Option<Vec<f32>>]| -> Vec<(String, Vec<f64>)> {
        gradients
            .iter()
            .map(|values| values.iter().flatten().map(|&value| f64::from(value)).collect())
            .enumerate()
            .map(|(index, values)| (format!("gradient {index}"), values))
            .collect()
    };
    let allowed = tolerance(1, 1.0, terms(12), largest_sample_gradient(12));
    assert_close(&named(found), &named(expected), allowed);
}

/// The gradients of a step whose samples are dealt as `parts` says, per rank and micro-batch.
fn dealt(
    averaging: impl Into<Averaging>,
    parts: &[&[usize]],
    weighted: bool,
) -> Vec<Vec<Option<Vec<f32>>>> {
    finished(averaging.into(), parts, weighted, None, None)
}

/// The gradients of a step with a scaled loss, unscaled and clipped.
fn finished<P: AsRef<[usize]> + Sync>(
    averaging: Averaging,
    parts: &[P],
    weighted: bool,
    scale: Option<f64>,
    clip: Option<Clip>,
) -> Vec<Vec<Option<Vec<f32>>>> {
    let results = on_ranks(parts.len() as u32, |world| {
        let device = world.device();
        let mut ddp = Averager::new(Mlp::new(1, &device), &world, averaging.clone());
        let mut scaler = scale.map(|initial| {
            LossScaler::new(bonfire_optim::ScalerConfig::default().with_initial(initial))
        });
        // Twice, because buckets travel early from the second step on.
        let mut last = Vec::new();
        for _ in 0..2 {
            let rank = world.rank().index();
            let mut start: usize =
                parts[..rank].iter().map(|sizes| sizes.as_ref().iter().sum::<usize>()).sum();
            let (final_size, earlier) = parts[rank].as_ref().split_last().unwrap();
            let mut loss = |model: &Mlp, size: usize| {
                let indices: Vec<usize> = (start..start + size).collect();
                start += size;
                if size == 0 {
                    // The mean of nothing.
                    return Loss::mean_over(Tensor::full([1], f32::NAN, &device), 0);
                }
                let tensor = model.loss(&indices);
                let loss = if weighted { Loss::mean_over(tensor, size) } else { tensor.into() };
                match &scaler {
                    Some(scaler) => scaler.scale(loss),
                    None => loss,
                }
            };
            for &size in earlier {
                ddp.no_sync(|model| loss(model, size)).unwrap();
            }
            let mut gradients = ddp.backward(|model| loss(model, *final_size)).unwrap().gradients;
            if let Some(scaler) = &mut scaler {
                let unscaled = scaler.unscale(gradients).unwrap();
                gradients = unscaled.expect("nothing overflows");
            }
            if let Some(clip) = clip {
                gradients = gradients.clip(clip).unwrap();
            }
            last = gradient_values(ddp.module(), &gradients);
        }
        last
    });
    assert_same(&results);
    results
}

#[test]
fn micro_batches_and_uneven_batches_equal_one_big_batch() {
    let expected = whole_batch();
    for config in [small_buckets(), DdpConfig::default()] {
        let plain = dealt(config.clone(), &[&[2, 2, 2], &[2, 2, 2]], false);
        assert_gradients_close(&plain[0], &expected);
        let weighted: [&[&[usize]]; 5] = [
            &[&[3, 3], &[3, 3]],
            &[&[2], &[7], &[3]],
            &[&[1, 4], &[5, 2]],
            // A rank without samples counts nothing.
            &[&[12], &[0]],
            &[&[4, 0], &[0, 8]],
        ];
        for parts in weighted {
            assert_gradients_close(&dealt(config.clone(), parts, true)[0], &expected);
        }
    }
}

#[test]
fn accumulation_in_buckets_is_that_of_single_parameters_bit_for_bit() {
    let parts: [&[usize]; 2] = [&[2, 2, 2], &[2, 2, 2]];
    for weighted in [false, true] {
        let single = Averaging::per_parameter(DdpConfig::default());
        assert_eq!(dealt(small_buckets(), &parts, weighted), dealt(single, &parts, weighted));
    }
}

#[test]
fn equal_weights_give_exactly_the_plain_mean() {
    let parts: [&[usize]; 3] = [&[4], &[4], &[4]];
    assert_eq!(dealt(small_buckets(), &parts, true), dealt(small_buckets(), &parts, false));
}

#[test]
fn no_sync_sends_nothing() {
    on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        // Only one rank accumulates here: it would wait for the other if anything were sent.
        if world.is_main() {
            ddp.no_sync(|model| model.loss(&[1])).unwrap();
        }
        world.group().barrier().unwrap();
    });
}

#[test]
fn different_numbers_of_micro_batches_are_an_error_on_every_rank() {
    let config = small_buckets();
    let errors = on_ranks(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, config.clone()).unwrap();
        if world.is_main() {
            ddp.no_sync(|model| model.loss(&[1])).unwrap();
        }
        ddp.backward(|model| model.loss(&[2])).unwrap_err()
    });
    // The second rank to see it may see that the first gave up.
    let typed = |error: &TrainError| {
        matches!(
            error,
            TrainError::UnequalAccumulation { least: 1, most: 2 } | TrainError::Collective(_)
        )
    };
    assert!(errors.iter().all(typed), "{errors:?}");
    assert!(errors.iter().any(|e| matches!(e, TrainError::UnequalAccumulation { .. })));
}

#[test]
fn a_step_without_any_sample_is_an_error() {
    let errors = on_ranks(2, |world| {
        let device = world.device();
        let mut ddp = Ddp::new(Mlp::new(1, &device), &world).unwrap();
        let nothing = || Loss::mean_over(Tensor::full([1], f32::NAN, &device), 0);
        ddp.backward(|_| nothing()).unwrap_err()
    });
    assert!(errors.iter().any(|error| matches!(error, TrainError::NoSamples)), "{errors:?}");
}

/// Sizes of micro-batches, per rank: equally many on each, tails and empty ones included.
fn deals() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let some = |deal: &Vec<Vec<usize>>| deal.iter().flatten().any(|&size| size > 0);
    (1..=4_usize, 1..=3_usize)
        .prop_flat_map(|(ranks, micro_batches)| {
            let sizes = prop::collection::vec(0..=5_usize, micro_batches);
            prop::collection::vec(sizes, ranks)
        })
        .prop_filter("a step has a sample", some)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However samples are dealt to ranks and micro-batches, the step is that of one rank with all of
    /// them in one batch: the mean, what is left of it after clipping by the joint norm or by value,
    /// and, bit for bit, what a scaled loss gives.
    #[test]
    fn any_deal_is_one_big_batch(deal in deals(), bucketed in any::<bool>(), power in 0..20_i32) {
        let averaging = if bucketed { small_buckets().into() } else { Averaging::per_parameter(DdpConfig::default()) };
        let samples = deal.iter().flatten().sum::<usize>();
        let whole = |clip| finished(averaging.clone(), &[[samples]], true, None, clip).remove(0);
        let found = |scale, clip| finished(averaging.clone(), &deal, true, scale, clip).remove(0);
        let norm = whole(None)
            .iter()
            .flatten()
            .flatten()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
            .sqrt();
        let parameters = whole(None).iter().flatten().flatten().count();
        // Clipping by the norm sums once more, over all parameters.
        let terms = terms(samples) + parameters;
        let allowed = tolerance(1, 1.0, terms, largest_sample_gradient(samples));
        for clip in [None, Some(Clip::Norm(0.5 * norm as f32)), Some(Clip::Value(1e-3))] {
            let (found, whole) = (found(None, clip), whole(clip));
            for (found, whole) in found.iter().flatten().flatten().zip(whole.iter().flatten().flatten()) {
                let off = f64::from((found - whole).abs());
                prop_assert!(off <= allowed, "{clip:?}: {found} for {whole}");
            }
        }
        prop_assert_eq!(found(Some(2_f64.powi(power)), None), found(None, None));
    }
}
