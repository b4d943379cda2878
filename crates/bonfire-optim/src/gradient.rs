//! Norms and factors of gradients in host memory, in one pass.
//!
//! Burn's operations make a tensor of squares before they add them up, and multiply with a factor of one element through
//! its strides. That takes longer than a step of an optimizer in one pass.

use burn::tensor::Tensor;

/// The sum of the squares of each row of a matrix, which has so many, if they are f32 on the CPU (Flex).
///
/// Sixteen partial sums of every sixteenth element are added up in pairs. So the bits depend neither on the processor nor on
/// the number of threads, nor on which other rows there are.
pub fn row_squares<const D: usize>(gradient: &Tensor<D>, rows: usize) -> Option<Tensor<1>> {
    #[cfg(feature = "flex")]
    if flex::has(gradient) {
        return Some(flex::row_squares(gradient, rows));
    }
    None
}

/// The gradient, multiplied with a factor in its own type. f32 on the CPU (Flex) are in place where nobody else sees them.
pub fn multiplied<const D: usize>(gradient: Tensor<D>, factor: f64) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if flex::has(&gradient) {
        return flex::multiplied(gradient, factor as f32);
    }
    gradient.mul_scalar(factor)
}

#[cfg(feature = "flex")]
mod flex {
    use std::array::from_fn;

    use burn::backend::Flex;
    use burn::backend::flex::FlexTensor;
    use burn::tensor::{AllocationProperty, DType, Tensor, TensorData};
    use pulp::Arch;
    use rayon::prelude::*;

    use crate::fused::{is_alone, is_flex};

    /// Elements that a thread takes at once.
    const PIECE_ELEMS: usize = 64 << 10;

    /// Up to so many, one thread is as fast: to hand them over takes as long as the work.
    const ALONE_ELEMS: usize = 1 << 20;

    /// Partial sums of a row: as many as the widest vectors have elements.
    const LANES: usize = 16;

    /// Whether a gradient is computed here: f32 on Flex.
    pub(super) fn has<const D: usize>(gradient: &Tensor<D>) -> bool {
        gradient.dtype() == DType::F32 && is_flex(&gradient.device())
    }

    pub(super) fn row_squares<const D: usize>(gradient: &Tensor<D>, rows: usize) -> Tensor<1> {
        let gradient = primitive(gradient.clone()).to_contiguous();
        let values = values(&gradient);
        let row_elems = values.len() / rows;
        let sum = |row: &[f32]| {
            Arch::new().dispatch(
                #[inline(always)]
                || sum(row),
            )
        };
        let squares: Vec<f32> = match is_alone(values.len(), ALONE_ELEMS) {
            true => values.chunks(row_elems).map(sum).collect(),
            false => {
                let squares = values.par_chunks(row_elems);
                let squares = squares.with_min_len(PIECE_ELEMS.div_ceil(row_elems));
                squares.map(sum).collect()
            }
        };
        let data = TensorData::new(squares, [rows]);
        Tensor::from_primitive::<Flex>(FlexTensor::from_data(data))
    }

    /// The sum of the squares.
    #[inline(always)]
    fn sum(row: &[f32]) -> f32 {
        let (blocks, rest) = row.as_chunks::<LANES>();
        // A new array for each block stays in registers. Sums that are changed in place go through memory.
        let mut lanes = blocks.iter().fold([0.0; LANES], |lanes, block| {
            from_fn(|lane| lanes[lane] + block[lane] * block[lane])
        });
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane += value * value;
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

    pub(super) fn multiplied<const D: usize>(gradient: Tensor<D>, factor: f32) -> Tensor<D> {
        let mut own = primitive(gradient).to_contiguous();
        // Memory of another owner, such as a bucket, would be copied first.
        let is_own = matches!(own.data_arc().property(), AllocationProperty::Native);
        let in_place = is_own.then(|| own.try_storage_mut::<f32>()).flatten();
        let product = match in_place {
            Some(values) => {
                let multiply = |values: &mut [f32]| {
                    Arch::new().dispatch(
                        #[inline(always)]
                        || values.iter_mut().for_each(|value| *value *= factor),
                    );
                };
                match is_alone(values.len(), ALONE_ELEMS) {
                    true => multiply(values),
                    false => values.par_chunks_mut(PIECE_ELEMS).for_each(multiply),
                }
                own
            }
            None => {
                let values = values(&own);
                let product: Vec<f32> = match is_alone(values.len(), ALONE_ELEMS) {
                    true => values.iter().map(|value| value * factor).collect(),
                    false => {
                        let product = values.par_iter().with_min_len(PIECE_ELEMS);
                        product.map(|value| value * factor).collect()
                    }
                };
                let shape = own.layout().shape().clone();
                FlexTensor::from_data(TensorData::new(product, shape))
            }
        };
        Tensor::from_primitive::<Flex>(product)
    }

    fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
        let primitive = tensor.try_into_primitive::<Flex>();
        primitive.expect("its device is Flex")
    }

    fn values(tensor: &FlexTensor) -> &[f32] {
        tensor.as_slice().expect("row-major, of this type")
    }
}
