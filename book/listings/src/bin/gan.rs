//! Two models that train against each other: a generator, whose numbers a critic tells from the data as long
//! as it can.

use bonfire::prelude::*;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Distribution, Tensor};

/// The mean of the data.
const MEAN: f64 = 3.0;

// ANCHOR: clip
/// Keeps every parameter within a distance of zero, as the critic of a Wasserstein GAN needs it.
struct Within(f32);

impl ModuleMapper for Within {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.clamp(-self.0, self.0))
    }
}
// ANCHOR_END: clip

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let linear = || -> Linear { LinearConfig::new(1, 1).init(&device) };
    // ANCHOR: train
    let mut generator = Ddp::new(linear(), &world)?;
    let mut critic = Ddp::new(linear(), &world)?;
    let sgd = || -> ModuleOptimizer { SgdConfig::new().init() };
    let (mut generator_sgd, mut critic_sgd) = (sgd(), sgd());
    for round in 0..1000 {
        world.seed_step(1, round);
        let random = |distribution| Tensor::<2>::random([64, 1], distribution, &device);
        let noise = || random(Distribution::Uniform(-1.0, 1.0));

        let real = random(Distribution::Normal(MEAN, 0.5));
        // For the critic, what the generator makes is data.
        let made = generator.module().forward(noise()).detach();
        let step =
            critic.backward(|critic| critic.forward(made).mean() - critic.forward(real).mean())?;
        critic.step(&mut critic_sgd, 1.0, step.gradients)?;
        critic.map_module(|model| model.map(&mut Within(1.0)))?;

        // For the generator, the critic is a function: it judges and does not learn.
        let judge = critic.module().clone().no_grad();
        let step = generator
            .backward(|generator| judge.forward(generator.forward(noise())).mean().neg())?;
        generator.step(&mut generator_sgd, 0.01, step.gradients)?;
    }
    // ANCHOR_END: train
    let bias = generator.module().bias.as_ref().expect("linear layers have one");
    let mean = bias.val().into_scalar::<f32>();
    println!("rank {}: mean {mean:.2}", world.rank());
    Ok(())
}
