//! A training that keeps account of itself.

// ANCHOR: imports
use std::num::NonZeroUsize;

use bonfire::optim::{Decay, GlobalBatch, RateRule, Schedule};
// ANCHOR_END: imports
use bonfire::prelude::*;
use bonfire::report::{Activity, Journal, JournalConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

/// Points on a line.
fn batch(device: &Device) -> (Tensor<2>, Tensor<2>) {
    let x = Tensor::random([BATCH.get(), 1], Distribution::Default, device);
    (x.clone(), x * 3.0 + 1.0)
}

// ANCHOR: rate
const BATCH: NonZeroUsize = NonZeroUsize::new(16).unwrap();
const REFERENCE: NonZeroUsize = NonZeroUsize::new(32).unwrap();

/// Scales 0.3, the best rate for batches of 32 on one device, to all ranks.
fn learning_rate(world: &World) -> f64 {
    let batch = GlobalBatch {
        world_size: world.world_size(),
        batch_size: BATCH,
        accumulation: NonZeroUsize::MIN,
    };
    let rule = RateRule::Linear { reference: REFERENCE };
    0.3 * rule.factor(batch)
}
// ANCHOR_END: rate

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let model: Linear = LinearConfig::new(1, 1).init(&device);
    let mut ddp = Ddp::new(model, &world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    // ANCHOR: schedule
    // Up to the rate in 20 steps, and down to a tenth of it in the 180 after them.
    let decay = Decay::Cosine { steps: 180, final_factor: 0.1 };
    let schedule = Schedule::constant(learning_rate(&world)).with_warmup(20).with_decay(decay);
    // ANCHOR_END: schedule
    let folder = std::env::temp_dir().join(format!("bonfire-journal-{}", std::process::id()));
    // ANCHOR: loop
    let config = JournalConfig::new("A line through points", 200)
        .with_samples_per_step(BATCH.get() * world.world_size().len(), "points")
        .with_folder(&folder);
    let mut journal = Journal::new(&world, config)?;
    for step in 1..=200 {
        let rate = schedule.rate(step - 1);
        let (x, y) = journal.time(Activity::Data, || batch(&device));
        let done = ddp.backward(|model| (model.forward(x) - y).powi_scalar(2).mean())?;
        journal.step(&done);
        journal.time(Activity::Optimizer, || ddp.step(&mut optimizer, rate, done.gradients))?;
        if step % 50 == 0 {
            journal.figures(Some(rate))?;
        }
    }
    let report = journal.close()?.with_fact("optimizer", "SGD");
    if world.is_main() {
        report.write(&folder)?;
        println!("{report}\nthe curves are in {}", folder.join("report.html").display());
    }
    // ANCHOR_END: loop
    Ok(())
}
