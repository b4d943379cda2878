use burn::tensor::{Device, TensorData};

use super::*;

#[test]
fn bits_and_derivatives_are_those_of_burn() {
    let device = Device::flex().autodiff();
    let values = [-1.5, -0.0, 0.0, 1e-40, 2.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let found = |of: fn(Tensor<1>) -> Tensor<1>| {
        let x = Tensor::<1>::from_data(values, &device).require_grad();
        let y = of(x.clone());
        let slopes = Tensor::<1>::from_data([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &device);
        let gradients = (y.clone() * slopes).sum().backward();
        [y.into_data(), x.grad(&gradients).unwrap().into_data()]
    };
    let bits = |data: &TensorData| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let (own, burns) = (found(relu), found(activation::relu));
    for (own, burns) in own.iter().zip(&burns) {
        assert_eq!(bits(own), bits(burns));
    }
}
