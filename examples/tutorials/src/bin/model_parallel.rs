//! The naive model parallel of the tutorials: each layer on a device of its own, as a device map says, and what is
//! between them moves. With the feature `wgpu` or `cuda` the second layer is on a GPU; else both are on the CPU.

use bonfire::weights::Dispatch;
use bonfire::weights::device_map::DeviceMap;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::Device;
use tutorials::{ToyModel, batch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let first = Device::flex();
    let second = match cfg!(any(feature = "wgpu", feature = "cuda")) {
        true => Device::default(),
        false => Device::flex(),
    };
    let map = DeviceMap::new([("first", "0"), ("second", "1")])?;
    let dispatch = Dispatch::new(map, [first.clone(), second])?;
    let mut model = dispatch.apply(ToyModel::new(&first))?.train();
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let all: Vec<usize> = (0..20).collect();
    let mut losses = Vec::new();
    for _ in 0..60 {
        let loss = model.loss(batch(&all, &first.clone().autodiff()));
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.1, model, gradients);
    }
    println!("loss {:.4}, at first {:.4}", losses[59], losses[0]);
    Ok(())
}
