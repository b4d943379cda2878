//! Norms and factors of gradients in host memory, in one pass.
//!
//! Burn's operations make a tensor of squares before they add them up, and multiply with a factor of one element through
//! its strides. That takes longer than a step of an optimizer in one pass.

use burn::tensor::Tensor;

use crate::compute::{cast, on, wide};

/// A number that gradients are multiplied with.
#[derive(Clone, Debug)]
pub enum Factor {
    /// A number on the host.
    Number(f64),
    /// A tensor of one element, still on a device: the host does not wait for it.
    Tensor(Box<Tensor<1>>),
}

impl From<f64> for Factor {
    fn from(factor: f64) -> Self {
        Self::Number(factor)
    }
}

impl From<Tensor<1>> for Factor {
    fn from(factor: Tensor<1>) -> Self {
        Self::Tensor(Box::new(factor))
    }
}

/// Factors, one after the other: each product is rounded. `Factors::from(0.5)` is one of them.
#[derive(Clone, Debug, Default)]
pub struct Factors(Vec<Factor>);

impl<F: Into<Factor>> From<F> for Factors {
    fn from(factor: F) -> Self {
        Self(vec![factor.into()])
    }
}

impl Factors {
    /// The maximum number of factors: the scale of a loss, and that of clipping.
    pub const MAX: usize = 2;

    /// Adds a factor behind the others.
    ///
    /// # Panics
    /// If [`is_full`](Self::is_full).
    pub fn push(&mut self, factor: impl Into<Factor>) {
        assert!(!self.is_full(), "multiply first");
        self.0.push(factor.into());
    }

    /// Returns true if there are [`MAX`](Self::MAX) factors.
    pub fn is_full(&self) -> bool {
        self.0.len() == Self::MAX
    }

    /// Returns true if there are no factors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the gradient, multiplied in its own type, but in 32 bits if it has 16.
    pub fn multiply<const D: usize>(&self, gradient: Tensor<D>) -> Tensor<D> {
        let dtype = gradient.dtype();
        if self.is_empty() {
            gradient
        } else {
            cast(self.multiply_wide(cast(gradient, wide(dtype))), dtype)
        }
    }

    /// The gradient, multiplied in its own type. f32 on the CPU (Flex) is multiplied in place where its memory is not
    /// shared.
    pub(crate) fn multiply_wide<const D: usize>(&self, gradient: Tensor<D>) -> Tensor<D> {
        if self.is_empty() || gradient.shape().num_elements() == 0 {
            return gradient;
        }
        #[cfg(feature = "flex")]
        if flex::has(&gradient) {
            return flex::multiplied(gradient, self.numbers());
        }
        let multiply = |gradient: Tensor<D>, factor: &Factor| match factor {
            Factor::Number(factor) => gradient.mul_scalar(*factor),
            Factor::Tensor(factor) => {
                let factor = on(Tensor::clone(factor), &gradient.device());
                let factor = cast(factor, gradient.dtype());
                gradient * factor.reshape([1; D])
            }
        };
        self.0.iter().fold(gradient, multiply)
    }

    /// Returns the sum of the squares of each of `rows` rows, multiplied before. `None` unless they are f32 on the CPU
    /// (Flex).
    ///
    /// Sixteen partial sums of every sixteenth element are added up in pairs. So the bits depend neither on the processor
    /// nor on the number of threads, nor on which other rows there are.
    pub fn row_squares<const D: usize>(
        &self,
        gradient: &Tensor<D>,
        rows: usize,
    ) -> Option<Tensor<1>> {
        #[cfg(feature = "flex")]
        if flex::has(gradient) {
            return Some(flex::row_squares(gradient, rows, self.numbers()));
        }
        None
    }

    /// The factors, padded to the maximum. Waits for those on a device.
    pub(crate) fn numbers(&self) -> [f64; Self::MAX] {
        let mut numbers = [1.0; Self::MAX];
        for (number, factor) in numbers.iter_mut().zip(&self.0) {
            *number = match factor {
                Factor::Number(factor) => *factor,
                Factor::Tensor(factor) => Tensor::clone(factor).into_scalar(),
            };
        }
        numbers
    }
}

#[cfg(feature = "flex")]
mod flex {
    use std::array::from_fn;

