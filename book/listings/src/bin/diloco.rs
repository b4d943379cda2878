//! Two workers of one rank each, which exchange parameters every 50 steps.

use std::num::NonZeroU64;

use bonfire::diloco::{Diloco, DilocoConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Distribution, Tensor};

fn main() -> anyhow::Result<()> {
    bonfire::launch(|world| -> anyhow::Result<()> {
        let device = world.device().autodiff();
        let model: Linear = LinearConfig::new(8, 1).init(&device);
        // ANCHOR: train
        let mesh = world.mesh("dp_replicate=-1")?;
        let every = NonZeroU64::new(50).expect("not zero");
        let config = DilocoConfig::default().with_local_steps(every);
        let (mut diloco, mut model) = Diloco::new(model, &mesh, config)?;
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        for _ in 0..600 {
            let batch = Tensor::<2>::random([32, 8], Distribution::Default, &device);
            let wanted = batch.clone().sum_dim(1);
            let loss = (model.forward(batch) - wanted).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(2e-2, model, gradients);
            model = diloco.step(model)?;
        }
        let model = diloco.finish(model)?;
        // ANCHOR_END: train
        if world.is_main() {
            let batch = Tensor::<2>::random([256, 8], Distribution::Default, &device);
            let loss = (model.forward(batch.clone()) - batch.sum_dim(1)).powi_scalar(2).mean();
            println!("loss {}", loss.into_scalar::<f32>());
        }
        Ok(())
    })?;
    Ok(())
}
