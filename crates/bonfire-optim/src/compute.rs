//! The device and the data type of a step's computation.

use burn::tensor::{DType, Device, Tensor};

/// Returns the type to compute in: f32 for types of 16 bits, whose squares overflow at a norm of 256.
pub fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        wide => wide,
    }
}

/// Casts a tensor, or returns it if it has the type already.
pub fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

pub(crate) fn on<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    if tensor.device() == *device { tensor } else { tensor.to_device(device) }
}

/// Returns true for the CPU backend whose tensors are slices of host memory.
pub(crate) fn is_flex(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    let is_flex = matches!(device.as_dispatch(), burn::backend::DispatchDevice::Flex(_));
    #[cfg(not(feature = "flex"))]
    let is_flex = false;
    is_flex
}

/// Returns true if the calling thread processes this number of elements itself. A rank's thread is not one of the
/// pool's: to hand elements over, it wakes a thread of the pool and waits to be woken, about 0.1 ms on a virtual
/// machine.
pub(crate) fn is_alone(elems: usize, alone_elems: usize) -> bool {
    elems <= alone_elems || rayon::current_num_threads() == 1
}
