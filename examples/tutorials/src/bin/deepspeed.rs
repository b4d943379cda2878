//! DeepSpeed's engine form, with the tutorial's JSON as it is:
//! `deepspeed --nproc 2 --deepspeed --deepspeed_config ds_config.json`.

use bonfire::config::ConfigArgs;
use bonfire::nn::Recompute;
use bonfire::prelude::*;
use bonfire::trainer;
use bonfire::trainer::Data;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor};
use clap::Parser;
use tutorials::batch;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Wide enough for stage 3: parameters of fewer than 1024 numbers are not cut.
#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Linear>,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { blocks: vec![linear(10, 200), linear(200, 200)], last: linear(200, 5) }
    }

    /// The blocks are computed again in the backward pass, as with deepspeed.checkpointing.checkpoint.
    fn loss(&self, recompute: Recompute, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        let mut x = x.cast(self.last.weight.dtype());
        for block in &self.blocks {
            x = recompute.run(block, x, |block, x| relu(block.forward(x)));
        }
        let said = self.last.forward(x).cast(DType::F32);
        (said - y).powi_scalar(2).mean()
    }
}

fn main() -> bonfire::Result<()> {
    let args = Args::parse();
    let config = args.config.load()?;
    bonfire::launch_with(&args.launch, |world| {
        world.device().seed(1);
        let device = world.device().autodiff();
        let data = Data::new(64, move |indices| batch(indices, &device));
        let mut engine = prepare(&world, &config, (Net::new(&world.device()), data))?;
        let recompute = trainer::recompute(&config);
        while let Some(batch) = engine.next_batch()? {
            // engine(batch), engine.backward(loss), engine.step()
            let done = engine.step(batch, |model: &Net, batch| model.loss(recompute, batch))?;
            if let Some(step) = done.step.filter(|step| step.is_multiple_of(32)) {
                let loss = done.loss.over_ranks(&world)?;
                engine.note(&format!("step {step}: loss {loss:.4}"));
            }
        }
        let scale = engine.scaler().map_or(1.0, |scaler| scaler.scale_factor());
        let held = engine.ddp().parameters_held();
        engine.note(&format!("loss scale {scale}; rank 0 holds {held} numbers"));
        engine.finish().map(drop)
    })?;
    Ok(())
}
