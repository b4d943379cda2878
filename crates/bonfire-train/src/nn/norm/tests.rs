//! One rank's layer beside Burn's. What several ranks do is tested with `Ddp`.

use burn::Tensor;
use burn::module::Module;
use burn::nn;
use burn::tensor::{Device, TensorData};

use super::*;

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn input(device: &Device) -> Tensor<3> {
    let values: Vec<f32> = (0..24).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
    Tensor::from_data(TensorData::new(values, [2, 3, 4]), device)
}

#[test]
fn alone_it_computes_what_burns_layer_computes() {
    let device = Device::flex().autodiff();
    let own = BatchNormConfig::new(3).init(&device);
    let burns = nn::BatchNormConfig::new(3).init(&device);
    for _ in 0..3 {
        let outputs = [own.forward(input(&device)), burns.forward(input(&device))];
        let [left, right] = outputs.map(values);
        assert_near(&left, &right);
    }
    assert_near(&values(own.running_mean.value()), &values(burns.running_mean.value_sync()));
    assert_near(&values(own.running_var.value()), &values(burns.running_var.value_sync()));
    let plain = Device::flex();
    assert_near(
        &values(own.valid().forward(input(&plain))),
        &values(burns.valid().forward(input(&plain))),
    );
}

/// Values of at most 16, which a few operations have rounded.
fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs();
        assert!(error <= 8.0 * 16.0 * f32::EPSILON, "{found} for {expected}");
    }
}

#[test]
fn gradients_are_those_of_burns_layer() {
    let device = Device::flex().autodiff();
    let gamma = Tensor::<1>::from_data([0.5, -2.0, 3.0], &device);
    let mut own = BatchNormConfig::new(3).init(&device);
    own.gamma = burn::module::Param::from_tensor(gamma);
    let gradients = |output: Tensor<3>, input: &Tensor<3>| {
        let slopes = Tensor::arange(0..24, &device).float().sin().reshape([2, 3, 4]);
        let gradients = (output * slopes).sum().backward();
        [
            values(input.grad(&gradients).unwrap()),
            values(own.gamma.grad(&gradients).unwrap()),
            values(own.beta.grad(&gradients).unwrap()),
        ]
    };
    let x = input(&device).require_grad();
    let found = gradients(own.forward(x.clone()), &x);
    let (gamma, beta) = (own.gamma.val(), own.beta.val());
    let burns = burn::tensor::module::batch_norm_train(x.clone(), gamma, beta, own.epsilon);
    let expected = gradients(burns.output, &x);
    for (found, expected) in found.iter().zip(&expected) {
        assert_near(found, expected);
    }
}

#[test]
fn records_of_burns_layer_and_of_this_one_load_into_each_other() {
    let device = Device::flex().autodiff();
    let own = BatchNormConfig::new(3).init(&device);
    let _output = own.forward(input(&device));
    let burns = nn::BatchNormConfig::new(3).init(&device);
    let burns = burns.load_record(own.clone().into_record());
    assert_eq!(values(burns.running_var.value()), values(own.running_var.value()));
    let back = BatchNormConfig::new(3).init(&device);
    let back = back.load_record(burns.into_record());
    assert_eq!(values(back.running_mean.value()), values(own.running_mean.value()));
    assert_ne!(values(back.running_mean.value()), [0.0; 3]);
}

#[test]
fn a_single_feature_survives_records_too() {
    let device = Device::flex().autodiff();
    let own = BatchNormConfig::new(1).init(&device);
    let _output = own.forward(input(&device).reshape([24, 1]));
    let back = BatchNormConfig::new(1).init(&device);
    let back = back.load_record(own.clone().into_record());
    assert_eq!(values(back.running_mean.value()), values(own.running_mean.value()));
}

#[test]
fn a_frozen_layer_learns_nothing_though_its_device_trains() {
    for checkpointing in [false, true] {
        let device = Device::flex().autodiff();
        let device = if checkpointing { device.gradient_checkpointing() } else { device };
        let own = BatchNormConfig::new(3).init(&device).freeze();
        let output = values(own.forward(input(&device)));
        assert_eq!(values(own.running_mean.value()), [0.0; 3]);
        let plain = Device::flex();
        assert_eq!(output, values(own.valid().forward(input(&plain))));
    }
}

#[test]
fn clones_share_statistics_and_what_is_made_of_a_layer_does_not() {
    let device = Device::flex().autodiff();
    let own = BatchNormConfig::new(3).init(&device);
    let (clone, trained, valid) = (own.clone(), own.clone().train(), own.valid());
    let _output = own.forward(input(&device));
    let mean = values(own.running_mean.value());
    assert_eq!(values(clone.running_mean.value()), mean);
    assert_eq!(values(trained.running_mean.value()), [0.0; 3]);
    assert_eq!(values(valid.running_mean.value()), [0.0; 3]);
}

#[test]
#[should_panic(expected = "one value for each of its 3 features")]
fn a_batch_of_one_value_for_each_feature_is_refused_as_pytorch_refuses_it() {
    let device = Device::flex().autodiff();
    let layer = BatchNormConfig::new(3).init(&device);
    // Without autodiff the running statistics are used.
    layer.clone().valid().forward(Tensor::<2>::ones([1, 3], &Device::flex()));
    layer.forward(Tensor::<4>::ones([1, 3, 1, 2], &device));
    layer.forward(Tensor::<2>::ones([1, 3], &device));
}

#[test]
#[should_panic(expected = "features of the input and of the layer")]
fn another_number_of_features_is_a_mistake() {
    let device = Device::flex();
    let _output = BatchNormConfig::new(2).init(&device).forward(input(&device));
}

#[test]
#[should_panic(expected = "momentum must be from 0 to 1, got 1.5")]
fn a_momentum_out_of_range_is_a_mistake() {
    let _layer = BatchNormConfig::new(2).with_momentum(1.5).init(&Device::flex());
}
