//! Tensors as memory of Flex, for operations that iterate over it themselves.

use burn::backend::flex::FlexTensor;
use burn::backend::{DispatchDevice, Flex};
use burn::tensor::{DType, Tensor, TensorData};
use pulp::Arch;
use rayon::prelude::*;

/// Values that a thread takes at once: 64 KiB of inputs, which last longer than it takes to hand them over.
const PIECE_ELEMS: usize = 16 << 10;

/// Returns true for a tensor of 32-bit values on Flex.
pub(super) fn is_here<const D: usize>(x: &Tensor<D>) -> bool {
    let device = x.device().without_autodiff();
    x.dtype() == DType::F32 && matches!(device.as_dispatch(), DispatchDevice::Flex(_))
}

/// A tensor that [is here](is_here), in row-major order and without autodiff.
pub(super) fn row_major<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let primitive = tensor.without_autodiff().try_into_primitive::<Flex>();
    primitive.expect("its device is Flex").to_contiguous()
}

pub(super) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("row-major, of this type")
}

pub(super) fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    let data = TensorData::new(values, shape);
    Tensor::from_primitive::<Flex>(FlexTensor::from_data(data))
}

/// `map` of each value, which is to be inlined.
pub(super) fn mapped<const D: usize>(
    x: Tensor<D>,
    map: impl Fn(f32) -> f32 + Copy + Sync,
) -> Tensor<D> {
    let x = row_major(x);
    let mut output = FlexTensor::empty(x.layout().shape().clone(), DType::F32);
    in_pieces(
        &mut output,
        &x,
        #[inline(always)]
        |_, x| map(x),
    );
    Tensor::from_primitive::<Flex>(output)
}

/// `map` of each value of a gradient and of the input `x`, which is to be inlined.
pub(super) fn mapped_gradient<const D: usize>(
    x: Tensor<D>,
    gradient: Tensor<D>,
    map: impl Fn(f32, f32) -> f32 + Copy + Sync,
) -> Tensor<D> {
    let mut gradient = own(gradient);
    in_pieces(&mut gradient, &row_major(x), map);
    Tensor::from_primitive::<Flex>(gradient)
}

/// A tensor in row-major order and unshared memory, copied only if it is not.
pub(super) fn own<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    FlexTensor::from_data(row_major(tensor).into_data())
}

/// Replaces each value of `target` by `map` of itself and of its input, on all threads of the rayon pool that this is
/// called in.
fn in_pieces(target: &mut FlexTensor, x: &FlexTensor, map: impl Fn(f32, f32) -> f32 + Copy + Sync) {
    let x = values(x);
    let target = target.try_storage_mut().expect("its memory is not shared");
    let piece = |(target, x): (&mut [f32], &[f32])| {
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for (target, x) in target.iter_mut().zip(x) {
                    *target = map(*target, *x);
                }
            },
        );
    };
    if rayon::current_num_threads() == 1 {
        // Without waiting for another thread.
        return piece((target, x));
    }
    let pieces = target.par_chunks_mut(PIECE_ELEMS);
    pieces.zip(x.par_chunks(PIECE_ELEMS)).for_each(piece);
}
