//! `nn.DataParallel` as in its tutorial, beside `DistributedDataParallel`: a batch of 30 is cut into halves by one
//! process for its two devices, or distributed to two ranks.

use bonfire::ddp::DataParallel;
use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};
use tutorials::{ToyModel, batch};

fn main() -> bonfire::Result<()> {
    let devices = vec![Device::flex(), Device::flex()];
    sizes(devices.clone())?;
    losses(devices)
}

fn sizes(devices: Vec<Device>) -> bonfire::Result<()> {
    let model: Linear = LinearConfig::new(5, 2).init(&devices[0]);
    let dataset = Tensor::<2>::random([100, 5], Distribution::Normal(0.0, 1.0), &devices[0]);
    let dp = DataParallel::new(model, devices);
    for input in dataset.split(30, 0) {
        let size = input.dims();
        let output = dp.forward(&input, |model, input| {
            let size = input.dims();
            let output = model.forward(input);
            println!("\tIn Model: input size {size:?} output size {:?}", output.dims());
            output
        })?;
        println!("Outside: input size {size:?} output_size {:?}", output.dims());
    }
    Ok(())
}

/// Trains in three ways: with a loss of the gathered output, with a loss of each replica, and on ranks.
fn losses(devices: Vec<Device>) -> bonfire::Result<()> {
    let model = ToyModel::new(&devices[0]);
    let all: Vec<usize> = (0..30).collect();
    let (x, y) = batch(&all, &devices[0]);
    let pair = (x.clone(), y.clone());
    let loss = |model: &ToyModel| model.valid().loss(pair.clone()).into_scalar::<f32>();
    let sgd = || -> ModuleOptimizer { SgdConfig::new().init() };

    let (mut dp, mut optimizer) = (DataParallel::new(model.clone(), devices.clone()), sgd());
    for _ in 0..50 {
        let output = dp.forward(&x, |model, x| model.forward(x))?;
        let loss = (output - y.clone()).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), dp.module());
        dp.step(&mut optimizer, 0.1, gradients);
    }
    let by_outputs = loss(dp.module());

    let (mut dp, mut optimizer) = (DataParallel::new(model.clone(), devices), sgd());
    for _ in 0..50 {
        let gradients = dp.backward(&pair, |model, part| model.loss(part))?;
        dp.step(&mut optimizer, 0.1, gradients);
    }
    let by_devices = loss(dp.module());

    let by_ranks = spawn(2, |world| {
        let (mut ddp, mut optimizer) = (Ddp::new(model.clone(), &world)?, sgd());
        let own = all.chunks(15).nth(world.rank().index()).expect("two ranks");
        for _ in 0..50 {
            let own = batch(own, &world.device().autodiff());
            let step = ddp.backward(|model| model.loss(own))?;
            ddp.step(&mut optimizer, 0.1, step.gradients)?;
        }
        Ok::<_, bonfire::Error>(loss(ddp.module()))
    })?[0];
    println!("loss {by_outputs:.5} by outputs, {by_devices:.5} by devices, {by_ranks:.5} by ranks");
    Ok(())
}
