//! A rank that has nobody to average with.

use super::*;
use crate::reducer::trace::Event;

const SAMPLES: [usize; 3] = [0, 1, 2];

/// What Burn alone makes of the samples.
fn plain(model: &Mlp, device: &Device) -> Vec<Option<Vec<f32>>> {
    let gradients = model.loss(&SAMPLES, device).backward();
    gradient_values(model, &GradientsParams::from_grads(gradients, model))
}

fn lone<R: Send>(body: impl Fn(&mut Ddp<Mlp>, &Device) -> R + Sync) -> R {
    let ended = on_ranks(1, |world| {
        let device = world.device();
        let mut ddp = Ddp::with_config(Mlp::new(1, &device), &world, small_buckets()).unwrap();
        body(&mut ddp, &device)
    });
    ended.into_iter().next().unwrap()
}

#[test]
fn a_lone_rank_has_the_gradients_of_burn_and_fills_no_bucket() {
    lone(|ddp, device| {
        for weighted in [false, true] {
            let gradients = ddp.backward(|model| {
                let loss = model.loss(&SAMPLES, device);
                let samples = if weighted { SAMPLES.len() } else { 1 };
                Loss::mean_over(loss, samples)
            });
            let own = gradient_values(ddp.module(), &gradients.unwrap().gradients);
            assert_eq!(own, plain(ddp.module(), device));
            assert!(own.iter().all(Option::is_some));
            assert_eq!(ddp.trace().events(), []);
            assert!(!has_bucket_memory(ddp));
        }
    });
}

#[test]
fn a_lone_rank_adds_up_micro_batches() {
    lone(|ddp, device| {
        for _ in 0..2 {
            ddp.no_sync(|model: &Mlp| model.loss(&SAMPLES, device)).unwrap();
            assert!(has_bucket_memory(ddp));
            let gradients = ddp.backward(|model: &Mlp| model.loss(&SAMPLES, device));
            let mean = gradient_values(ddp.module(), &gradients.unwrap().gradients);
            // The mean of a gradient and itself.
            assert_eq!(mean, plain(ddp.module(), device));
            let sent = |event: &Event| matches!(event, Event::Sent { .. });
            assert!(ddp.trace().events().iter().any(sent));
            // The next step has one batch alone.
            let gradients = ddp.backward(|model: &Mlp| model.loss(&SAMPLES, device));
            let own = gradient_values(ddp.module(), &gradients.unwrap().gradients);
            assert_eq!(own, plain(ddp.module(), device));
        }
    });
}

#[test]
fn a_lone_rank_without_samples_has_no_mean() {
    lone(|ddp, device| {
        let none = ddp.backward(|model: &Mlp| Loss::mean_over(model.loss(&SAMPLES, device), 0));
        assert!(matches!(none, Err(TrainError::NoSamples)), "{none:?}");
    });
}

#[test]
fn a_lone_rank_has_gradients_of_what_the_loss_depends_on_alone() {
    lone(|ddp, device| {
        let gradients = ddp.backward(|model: &Mlp| {
            let (x, _) = samples(&SAMPLES, device);
            model.first.forward(x).mean()
        });
        let own = gradient_values(ddp.module(), &gradients.unwrap().gradients);
        let present: Vec<bool> = own.iter().map(Option::is_some).collect();
        assert_eq!(present, [true, true, false, false, false, false]);
        let constant = ddp.backward(|_: &Mlp| Tensor::<1>::ones([1], device));
        let none = gradient_values(ddp.module(), &constant.unwrap().gradients);
        assert!(none.iter().all(Option::is_none));
    });
}
