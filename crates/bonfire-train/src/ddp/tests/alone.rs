//! A rank that has nobody to average with.

use super::*;
use crate::reducer::trace::Event;

const SAMPLES: [usize; 3] = [0, 1, 2];

/// What Burn alone makes of the samples.
fn plain(model: &Mlp) -> Vec<Option<Vec<f32>>> {
    let gradients = model.loss(&SAMPLES).backward();
    gradient_values(model, &GradientsParams::from_grads(gradients, model))
}

fn lone(body: impl Fn(&mut Ddp<Mlp>) + Sync) {
    on_ranks(1, |world| {
        let model = Mlp::new(1, &world.device());
        body(&mut Ddp::with_config(model, &world, small_buckets()).unwrap());
    });
}

#[test]
fn a_lone_rank_has_the_gradients_of_burn_and_fills_no_bucket() {
    lone(|ddp| {
        for weighted in [false, true] {
            let gradients = ddp.backward(|model| {
                let loss = model.loss(&SAMPLES);
                let samples = if weighted { SAMPLES.len() } else { 1 };
                Loss::mean_over(loss, samples)
            });
            let own = gradient_values(ddp.module(), &gradients.unwrap().gradients);
            assert_eq!(own, plain(ddp.module()));
            assert!(own.iter().all(Option::is_some));
            assert_eq!(ddp.trace().events(), []);
            assert!(!has_bucket_memory(ddp));
        }
    });
}

#[test]
fn a_lone_rank_adds_up_micro_batches() {
    lone(|ddp| {
        for _ in 0..2 {
            ddp.no_sync(|model: &Mlp| model.loss(&SAMPLES)).unwrap();
            assert!(has_bucket_memory(ddp));
            let gradients = ddp.backward(|model: &Mlp| model.loss(&SAMPLES));
            let mean = gradient_values(ddp.module(), &gradients.unwrap().gradients);
            // The mean of a gradient and itself.
            assert_eq!(mean, plain(ddp.module()));
            let sent = |event: &Event| matches!(event, Event::Sent { .. });
            assert!(ddp.trace().events().iter().any(sent));
            // The next step has one batch alone.
            let gradients = ddp.backward(|model: &Mlp| model.loss(&SAMPLES));
            let own = gradient_values(ddp.module(), &gradients.unwrap().gradients);
            assert_eq!(own, plain(ddp.module()));
        }
    });
}

#[test]
fn a_lone_rank_without_samples_has_no_mean() {
    lone(|ddp| {
        let none = ddp.backward(|model: &Mlp| Loss::mean_over(model.loss(&SAMPLES), 0));
        assert!(matches!(none, Err(TrainError::NoSamples)), "{none:?}");
    });
}

#[test]
fn a_lone_rank_has_gradients_of_what_the_loss_depends_on_alone() {
    lone(|ddp| {
        let gradients = ddp.backward(|model: &Mlp| {
            let (x, _) = samples(&SAMPLES, &Device::flex());
            model.first.forward(x).mean()
        });
        let own = gradient_values(ddp.module(), &gradients.unwrap().gradients);
        let present: Vec<bool> = own.iter().map(Option::is_some).collect();
        assert_eq!(present, [true, true, false, false, false, false]);
        let constant = ddp.backward(|_: &Mlp| Tensor::<1>::ones([1], &Device::flex()));
        let none = gradient_values(ddp.module(), &constant.unwrap().gradients);
        assert!(none.iter().all(Option::is_none));
    });
}
