//! Tensors that the loss depends on and that are no parameters of the model.

use super::*;

/// What a step says whose loss has another model's output in it.
fn with_another(use_other: impl Fn(Mlp) -> Mlp + Sync) -> Result<(), String> {
    let ended = on_ranks(1, |world| {
        let device = world.device();
        let mut ddp = Ddp::new(Mlp::new(1, &device), &world).unwrap();
        let other = use_other(Mlp::new(2, &device).train());
        let loss = |model: &Mlp| {
            let (x, y) = samples(&[1, 2], &device);
            // The inputs' own gradient is the program's business.
            let x = x.autodiff().require_grad();
            (model.forward(x.clone()) + other.forward(x) - y).square().mean()
        };
        let step = ddp.backward(loss).map(drop);
        step.map_err(|error| error.to_string())
    });
    ended.into_iter().next().unwrap()
}

#[test]
fn a_second_trainable_model_in_the_closure_is_an_error() {
    let error = with_another(|other| other).unwrap_err();
    // Three layers with two parameters each.
    assert!(error.starts_with("6 gradients"), "{error}");
    assert!(error.contains("no_grad()"), "{error}");
}

#[test]
fn a_second_model_that_is_not_trained_is_none() {
    with_another(Module::no_grad).unwrap();
    with_another(|other| other.valid().train().no_grad()).unwrap();
}

#[test]
fn so_is_what_an_older_pass_of_another_model_computed() {
    for config in [small_buckets(), DdpConfig::default()] {
        let errors = on_ranks(2, |world| {
            let device = world.device();
            let mut ddp = Ddp::with_config(Mlp::new(1, &device), &world, config.clone()).unwrap();
            let other = Mlp::new(2, &device).train();
            let features = other.forward(samples(&[3], &device).0).mean();
            // All is well without it, also when the anchors are in their places.
            for step in 0..3 {
                let indices = share(&world, step, 2);
                ddp.no_sync(|model| model.loss(&indices)).unwrap();
                ddp.backward(|model| model.loss(&indices)).unwrap();
            }
            ddp.no_sync(|model| model.loss(&[1]) * features).unwrap_err()
        });
        for error in errors {
            let known = matches!(
                error,
                TrainError::ForeignGradients { .. }
                    | TrainError::Collective(CollectiveError::PeerFailed { .. })
            );
            assert!(known, "{error}");
        }
    }
}

#[test]
fn the_model_itself_used_from_outside_the_closure_is_an_error() {
    let errors = on_ranks(1, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let outside = ddp.module().clone();
        let both = |model: &Mlp| model.loss(&[1]) + outside.loss(&[2]);
        ddp.backward(both).unwrap_err().to_string()
    });
    assert!(errors[0].starts_with("6 gradients"), "{}", errors[0]);
}
