//! Where and in what type a step is computed.

use burn::tensor::{DType, Device, Tensor};

/// The type to compute in: 16 bits overflow at a norm of 256.
pub fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        wide => wide,
    }
}

/// The same in a type.
pub fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype {
        tensor
    } else {
        tensor.cast(dtype)
    }
}

pub(crate) fn on<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    if tensor.device() == *device {
        tensor
    } else {
        tensor.to_device(device)
    }
}

/// Whether it is the CPU, by the backend whose tensors are slices of host memory.
pub(crate) fn is_flex(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    let is_flex = matches!(device.as_dispatch(), burn::backend::DispatchDevice::Flex(_));
    #[cfg(not(feature = "flex"))]
    let is_flex = false;
    is_flex
}

/// Whether the calling thread does so many elements itself. A rank's thread is not one of the pool's: to hand elements
/// over, it wakes a thread of the pool and waits to be woken, about 0.1 ms on a virtual machine.
pub(crate) fn is_alone(elems: usize, alone_elems: usize) -> bool {
    elems <= alone_elems || rayon::current_num_threads() == 1
}
