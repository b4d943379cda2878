//! Starts from parameters in a file and trains the rest: the listing of the chapter on that.

// ANCHOR: names
use bonfire::ddp::freeze_all_but;
use bonfire::prelude::*;
use bonfire::weights::{WeightsFile, load_weights};
// ANCHOR_END: names
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            body: LinearConfig::new(4, 3).init(device),
            head: LinearConfig::new(3, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let scores = self.head.forward(self.body.forward(x));
        (scores - 1.0).powi_scalar(2).mean()
    }
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

// ANCHOR: train
fn train(world: World) -> anyhow::Result<()> {
    let device = world.device().autodiff();
    let path = std::env::args_os().nth(1).unwrap_or_default();
    let (model, report) = load_weights(Net::new(&device), WeightsFile::new(path), &world)?;
    let (model, frozen) = freeze_all_but(model, &["head.*"])?;
    if world.is_main() {
        println!("{report}\nfrozen: {}", frozen.join(", "));
    }
    let mut ddp = Ddp::new(model, &world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..3 {
        let x = Tensor::<2>::ones([8, 4], &device);
        let step = ddp.backward(|model| model.loss(x))?;
        ddp.step(&mut optimizer, 0.1, step.gradients)?;
    }
    Ok(())
}
// ANCHOR_END: train
