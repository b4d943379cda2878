//! `torchrun --nproc_per_node=2 train.py`: a program that is its own launcher, and a rank where another
//! launcher has started it: `bonfire run`, torchrun, `srun`, `mpirun`, or variables set by hand.

use bonfire::prelude::*;
use bonfire::report::WeightedMean;
use burn::optim::{ModuleOptimizer, SgdConfig};
use tutorials::{ToyModel, batch};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let mut ddp = Ddp::new(ToyModel::new(&world.device()), &world)?; // rank 0's parameters everywhere
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut loader = Loader::new(&world, 64, 8).with_shuffle(0);
    for epoch in 0..10 {
        let mut mean = WeightedMean::new();
        for indices in loader.next_epoch() {
            let step = ddp.backward(|model| model.loss(batch(&indices, &device)))?;
            ddp.step(&mut optimizer, 0.1, step.gradients)?;
            mean.add(step.loss.value()?, indices.len());
        }
        let mean = mean.over_ranks(&world)?;
        if world.is_main() {
            println!("[epoch {epoch}] mean loss {mean:.4} on {} ranks", world.world_size());
        }
    }
    Ok(())
}
