//! What memory a training would take, in each placement.

use bonfire::collective::WorldSize;
use bonfire::config::Config;
use bonfire::plan::plan;
use bonfire::prelude::*;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

fn main() -> anyhow::Result<()> {
    let device = Device::flex().autodiff();
    let model: Linear = LinearConfig::new(1024, 4096).init(&device);
    // ANCHOR: plan
    let config = Config::default().with_words(["batch.micro=16", "placement=zero2"])?;
    let ranks = WorldSize::new(8)?;
    let training = plan(&model, &config, ranks, |model| {
        let batch = Tensor::<2>::ones([16, 1024], &device);
        model.forward(batch).powi_scalar(2).mean()
    })?;
    println!("{}", training.table(Placement::presets(), Some("16GiB".parse()?)));
    // ANCHOR_END: plan
    Ok(())
}
