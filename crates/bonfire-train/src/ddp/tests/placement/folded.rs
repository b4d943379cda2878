//! Factors that optimizers take give the bits of gradients that are multiplied before.

use bonfire_optim::{DeferredScale, LionConfig, ScalerConfig};

use super::*;
use crate::{LossScaler, StepOptions};

/// Two groups with one handle, if there is one.
fn folding_optimizer(factor: Option<&DeferredScale>) -> ModuleOptimizer {
    let first = ParamGroup::from_predicate("first");
    let lion = LionConfig::new().build();
    let adamw = bonfire_optim::AdamWConfig::new().build();
    ModuleOptimizer::from(adamw.with_deferred_scale(factor.cloned())).with_group(
        first,
        lion.with_deferred_scale(factor.cloned()),
        None,
    )
}

/// Some clipped steps with a scaled loss, and the gradient of a parameter in the last.
fn folded(world: &World, config: DdpConfig, is_folded: bool) -> (Bits, Vec<f32>) {
    let factor = is_folded.then(DeferredScale::default);
    let mut optimizer = folding_optimizer(factor.as_ref());
    let mut ddp = Ddp::with_config(Uneven::new(&world.device()), world, config).unwrap();
    // No power of two: products are rounded.
    let mut scaler = LossScaler::new(ScalerConfig::default().with_initial(1000.0));
    let mut gradient = Vec::new();
    for step in 0..5 {
        let indices = share(world, 100 * step, 2);
        let done = ddp.backward(|model| scaler.scale(model.loss(&indices)));
        let gradients = scaler.unscale(done.unwrap().gradients).unwrap().unwrap();
        // Some steps are not clipped.
        let norm_max = [0.1, f32::MAX][step % 2];
        let gradients = gradients.clip(Clip::Norm(norm_max)).unwrap();
        let gradients = gradients.defer_scale(factor.as_ref());
        let bias = &ddp.module().second.bias;
        gradient = gradients.get(bias.as_ref().unwrap()).unwrap().to_data().try_to_vec().unwrap();
        ddp.step(&mut optimizer, 0.01, gradients).unwrap();
    }
    (bits(&ddp.whole().unwrap()), gradient)
}

#[test]
fn folded_factors_train_to_the_bits_of_multiplied_gradients() {
    for ranks in [1, 3] {
        for placement in [Placement::replicated()].into_iter().chain(SHARDED) {
            let with =
                |is_folded| on_ranks(ranks, |world| folded(&world, placed(placement), is_folded));
            assert!(with(true) == with(false), "{placement} on {ranks} ranks");
        }
    }
}

/// What the ranks say of a folded step.
fn refused(
    placement: Placement,
    make: impl Fn(ModuleOptimizer) -> ModuleOptimizer + Sync,
) -> Vec<String> {
    on_ranks(2, |world| {
        let factor = DeferredScale::default();
        let mut optimizer = make(folding_optimizer(Some(&factor)));
        let model = Uneven::new(&world.device());
        let mut ddp = Ddp::with_config(model, &world, placed(placement)).unwrap();
        let indices = share(&world, 0, 2);
        let done = ddp.backward(|model| model.loss(&indices));
        // The other rank may have heard already.
        let stepped = done.and_then(|done| {
            let options = StepOptions::default().with_deferred_scale(&factor);
            ddp.step_with(&mut optimizer, 0.01, done.gradients, options)
        });
        stepped.unwrap_err().to_string()
    })
}

#[test]
fn an_optimizer_without_the_handle_is_refused_and_so_is_clipping_of_its_own() {
    let first = || ParamGroup::from_predicate("first");
    for placement in [Placement::replicated()].into_iter().chain(SHARDED) {
        let other = || SgdConfig::new().build();
        let errors = refused(placement, |optimizer| optimizer.with_group(first(), other(), None));
        assert_each_says(errors, &["the optimizers multiplied only"]);
    }
    let clipping = || GradientClippingConfig::Norm(1.0).init();
    let errors =
        refused(Placement::replicated(), |optimizer| optimizer.with_grad_clipping(clipping()));
    assert_each_says(errors, &["only 0 of 8"]);
}
