//! What is trained: the encoder of a transformer, on data that follow from their numbers.

use anyhow::anyhow;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::tensor::{Device, Tensor, TensorData};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Layers, each with attention, two norms and two linear layers behind each other.
    pub(super) layers: usize,
    /// The numbers that make up one token.
    pub(super) width: usize,
    /// Numbers between the two linear layers of a layer.
    pub(super) inner: usize,
    pub(super) heads: usize,
    /// The tokens that make up one sample.
    pub(super) tokens: usize,
    /// Samples of a rank in a step.
    pub(super) batch: usize,
}

impl Size {
    /// Small enough to train in seconds on a processor.
    pub(super) const SMALL: Self =
        Self { layers: 2, width: 16, inner: 32, heads: 2, tokens: 4, batch: 6 };

    pub(super) const LARGE: Self =
        Self { layers: 8, width: 1024, inner: 4096, heads: 16, tokens: 256, batch: 8 };

    pub(super) fn parameters(&self) -> usize {
        let linear = |inputs: usize, outputs: usize| (inputs + 1) * outputs;
        let attention = 4 * linear(self.width, self.width);
        let forward = linear(self.width, self.inner) + linear(self.inner, self.width);
        let norms = 2 * 2 * self.width;
        self.layers * (attention + forward + norms)
    }

    pub(super) fn tensors(&self) -> usize {
        let (linear_layers, norms) = (4 + 2, 2);
        self.layers * 2 * (linear_layers + norms)
    }
}

#[derive(Module, Debug)]
pub(super) struct Network {
    encoder: TransformerEncoder,
}

impl Network {
    /// The same on every rank and machine.
    pub(super) fn new(size: Size, device: &Device) -> Self {
        let config = TransformerEncoderConfig::new(size.width, size.inner, size.heads, size.layers)
            .with_dropout(0.0)
            .with_norm_first(true);
        let network = Self { encoder: config.init(device) };
        network.map(&mut Drawn { next: 1, name: String::new() })
    }

    /// The mean squared error over samples: `[1]`.
    pub(super) fn loss(&self, input: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
        let output = self.encoder.forward(TransformerEncoderInput::new(input));
        (output - target).powi_scalar(2).mean()
    }

    /// Half the sum of the squares of all parameters: `[1]`. Every gradient is its parameter, so that there
    /// is next to nothing to compute.
    pub(super) fn weight_decay(&self) -> Tensor<1> {
        let mut squares = Squares(None);
        self.visit(&mut squares);
        squares.0.expect("there are parameters") * 0.5
    }

    pub(super) fn values(&self) -> anyhow::Result<Vec<f32>> {
        let mut reader = Reader(Ok(Vec::new()));
        self.visit(&mut reader);
        reader.0
    }
}

/// Samples by their numbers: what goes in and what should come out, `[samples, tokens, width]` each.
pub(super) fn samples(
    numbers: impl Iterator<Item = usize>,
    size: Size,
    device: &Device,
) -> (Tensor<3>, Tensor<3>) {
    let numbers: Vec<usize> = numbers.collect();
    let rows = |salt: u32| {
        let row = |&number: &usize| {
            let mut next = (number as u32).wrapping_mul(2_654_435_761) ^ salt;
            (0..size.tokens * size.width).map(move |_| draw(&mut next))
        };
        let values: Vec<f32> = numbers.iter().flat_map(row).collect();
        let data = TensorData::new(values, [numbers.len(), size.tokens, size.width]);
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

/// Gives every parameter values that follow from its place: matrices about 1 / sqrt(inputs), the vectors of
/// norms, which multiply, about 1, all others about 0.
struct Drawn {
    next: u32,
    name: String,
}

impl ModuleMapper for Drawn {
    fn enter_module(&mut self, name: &str, _container: &str) {
        name.clone_into(&mut self.name);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let shape = tensor.dims();
        let count = shape.iter().product();
        let (centre, spread) = match (D, &self.name[..]) {
            (1, "gamma") => (1.0, 0.1),
            (1, _) => (0.0, 0.1),
            _ => (0.0, (shape[0] as f32).sqrt().recip()),
        };
        let values = (0..count).map(|_| centre + draw(&mut self.next) * spread);
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        let device = tensor.device().without_autodiff();
        let drawn = Tensor::from_data(data, &device);
        Param::from_mapped_value(id, drawn, mapper).set_require_grad(true)
    }
}

struct Squares(Option<Tensor<1>>);

impl ModuleVisitor for Squares {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let square = param.val().powi_scalar(2).sum();
        self.0 = Some(match self.0.take() {
            Some(sum) => sum + square,
            None => square,
        });
    }
}

struct Reader(anyhow::Result<Vec<f32>>);

impl ModuleVisitor for Reader {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Ok(values) = &mut self.0 else { return };
        let read = param.val().into_data().try_to_vec::<f32>();
        match read {
            Ok(read) => values.extend(read),
            Err(cause) => {
                self.0 = Err(anyhow!("a parameter cannot be read from the device: {cause:?}"));
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
    fn parameters_and_tensors_are_counted() {
        struct Count(usize);
        impl ModuleVisitor for Count {
            fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
                self.0 += 1;
            }
        }
        let network = Network::new(Size::SMALL, &Device::flex());
        assert_eq!(network.num_params(), Size::SMALL.parameters());
        let mut tensors = Count(0);
        network.visit(&mut tensors);
        assert_eq!(tensors.0, Size::SMALL.tensors());
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
