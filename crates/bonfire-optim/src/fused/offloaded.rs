//! A tensor of an optimizer's state, or a parameter: in memory, or in a file.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::compute::{cast, on};
use crate::offload::{FileTensor, Offload};

#[derive(Clone)]
pub(super) enum Offloaded<const D: usize> {
    Memory(Tensor<D>),
    File(FileTensor),
}

impl<const D: usize> Offloaded<D> {
    /// A moment before the first step. Negative zero is the neutral element of addition: after the first step
    /// a moment is what was added, with its sign if it is zero.
    pub(super) fn neutral(parameter: &Tensor<D>, dtype: DType, offload: Option<&Offload>) -> Self {
        let shape = parameter.shape();
        let Some(folder) = offload.and_then(|offload| offload.folder_of(&shape, dtype)) else {
            return Self::Memory(Tensor::zeros(shape, (&parameter.device(), dtype)).neg());
        };
        let mut zeros = FileTensor::zeroed(shape.clone(), dtype, folder);
        match dtype {
            DType::F64 => zeros.values_mut::<f64>().fill(-0.0),
            _ => zeros.values_mut::<f32>().fill(-0.0),
        }
        Self::File(zeros)
    }

    /// Moves it to its place, in a type and on the device of the step.
    pub(super) fn placed(self, dtype: DType, device: &Device, offload: Option<&Offload>) -> Self {
        let tensor = match self {
            Self::File(file) if offload.is_some() && file.dtype() == dtype => {
                return Self::File(file);
            }
            kept => cast(kept.into_tensor(device), dtype),
        };
        match offload.and_then(|offload| offload.folder_of(&tensor.shape(), dtype)) {
            Some(folder) => Self::File(FileTensor::copied(&tensor.into_data(), folder)),
            None => Self::Memory(tensor),
        }
    }

    pub(super) fn into_tensor(self, device: &Device) -> Tensor<D> {
        match self {
            Self::Memory(tensor) => on(tensor, device),
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
