//! What happens between the averages and the optimizer: clipping, scaling, numbers that are none.

use super::*;
use bonfire_optim::ScalerConfig;

use crate::{LossScaler, StepOptions};

/// The joint norm of a step's gradients over 12 samples before and after clipping, and the gradients.
fn clipped_step(world: &World, clip: Clip) -> (f32, f32, Vec<(String, Vec<f64>)>) {
    let mut ddp = Ddp::new(Mlp::new(1, &world.device()), world).unwrap();
    let indices = share(world, 0, 12 / world.world_size().len());
    let gradients = ddp.backward(|model| model.loss(&indices)).unwrap().gradients;
    let norm = |gradients: &Gradients| -> f32 { gradients.norm().unwrap().unwrap().into_scalar() };
    let before = norm(&gradients);
    let gradients = gradients.clip(clip).unwrap();
    let values = gradient_values(ddp.module(), &gradients);
    let named = values.into_iter().enumerate().map(|(index, values)| {
        let values = values.unwrap().into_iter().map(f64::from).collect();
        (index.to_string(), values)
    });
    (before, norm(&gradients), named.collect())
}

#[test]
fn ranks_clip_what_one_rank_clips_of_the_whole_batch() {
    let largest = largest_sample_gradient(12);
    for clip in [Clip::Norm(0.01), Clip::Value(0.001)] {
        let whole = on_ranks(1, |world| clipped_step(&world, clip)).remove(0);
        for ranks in [2, 3, 4] {
            let parts = one_of(on_ranks(ranks, |world| clipped_step(&world, clip)));
            let (before, after, gradients) = &parts;
            assert!(after < before, "{clip:?} has an effect");
            if let Clip::Norm(max) = clip {
                assert!((after - max).abs() < 1e-5 * max.max(1.0), "{after}");
            }
            // The norm is one more sum over the parameters.
            let parameters = gradients.iter().map(|(_, values)| values.len()).sum::<usize>();
            let allowed = tolerance(1, 1.0, terms(12) + parameters, largest);
            for ((name, left), (_, right)) in gradients.iter().zip(&whole.2) {
                for (left, right) in left.iter().zip(right) {
                    assert!((left - right).abs() <= allowed, "{name}: {left} and {right}");
                }
            }
        }
    }
}

#[test]
fn the_global_loss_is_over_all_samples_and_the_same_everywhere() {
    let losses = on_ranks(3, |world| {
        let device = world.device();
        let mut ddp = Ddp::new(Mlp::new(1, &device), &world).unwrap();
        let (loss, samples) = [(1.0, 1), (4.0, 3), (f32::NAN, 0)][world.rank().index()];
        // The parameters do not matter.
        let constant = Tensor::<1>::from_data([loss], &device);
        let step = ddp.backward(|_| Loss::mean_over(constant, samples));
        step.unwrap().loss.over_ranks(&world).unwrap()
    });
    assert_eq!(losses, [3.25; 3]);
}

#[test]
fn a_loss_that_is_no_number_is_found_on_all_ranks_and_named() {
    let results = on_ranks(3, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let factor = if world.rank().get() == 1 { f32::NAN } else { 1.0 };
        let mut step = |factor: f32| {
            let indices = share(&world, 0, 4);
            let step = ddp.backward(|model| model.loss(&indices) * factor).unwrap();
            (step.gradients.check_finite(), step.loss.over_ranks(&world))
        };
        let (gradients, loss) = step(factor);
        // All decided alike, so all can go on together.
        let (next_gradients, next_loss) = step(1.0);
        next_gradients.unwrap();
        assert!(next_loss.unwrap().is_finite());
        (gradients.unwrap_err(), loss.unwrap_err())
    });
    for (gradients, loss) in results {
        let TrainError::NonFiniteLoss { losses } = &loss else {
            panic!("expected a loss that is not finite, got {loss}");
        };
        assert_eq!(losses.len(), 1);
        assert!(losses[0].0.get() == 1 && losses[0].1.is_nan());
        assert!(loss.to_string().contains("rank 1 (NaN)"), "{loss}");
        let TrainError::NonFiniteGradient { parameter, others } = &gradients else {
            panic!("expected gradients that are not finite, got {gradients}");
        };
        assert_eq!((parameter.as_str(), *others), ("first.weight", 5));
    }
}

#[test]
fn a_loss_of_several_numbers_is_an_error() {
    let errors = on_ranks(1, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let losses = |model: &Mlp| model.loss(&[1]).expand([2]);
        ddp.backward(losses).unwrap_err().to_string()
    });
    assert!(errors[0].starts_with("the loss has 2 elements"), "{errors:?}");
}

