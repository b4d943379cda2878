//! Parameters that some ranks, or all, do without.

use super::*;

/// A layer for every rank, one for nobody, and one for all.
#[derive(Module, Debug)]
struct Experts {
    shared: Linear,
    experts: Vec<Linear>,
    nobodys: Linear,
}

impl Experts {
    fn new(ranks: usize, device: &Device) -> Self {
        let layer = || LinearConfig::new(INPUTS, INPUTS).init(device);
        let model = Self {
            shared: layer(),
            experts: (0..ranks).map(|_| layer()).collect(),
            nobodys: layer(),
        };
        seeded(model, 3)
    }

    /// Uses the experts in turn, so that rank and step decide.
    fn loss(&self, expert: usize, indices: &[usize]) -> Tensor<1> {
        let (x, _) = samples(indices, &self.shared.weight.device());
        let expert = &self.experts[expert % self.experts.len()];
        expert.forward(self.shared.forward(x)).powi_scalar(2).mean()
    }
}

fn train_experts(averaging: Averaging, ranks: u32) -> Vec<(Bits, bool)> {
    on_ranks(ranks, |world| {
        let model = Experts::new(world.world_size().len(), &world.device());
        let mut ddp = Averager::new(model, &world, averaging.clone());
        let mut optimizer = AdamWConfig::new().init();
        let mut nobodys_had_gradient = false;
        for step in 0..8 {
            let indices = share(&world, step, 2);
            let expert = world.rank().index() + step;
            let gradients = ddp.backward(|model| model.loss(expert, &indices)).unwrap().gradients;
            let nobodys = &ddp.module().nobodys.weight;
            nobodys_had_gradient |= gradients.get(nobodys).is_some();
            ddp.step(&mut optimizer, 0.01, gradients).unwrap();
        }
        (bits(ddp.module()), nobodys_had_gradient)
    })
}

#[test]
fn a_parameter_of_one_rank_and_a_parameter_of_nobody_keep_replicas_identical() {
    for ranks in [2, 3] {
        let models = train_experts(small_buckets().into(), ranks);
        assert_same(&models);
        assert_eq!(models, train_experts(Averaging::per_parameter(DdpConfig::default()), ranks));
        assert!(!models[0].1, "a parameter without a gradient anywhere gets none");
    }
}

#[test]
fn a_gradient_of_one_rank_counts_as_zero_on_the_others() {
    let gradients = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Experts::new(2, &world.device()), &world).unwrap();
        let alone = ddp.module().loss(0, &[5]);
        let alone = GradientsParams::from_grads(alone.backward(), ddp.module());
        let alone: Option<Tensor<1>> = alone.get(bias(&ddp, 0).id);
        let step = ddp.backward(|model| model.loss(world.rank().index(), &[5])).unwrap();
        let mean: Option<Tensor<1>> = step.gradients.get(bias(&ddp, 0));
        [mean.unwrap(), alone.unwrap()].map(|t| t.into_data().try_to_vec::<f32>().unwrap())
    });
    for [mean, alone] in &gradients {
        let half: Vec<f32> = alone.iter().map(|value| value / 2.0).collect();
        assert_eq!(*mean, half);
    }
}

fn bias(ddp: &Ddp<Experts>, expert: usize) -> &Param<Tensor<1>> {
    ddp.module().experts[expert].bias.as_ref().unwrap()
}

#[test]
fn a_loss_without_any_parameter_on_one_rank_is_no_hang() {
    let config = small_buckets();
    let models = on_ranks(2, |world| {
        let device = world.device();
        let mut ddp = Ddp::with_config(Mlp::new(1, &device), &world, config.clone()).unwrap();
        for step in 0..3 {
            let indices = share(&world, step, 2);
            descend(&mut ddp, 0.05, |model| {
                if world.is_main() { model.loss(&indices) } else { Tensor::zeros([1], &device) }
            });
        }
        bits(ddp.module())
    });
    assert_same(&models);
}

/// Uses its layer once or twice.
fn recurrent_loss(layer: &Linear, times: usize, indices: &[usize], device: &Device) -> Tensor<1> {
    let (mut x, _) = samples(indices, device);
    for _ in 0..times {
        x = layer.forward(x);
    }
    x.powi_scalar(2).mean()
}

/// A layer that is used once in the first steps and more often later, on one rank or all: its
/// gradient travels too early then, and must travel again.
#[test]
fn a_parameter_that_is_suddenly_used_more_often_still_gets_its_whole_gradient() {
    let times = |world: &World, step: usize| match step {
        0 | 1 => 1,
        2 => 1 + world.rank().index(),
        _ => 1 + step % 3,
    };
    let with = |averaging: Averaging| {
        on_ranks(3, |world| {
            let device = world.device();
            let layer = seeded(LinearConfig::new(INPUTS, INPUTS).init(&device), 9);
            let mut ddp = Averager::new(layer, &world, averaging.clone());
            let mut seen = Vec::new();
            for step in 0..7 {
                let indices = share(&world, step, 2);
                let times = times(&world, step);
                let loss = |layer: &Linear| recurrent_loss(layer, times, &indices, &device);
                let gradients = ddp.backward(loss).unwrap().gradients;
                seen.push(gradient_values(ddp.module(), &gradients));
                ddp.step(&mut sgd(), 0.05, gradients).unwrap();
            }
            seen
        })
    };
    let reference = with(Averaging::per_parameter(DdpConfig::default()));
    assert_same(&reference);
    for bucket_bytes_max in [1, 25 << 20] {
        let config = DdpConfig { bucket_bytes_max, ..DdpConfig::default() };
        assert_eq!(with(config.into()), reference);
    }
}
