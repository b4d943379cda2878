//! What is trained: a chain of square layers, on data that follow from their numbers.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};

use crate::TrialError;

/// How large a network is, and how many samples a rank has in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Layers, each with a weight and a bias.
    pub layers: usize,
    /// Inputs and outputs of every layer.
    pub width: usize,
    /// Samples of a rank in a step.
    pub batch: usize,
}

impl Size {
    /// Seconds on a processor, with layers of several kinds of length in a bucket.
    pub const SMALL: Self = Self {
        layers: 4,
        width: 24,
        batch: 6,
    };

    /// A hundred million parameters.
    pub const LARGE: Self = Self {
        layers: 24,
        width: 2048,
        batch: 512,
    };

    /// How many parameters it has.
    pub fn parameters(&self) -> usize {
        self.layers * self.width * (self.width + 1)
    }
}

/// The network.
#[derive(Module, Debug)]
pub(crate) struct Network {
    layers: Vec<Linear>,
}

impl Network {
    /// The same on every rank and machine.
    pub(crate) fn new(size: Size, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(size.width, size.width).init(device);
        let network = Self {
            layers: (0..size.layers).map(layer).collect(),
        };
        network.map(&mut Drawn {
            scale: (size.width as f32).sqrt().recip(),
            next: 1,
        })
    }

    /// The mean squared error over samples: `[1]`.
    pub(crate) fn loss(&self, input: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        let forward = |x, layer: &Linear| activation::tanh(layer.forward(x));
        let output = self.layers.iter().fold(input, forward);
        (output - target).powi_scalar(2).mean()
    }

    /// Half the sum of the squares of the weights: `[1]`. Every gradient is its parameter, so that there is
    /// next to nothing to compute.
    pub(crate) fn weight_decay(&self) -> Tensor<1> {
        let decay = |layer: &Linear| {
            let bias = layer.bias.as_ref().expect("every layer has one").val();
            let weights = layer.weight.val().powi_scalar(2).sum();
            weights + bias.powi_scalar(2).sum()
        };
        let terms = self.layers.iter().map(decay);
        terms.reduce(|a, b| a + b).expect("there are layers") * 0.5
    }

    /// All parameters, one behind the other.
    pub(crate) fn values(&self) -> Result<Vec<f32>, TrialError> {
        let mut reader = Reader(Ok(Vec::new()));
        self.visit(&mut reader);
        reader.0
    }
}

/// Samples by their numbers: what goes in and what should come out, `[samples, width]` each.
pub(crate) fn samples(
    numbers: impl Iterator<Item = usize>,
    size: Size,
    device: &Device,
) -> (Tensor<2>, Tensor<2>) {
    let numbers: Vec<usize> = numbers.collect();
    let rows = |salt: u32| {
        let row = |&number: &usize| {
            let mut next = (number as u32).wrapping_mul(2_654_435_761) ^ salt;
            (0..size.width).map(move |_| draw(&mut next))
        };
        let values: Vec<f32> = numbers.iter().flat_map(row).collect();
        let data = TensorData::new(values, [numbers.len(), size.width]);
        Tensor::from_data(data, device)
    };
    (rows(1), rows(77))
}

/// A number from -1 to 1 that follows from the last one: George Marsaglia, "Xorshift RNGs" (2003).
fn draw(next: &mut u32) -> f32 {
    *next = (*next).max(1);
    *next ^= *next << 13;
    *next ^= *next >> 17;
    *next ^= *next << 5;
    (*next >> 8) as f32 / (1 << 23) as f32 - 1.0
}

struct Drawn {
    scale: f32,
    next: u32,
}

impl ModuleMapper for Drawn {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let shape = tensor.dims();
        let count = shape.iter().product();
        let values = (0..count).map(|_| draw(&mut self.next) * self.scale);
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        let device = tensor.device().without_autodiff();
        let drawn = Tensor::from_data(data, &device);
        Param::from_mapped_value(id, drawn, mapper).set_require_grad(true)
    }
}

struct Reader(Result<Vec<f32>, TrialError>);

impl ModuleVisitor for Reader {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Ok(values) = &mut self.0 else { return };
        let read = param.val().into_data().try_to_vec::<f32>();
        match read {
            Ok(read) => values.extend(read),
            Err(cause) => {
                self.0 = Err(TrialError::Unreadable {
                    what: "a parameter",
                    cause: format!("{cause:?}"),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_network_has_a_hundred_million_parameters() {
        assert!(Size::LARGE.parameters() >= 100_000_000);
    }

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut next = 1;
        let drawn: Vec<f32> = (0..1000).map(|_| draw(&mut next)).collect();
        assert!(drawn.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = drawn.iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.1, "{mean}");
        assert!(drawn.iter().any(|x| *x > 0.9) && drawn.iter().any(|x| *x < -0.9));
    }
}
