//! Trains a model of which each rank holds a part, then goes on in another placement. Its first argument is a folder
//! for checkpoints.

use bonfire::checkpoint::Milestone;
use bonfire::ddp::StepOptions;
use bonfire::optim::{AdamWConfig, DeferredScale};
use bonfire::prelude::*;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Distribution, Tensor};

fn main() -> bonfire::Result<()> {
    bonfire::launch(both)
}

fn both(world: World) -> bonfire::Result<()> {
    let first = train(&world, Placement::zero3(), 0..10)?;
    let last = train(&world, Placement::zero1(), 10..400)?;
    println!("rank {}: loss {first:.3}, then loss {last:.6}", world.rank());
    Ok(())
}

fn train(world: &World, placement: Placement, steps: std::ops::Range<u64>) -> bonfire::Result<f64> {
    let device = world.device().autodiff();
    let folder = std::env::args_os().nth(1).unwrap_or_default();
    let model: Linear = LinearConfig::new(512, 4).init(&device);
    // ANCHOR: factor
    let deferred = DeferredScale::default();
    let adamw = AdamWConfig::new().build();
    let mut optimizer = ModuleOptimizer::from(adamw.with_deferred_scale(deferred.clone()));
    // ANCHOR_END: factor
    // ANCHOR: placement
    let config = DdpConfig::default().with_placement(placement);
    let mut ddp = Ddp::with_config(model, world, config)?;
    // ANCHOR_END: placement
    let checkpoints = Checkpoints::open(world, folder, Keep::default())?;
    checkpoints.resume::<_, ()>(&mut ddp, &mut optimizer)?;
    let mut loss = f64::NAN;
    for _ in steps.clone() {
        let x = Tensor::<2>::random([16, 512], Distribution::Default, &device);
        let step = ddp.backward(|model| (model.forward(x) - 2.0).powi_scalar(2).mean())?;
        // ANCHOR: folded
        let options =
            StepOptions::default().with_clip(Clip::Norm(1.0)).with_deferred_scale(&deferred);
        ddp.step_with(&mut optimizer, 0.003, step.gradients, options)?;
        // ANCHOR_END: folded
        loss = step.loss.over_ranks(world)?;
    }
    // ANCHOR: save
    let milestone = Milestone { step: steps.end, metric: None };
    checkpoints.save_in_background(milestone, &mut ddp, &optimizer, &())?;
    // Goes on meanwhile.
    let whole: Linear = ddp.whole()?;
    checkpoints.wait()?;
    // ANCHOR_END: save
    assert_eq!(whole.weight.dims(), [512, 4]);
    Ok(loss)
}