    use burn::backend::Flex;
    use burn::backend::flex::FlexTensor;
    use burn::tensor::{AllocationProperty, DType, Tensor, TensorData};
    use pulp::Arch;
    use rayon::prelude::*;

    use super::Factors;
    use crate::compute::{is_alone, is_flex};

    const PIECE_ELEMS: usize = 64 << 10;

    /// Number of elements up to which one thread is as fast: handing them over takes as long as the work.
    const ALONE_ELEMS: usize = 1 << 20;

    /// Partial sums of a row: as many as the widest vectors have elements.
    const LANES: usize = 16;

    pub(super) fn has<const D: usize>(gradient: &Tensor<D>) -> bool {
        gradient.dtype() == DType::F32 && is_flex(&gradient.device())
    }

    pub(super) fn row_squares<const D: usize>(
        gradient: &Tensor<D>,
        rows: usize,
        factors: [f64; Factors::MAX],
    ) -> Tensor<1> {
        let factors = factors.map(|factor| factor as f32);
        let gradient = primitive(gradient.clone()).to_contiguous();
        let values = values(&gradient);
        let row_elems = values.len() / rows;
        let sum = |row: &[f32]| {
            Arch::new().dispatch(
                #[inline(always)]
                || sum(row, factors),
            )
        };
        let squares: Vec<f32> = if is_alone(values.len(), ALONE_ELEMS) {
            values.chunks(row_elems).map(sum).collect()
        } else {
            let squares = values.par_chunks(row_elems);
            let squares = squares.with_min_len(PIECE_ELEMS.div_ceil(row_elems));
            squares.map(sum).collect()
        };
        let data = TensorData::new(squares, [rows]);
        Tensor::from_primitive::<Flex>(FlexTensor::from_data(data))
    }

    #[inline(always)]
    fn product(value: f32, [first, second]: [f32; Factors::MAX]) -> f32 {
        value * first * second
    }

    #[inline(always)]
    fn sum(row: &[f32], factors: [f32; Factors::MAX]) -> f32 {
        let square = |value: f32| {
            let value = product(value, factors);
            value * value
        };
        let (blocks, rest) = row.as_chunks::<LANES>();
        // A new array for each block stays in registers. Sums that are changed in place go through memory.
        let mut lanes = blocks
            .iter()
            .fold([0.0; LANES], |lanes, block| from_fn(|lane| lanes[lane] + square(block[lane])));
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane += square(*value);
        }
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    pub(super) fn multiplied<const D: usize>(
        gradient: Tensor<D>,
        factors: [f64; Factors::MAX],
    ) -> Tensor<D> {
        let factors = factors.map(|factor| factor as f32);
        let product = |value: &f32| product(*value, factors);
        let mut own = primitive(gradient).to_contiguous();
        // Memory of another owner, such as a bucket, would be copied first.
        let is_own = matches!(own.data_arc().property(), AllocationProperty::Native);
        let in_place = is_own.then(|| own.try_storage_mut::<f32>()).flatten();
        let multiplied = match in_place {
            Some(values) => {
                let multiply = |values: &mut [f32]| {
                    Arch::new().dispatch(
                        #[inline(always)]
                        || values.iter_mut().for_each(|value| *value = product(value)),
                    );
                };
                if is_alone(values.len(), ALONE_ELEMS) {
                    multiply(values)
                } else {
                    values.par_chunks_mut(PIECE_ELEMS).for_each(multiply)
                }
                own
            }
            None => {
                let values = values(&own);
                let products: Vec<f32> = if is_alone(values.len(), ALONE_ELEMS) {
                    values.iter().map(product).collect()
                } else {
                    let values = values.par_iter().with_min_len(PIECE_ELEMS);
                    values.map(product).collect()
                };
                let shape = own.layout().shape().clone();
                FlexTensor::from_data(TensorData::new(products, shape))
            }
        };
        Tensor::from_primitive::<Flex>(multiplied)
    }

    fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
        let primitive = tensor.try_into_primitive::<Flex>();
        primitive.expect("its device is Flex")
    }

    fn values(tensor: &FlexTensor) -> &[f32] {
        tensor.as_slice().expect("row-major, of this type")
    }
}
