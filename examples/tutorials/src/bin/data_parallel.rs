//! `nn.DataParallel` and `DistributedDataParallel` side by side: the same batch of 30, cut into halves by one process
//! for its two devices, or dealt to two ranks.

use bonfire::ddp::DataParallel;
use bonfire::prelude::*;
use burn::module::Module;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use tutorials::{ToyModel, batch};

fn main() -> bonfire::Result<()> {
    let device = Device::flex();
    let model = ToyModel::new(&device);
    let all: Vec<usize> = (0..30).collect();

    let mut dp = DataParallel::new(model.clone(), vec![device.clone(), device.clone()]);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..50 {
        let gradients = dp.backward(&batch(&all, &device), |model, part| model.loss(part))?;
        dp.step(&mut optimizer, 0.1, gradients);
    }
    let loss = |model: &ToyModel| {
        model
            .valid()
            .loss(batch(&all, &device))
            .into_scalar::<f32>()
    };
    let by_devices = loss(dp.module());

    let by_ranks = spawn(2, |world| {
        let mut ddp = Ddp::new(model.clone(), &world)?;
        let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
        let (first, second) = all.split_at(15);
        let own = [first, second][world.rank().index()];
        for _ in 0..50 {
            let own = batch(own, &world.device().autodiff());
            let step = ddp.backward(|model| model.loss(own))?;
            ddp.step(&mut optimizer, 0.1, step.gradients)?;
        }
        Ok::<_, bonfire::Error>(loss(ddp.module()))
    })?;
    println!(
        "loss {by_devices:.5} by devices, {:.5} by ranks",
        by_ranks[0]
    );
    Ok(())
}
