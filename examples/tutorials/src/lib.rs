//! The model and the data that the tutorials share.

#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor};

/// The tutorials' `ToyModel`: ten numbers in, five out.
#[derive(Module, Debug)]
pub struct ToyModel {
    first: Linear,
    second: Linear,
}

impl ToyModel {
    /// Makes a model with random parameters.
    pub fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(10, 10).init(device),
            second: LinearConfig::new(10, 5).init(device),
        }
    }

    /// Applies the model: `[batch, 10]` to `[batch, 5]`. The input of a layer moves to its device, and input and
    /// output have 32 bits, whatever the layers compute in.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = x.to_device(&self.first.weight.device());
        let x = x.cast(self.first.weight.dtype());
        let hidden = relu(self.first.forward(x));
        let hidden = hidden.to_device(&self.second.weight.device());
        self.second.forward(hidden).cast(DType::F32)
    }

    /// Returns the mean squared distance of the output to the targets.
    pub fn loss(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        let said = self.forward(x);
        let y = y.to_device(&said.device());
        (said - y).powi_scalar(2).mean()
    }
}

/// Makes samples with these indices: ten numbers, and five of them as targets.
pub fn batch(indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let numbers = |index: &usize| {
        let index = *index as f32;
        (0..10).map(move |place| (index * 0.37 + place as f32).sin())
    };
    let x: Vec<f32> = indices.iter().flat_map(numbers).collect();
    let x = Tensor::<1>::from_floats(x.as_slice(), device).reshape([indices.len(), 10]);
    (x.clone(), x.narrow(1, 0, 5))
}
