//! A rehearsal leaves the model as it is.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use bonfire_train::{BatchNorm, BatchNormConfig, Precision, rehearse};
use burn::module::Module;
use burn::nn;
use burn::tensor::{Device, Tensor};

/// Batch norms of both kinds.
#[derive(Module, Debug)]
struct Normed {
    own: BatchNorm,
    burns: nn::BatchNorm,
}

#[test]
fn running_statistics_do_not_learn_from_a_rehearsal() {
    let device = Device::flex().autodiff();
    let model = Normed {
        own: BatchNormConfig::new(3).init(&device),
        burns: nn::BatchNormConfig::new(3).init(&device),
    };
    let statistics = || {
        let model = model.valid();
        [model.own.running_mean.value(), model.burns.running_mean.value()]
            .map(|mean| mean.into_data())
    };
    let before = statistics();
    let loss = |model: &Normed| {
        let x = Tensor::<2>::full([4, 3], 5.0, &device);
        model.burns.forward(model.own.forward(x.clone()) + x).mean()
    };
    rehearse(&model, Precision::F32, loss).unwrap();
    assert_eq!(statistics(), before);
}
