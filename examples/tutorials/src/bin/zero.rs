//! ZeRO's stages: the ranks shard different parts, and the resulting parameters are equal.

use bonfire::config::Config;
use bonfire::prelude::*;
use bonfire::trainer::Data;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use tutorials::batch;

fn main() -> bonfire::Result<()> {
    // 5000 numbers: smaller parameters stay whole.
    let model: Linear = LinearConfig::new(10, 500).init(&Device::flex());
    for placement in ["replicated", "zero1", "zero2", "zero3"] {
        let placed = format!("placement={placement}");
        let words = ["batch.micro=8", "steps=20", "clip.norm=1.0", "report.every=1000", &placed];
        let config = Config::default().with_words(words)?;
        let digests = spawn(2, |world| {
            let device = world.device().autodiff();
            let data = Data::new(64, move |indices| batch(indices, &device).0);
            let mut trainer = prepare(&world, &config, (model.clone(), data))?;
            while let Some(x) = trainer.next_batch()? {
                trainer.step(x, |model, x| (model.forward(x) - 1.0).powi_scalar(2).mean())?;
            }
            Ok::<_, bonfire::Error>(trainer.ddp().digest()?.to_string())
        })?;
        println!("{placement}: parameters {}", digests[0]);
    }
    Ok(())
}
