//! Running statistics and the like, which forward passes change.

use burn::nn;

use super::*;
use crate::parameters::buffers::Buffers;
use crate::{BatchNorm, BatchNormConfig, BufferSync, Loss};

/// Both kinds of batch norm, a frozen parameter and a trained one.
#[derive(Module, Debug)]
struct Norms {
    own: BatchNorm,
    burns: nn::BatchNorm,
    frozen: Param<Tensor<1>>,
    trained: Param<Tensor<1>>,
}

const MOMENTUM: f64 = 0.5;

impl Norms {
    fn new(device: &Device) -> Self {
        let config = BatchNormConfig::new(1).with_momentum(MOMENTUM);
        let burns = nn::BatchNormConfig::new(1).with_momentum(MOMENTUM);
        let values = || TensorData::from([1.0_f32, 2.0]);
        Self {
            own: config.init(device),
            burns: burns.init(device),
            frozen: Param::from_data(values(), device).set_require_grad(false),
            trained: Param::from_data(values(), device),
        }
    }

    /// A batch whose mean is `mean`.
    fn loss(&self, mean: f32, device: &Device) -> Tensor<1> {
        let x = Tensor::<2>::from_floats([[mean - 1.0], [mean + 1.0]], device);
        let y = self.own.forward(x.clone()) + self.burns.forward(x);
        y.square().mean() + self.trained.val().square().mean()
    }

    fn means(&self) -> [f32; 2] {
        let own = self.own.running_mean.value().into_scalar::<f32>();
        let burns = self.burns.running_mean.value_sync().into_scalar::<f32>();
        [own, burns]
    }
}

/// Each rank's running means after two steps, whose batches have the mean 4 (rank + 1). The ranks of
/// `idle` have no batch in the second one.
fn trained(ranks: u32, buffers: BufferSync, idle: &[u32]) -> Vec<[f32; 2]> {
    on_ranks(ranks, |world| {
        let device = world.device().autodiff();
        let config = DdpConfig { buffers, ..DdpConfig::default() };
        let mut ddp = Ddp::with_config(Norms::new(&device), &world, config).unwrap();
        let mean = 4.0 * (world.rank().get() + 1) as f32;
        for step in 0..2 {
            let is_idle = step == 1 && idle.contains(&world.rank().get());
            descend(&mut ddp, 0.1, |model| {
                if is_idle {
                    return Loss::mean_over(Tensor::zeros([1], &device), 0);
                }
                Loss::mean_over(model.loss(mean, &device), 2)
            });
        }
        ddp.module().means()
    })
}

#[test]
fn statistics_are_found_and_frozen_parameters_are_not_among_them() {
    let model = Norms::new(&Device::flex()).train();
    let found = Buffers::of(&model);
    assert_eq!(found.len(), 4);
    assert!(!found.contains(model.frozen.id));
    assert!(!found.contains(model.trained.id));
    // Looking for them changed nothing.
    assert!(!model.frozen.is_require_grad());
    assert_eq!(model.means(), [0.0, 0.0]);
}

#[test]
fn by_default_those_of_rank_0_are_everybodys_after_each_step() {
    // From 0 half the way to 4, and again.
    assert_eq!(trained(3, BufferSync::default(), &[]), [[3.0; 2]; 3]);
    assert_eq!(trained(3, BufferSync::default(), &[2]), [[3.0; 2]; 3]);
}

#[test]
fn those_of_a_rank_without_data_are_nobodys() {
    // The second step is that of rank 1: from 2 half the way to 8.
    assert_eq!(trained(3, BufferSync::default(), &[0]), [[5.0; 2]; 3]);
    // After the first step 2, 4 and 6, so 4 on all; half the way to 8 and to 12.
    assert_eq!(trained(3, BufferSync::Mean, &[0]), [[7.0; 2]; 3]);
}

#[test]
fn a_mean_is_over_the_ranks_and_local_ones_stay_with_their_rank() {
    // After the first step 2 and 4, so 3 on both; half the way to 4 and to 8.
    assert_eq!(trained(2, BufferSync::Mean, &[]), [[4.5; 2]; 2]);
    assert_eq!(trained(2, BufferSync::Local, &[]), [[3.0; 2], [6.0; 2]]);
    for buffers in [BufferSync::Broadcast, BufferSync::Mean, BufferSync::Local] {
        assert_eq!(trained(1, buffers, &[]), [[3.0; 2]]);
    }
}

#[test]
fn losses_without_weights_agree_as_well() {
    let means = on_ranks(2, |world| {
        let device = world.device().autodiff();
        let mut ddp = Ddp::new(Norms::new(&device), &world).unwrap();
        let mean = world.rank().get() as f32 + 2.0;
        let _gradients = ddp.backward(|model| model.loss(mean, &device)).unwrap();
        ddp.module().means()
    });
    assert_eq!(means, [[1.0; 2]; 2]);
}

#[test]
fn ranks_that_start_from_clones_of_one_model_do_not_share_statistics() {
    let layer = BatchNormConfig::new(1).with_momentum(MOMENTUM);
    let model = layer.init(&Device::flex().autodiff());
    let means = on_ranks(3, |world| {
        let device = world.device();
        let config = DdpConfig { buffers: BufferSync::Local, ..DdpConfig::default() };
        let mut ddp = Ddp::with_config(model.clone(), &world, config).unwrap();
        let mean = world.rank().get() as f32;
        let x = Tensor::<2>::from_floats([[mean - 1.0], [mean + 1.0]], &device.autodiff());
        let _gradients = ddp.backward(|model| model.forward(x).square().mean());
        ddp.module().running_mean.value().into_scalar::<f32>()
    });
    assert_eq!(means, [0.0, 0.5, 1.0]);
    assert_eq!(model.running_mean.value().into_scalar::<f32>(), 0.0);
}
