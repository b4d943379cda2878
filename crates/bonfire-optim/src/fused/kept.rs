//! A tensor of an optimizer's state, or a parameter: in memory, or in a file.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{cast, is_flex};
use crate::offload::{FileTensor, Offload};

/// What is kept from step to step.
#[derive(Clone)]
pub(super) enum Kept<const D: usize> {
    Memory(Tensor<D>),
    File(FileTensor),
}

impl<const D: usize> Kept<D> {
    /// A moment before the first step. Negative zero is the neutral element of addition: after the first step
    /// a moment is what was added, with its sign if it is zero.
    pub(super) fn neutral(parameter: &Tensor<D>, dtype: DType, offload: Option<&Offload>) -> Self {
        let shape = parameter.shape();
        match offload {
            Some(offload) if offload.takes(&shape, dtype) => {
                let mut zeros = FileTensor::zeroed(shape, dtype, offload);
                match dtype {
                    DType::F64 => zeros.values_mut::<f64>().fill(-0.0),
                    _ => zeros.values_mut::<f32>().fill(-0.0),
                }
                Self::File(zeros)
            }
            _ => Self::Memory(Tensor::zeros(shape, (&parameter.device(), dtype)).neg()),
        }
    }

    /// The same where it belongs.
    pub(super) fn placed(self, offload: Option<&Offload>) -> Self {
        match (self, offload) {
            (Self::Memory(tensor), Some(offload))
                if offload.takes(&tensor.shape(), tensor.dtype()) =>
            {
                Self::File(FileTensor::copied(&tensor.into_data(), offload))
            }
            (kept, _) => kept,
        }
    }

    pub(super) fn cast(self, dtype: DType, device: &Device) -> Self {
        match self {
            Self::File(file) if file.dtype() == dtype => Self::File(file),
            kept => Self::Memory(cast(kept.into_tensor(device), dtype)),
        }
    }

    pub(super) fn moved_to(self, device: &Device) -> Self {
        match self {
            Self::Memory(tensor) => Self::Memory(tensor.to_device(device)),
            file if is_flex(device) => file,
            file => Self::Memory(file.into_tensor(device)),
        }
    }

    /// In memory, of `device` if it was in a file.
    pub(super) fn into_tensor(self, device: &Device) -> Tensor<D> {
        match self {
            Self::Memory(tensor) => tensor,
            Self::File(file) => Tensor::from_data(file.data(), (device, file.dtype())),
        }
    }

    pub(super) fn data(&self) -> TensorData {
        match self {
            Self::Memory(tensor) => tensor.to_data(),
            Self::File(file) => file.data(),
        }
    }
}
