//! A model whose parts lie on a device, in host memory and in its file: the listing of the chapter on that.

use bonfire::weights::device_map::{Budgets, Inference};
use bonfire::weights::{Dispatch, WeightsFile, device_of, infer};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

// ANCHOR: model
#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
}

#[derive(Module, Debug)]
struct Block {
    inner: Linear,
    outer: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let block = |_| Block {
            inner: LinearConfig::new(64, 256).init(device),
            outer: LinearConfig::new(256, 64).init(device),
        };
        Self { blocks: (0..6).map(block).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| {
            // To where this block computes, and back into the residual stream.
            let x = x.to_device(&device_of(&block.inner.weight));
            x.clone() + block.outer.forward(block.inner.forward(x))
        })
    }
}
// ANCHOR_END: model

fn main() -> anyhow::Result<()> {
    let path = std::env::args_os().nth(1).unwrap_or_default();
    run(WeightsFile::new(path))
}

// ANCHOR: load
fn run(file: WeightsFile) -> anyhow::Result<()> {
    let device = Device::flex();
    // Nothing is initialised yet.
    let model = Model::new(&device);
    let budgets = Budgets::new([("0", "400KiB"), ("cpu", "400KiB")])?;
    let inference = Inference::new(budgets).with_no_split(["Block"]);
    let inferred = infer(&model, &inference)?;
    print!("{}", inferred.map);
    let dispatch = Dispatch::new(inferred.map, [device.clone()])?;
    // Blocks of device 0 and of host memory are read; the others stay in the file.
    let (model, report) = dispatch.load(model, &file)?;
    let y = model.forward(Tensor::ones([1, 64], &device));
    println!("{}\nanswer {:.4}", report.summary(), y.sum().into_scalar::<f32>());
    Ok(())
}
// ANCHOR_END: load