#[test]
fn what_is_reported_of_a_scaled_loss_has_no_scale() {
    let losses = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let scaler = LossScaler::default();
        let loss = |model: &Mlp| scaler.scale(Loss::mean_over(model.loss(&[1]), 3));
        let micro_step = ddp.no_sync(loss).unwrap();
        let step = ddp.backward(loss).unwrap();
        let plain = ddp.module().loss(&[1]).into_scalar::<f64>();
        let all = step.loss.over_ranks(&world).unwrap();
        [micro_step.loss.value().unwrap(), step.loss.value().unwrap(), all].map(|loss| loss - plain)
    });
    assert_eq!(losses, [[0.0; 3]; 2]);
}

/// The parameters after training with a scaled loss, where `overflowing` says of (rank, step)
/// whether the loss is too large there.
fn train_scaled(
    world: &World,
    scaler: &mut LossScaler,
    overflowing: impl Fn(u32, usize) -> bool,
) -> Bits {
    let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), world, small_buckets()).unwrap();
    for step in 0..6 {
        let indices = share(world, step, 4);
        let factor = if overflowing(world.rank().get(), step) { f32::INFINITY } else { 1.0 };
        let scaled = |model: &Mlp| scaler.scale(model.loss(&indices) * factor);
        let gradients = ddp.backward(scaled).unwrap().gradients;
        if let Some(gradients) = scaler.unscale(gradients).unwrap() {
            ddp.step(&mut sgd(), 0.1, gradients).unwrap();
        }
    }
    bits(ddp.module())
}

/// A power of two changes no bit of a mantissa, so nothing but the scale may be seen.
#[test]
fn a_scaled_loss_gives_the_same_parameters_bit_for_bit() {
    let results = on_ranks(2, |world| {
        let mut scaler = LossScaler::default();
        let scaled = train_scaled(&world, &mut scaler, |_, _| false);
        assert_eq!(scaler.skipped(), 0);
        scaled == bits(&train(&world, small_buckets(), 6, 4, 0.1))
    });
    assert_eq!(results, [true, true]);
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all() {
    let config = ScalerConfig::default().with_hysteresis(1);
    let results = on_ranks(3, |world| {
        let mut scaler = LossScaler::new(config);
        let parameters = train_scaled(&world, &mut scaler, |rank, step| (rank, step) == (2, 3));
        (parameters, scaler)
    });
    let (parameters, scaler) = one_of(results);
    assert_eq!((scaler.skipped(), scaler.scale_factor()), (1, 32768.0));
    let never =
        on_ranks(3, |world| train_scaled(&world, &mut LossScaler::new(config), |_, _| false));
    assert!(parameters != never[0], "the step was not skipped");
}

/// When the buckets are dealt again, those of the step that ends still have its gradients.
#[test]
fn new_buckets_have_no_memory_while_gradients_lie_in_the_old_ones() {
    let had = on_ranks(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
        [(); 3].map(|()| {
            ddp.backward(|model: &Mlp| model.loss(&[0, 1])).unwrap();
            has_bucket_memory(&ddp)
        })
    });
    assert_eq!(had, [[true, false, true]; 2]);
}

/// The parameters after a step with a scaled loss, and true if it was not skipped.
fn stepped(world: &World, scale: f64, in_one: bool) -> (bool, Bits) {
    let mut ddp = Ddp::new(Mlp::new(1, &world.device()), world).unwrap();
    let mut optimizer = sgd();
    let mut scaler = LossScaler::new(ScalerConfig::default().with_initial(scale));
    let indices = share(world, 0, 2);
    let done = ddp.backward(|model| scaler.scale(model.loss(&indices)));
    let (gradients, clip) = (done.unwrap().gradients, Clip::Norm(0.01));
    let stepped = if in_one {
        let options = StepOptions::default().with_scaler(&mut scaler).with_clip(clip);
        ddp.step_with(&mut optimizer, 0.1, gradients, options).unwrap()
    } else {
        let gradients = scaler.unscale(gradients).unwrap();
        let clipped = gradients.map(|gradients| gradients.clip(clip).unwrap());
        let step = clipped.map(|clipped| ddp.step(&mut optimizer, 0.1, clipped).unwrap());
        step.is_some()
    };
    (stepped, bits(ddp.module()))
}

#[test]
fn a_step_with_options_is_its_parts_one_after_the_other() {
    // The second one overflows.
    for (scale, goes_through) in [(1000.0, true), (1e300, false)] {
        let in_one = on_ranks(2, |world| stepped(&world, scale, true));
        assert_same(&in_one);
        assert_eq!(in_one[0].0, goes_through);
        assert!(in_one == on_ranks(2, |world| stepped(&world, scale, false)));
    }
}
