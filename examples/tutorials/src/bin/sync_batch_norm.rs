//! `SyncBatchNorm.convert_sync_batchnorm` and frozen layers: `--sync-bn`, `--freeze`.

use bonfire::ddp::freeze_all_but;
use bonfire::nn::{BatchNorm, BatchNormConfig, convert_sync_batch_norm};
use bonfire::prelude::*;
use burn::module::Module;
use burn::optim::{ModuleOptimizer, SgdConfig};
use clap::Parser;
use tutorials::{ToyModel, batch};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,
    /// Batch norm over the batches of all ranks
    #[arg(long)]
    sync_bn: bool,
    /// Train the batch norm only
    #[arg(long)]
    freeze: bool,
}

#[derive(Module, Debug)]
struct Model {
    norm: BatchNorm, // of Bonfire, with the parameters and the records of Burn's
    body: ToyModel,
}

fn main() -> bonfire::Result<()> {
    let args = Args::parse();
    bonfire::launch_with(&args.launch, |world| train(&world, &args))
}

fn train(world: &World, args: &Args) -> bonfire::Result<()> {
    let (norm, body) = (BatchNormConfig::new(10), ToyModel::new(&world.device()));
    let mut model = Model { norm: norm.init(&world.device()), body };
    if args.freeze {
        (model, _) = freeze_all_but(model, &["norm.*"])?;
    }
    if args.sync_bn {
        model = convert_sync_batch_norm(model, world)?;
    }
    let mut ddp = Ddp::new(model, world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    // Rank r has the samples from 8 r: without --sync-bn each rank has its own statistics.
    let own: Vec<usize> = (0..8).map(|sample| sample + 8 * world.rank().index()).collect();
    let mut losses = Vec::new();
    for _ in 0..40 {
        let (x, y) = batch(&own, &world.device().autodiff());
        let step = ddp.backward(|model| model.body.loss((model.norm.forward(x), y)))?;
        losses.push(step.loss.over_ranks(world)?);
        ddp.step(&mut optimizer, 0.1, step.gradients)?;
    }
    if world.is_main() {
        println!("mean loss {:.4}, at first {:.4}", losses[39], losses[0]);
    }
    Ok(())
}
