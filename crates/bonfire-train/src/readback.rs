//! Moving a tensor's values to and from host memory, as each backend does it best.

use burn::backend::Backend;
use burn::tensor::TensorData;

use crate::host::HostSlice;

/// A backend whose tensors can be read while a backward pass runs.
pub(crate) trait Readback: Backend {
    /// Gives `take` the values of a tensor in row-major order: none if gradients cannot have their
    /// type, or the backend's words if they cannot be read.
    fn read(
        tensor: Self::FloatTensorPrimitive,
        take: impl FnOnce(Result<Option<HostSlice<'_>>, String>),
    );
}

/// Gives out the values of what has been read.
fn take_data(
    data: Result<TensorData, String>,
    take: impl FnOnce(Result<Option<HostSlice<'_>>, String>),
) {
    match data {
        Ok(data) => take(Ok(HostSlice::of(&data))),
        Err(cause) => take(Err(cause)),
    }
}

#[cfg(feature = "flex")]
pub(crate) use flex::overwritten;

/// No backend of this build has its tensors in host memory.
#[cfg(not(feature = "flex"))]
pub(crate) fn overwritten<const D: usize>(
    _tensor: burn::Tensor<D>,
    _values: HostSlice<'_>,
) -> Option<burn::Tensor<D>> {
    None
}

#[cfg(feature = "flex")]
mod flex {
    use burn::Tensor;
    use burn::backend::flex::FlexTensor;
    use burn::backend::{Element, Flex};
    use burn::tensor::DType;
    use bytemuck::Pod;

    use super::{HostSlice, Readback, take_data};

    /// The tensor with other values of the same number and type, in its own memory; nothing if
    /// somebody else sees that memory or it is not in host memory and row-major.
    pub(crate) fn overwritten<const D: usize>(
        tensor: Tensor<D>,
        values: HostSlice<'_>,
    ) -> Option<Tensor<D>> {
        let mut primitive = tensor.try_into_primitive::<Flex>().ok()?;
        match values {
            HostSlice::F32(values) => overwrite(&mut primitive, values),
            HostSlice::F64(values) => overwrite(&mut primitive, values),
            HostSlice::F16(values) => overwrite(&mut primitive, values),
            HostSlice::BF16(values) => overwrite(&mut primitive, values),
        }?;
        Some(Tensor::from_primitive::<Flex>(primitive))
    }

    fn overwrite<T: Element + Pod>(tensor: &mut FlexTensor, values: &[T]) -> Option<()> {
        let (start, end) = tensor.layout().contiguous_offsets()?;
        if tensor.dtype() != T::dtype() || end - start != values.len() {
            return None;
        }
        let storage = tensor.try_storage_mut::<T>()?;
        storage[start..end].copy_from_slice(values);
        Some(())
    }

    impl Readback for Flex {
        fn read(
            tensor: Self::FloatTensorPrimitive,
            take: impl FnOnce(Result<Option<HostSlice<'_>>, String>),
        ) {
            // In host memory already: without a copy where the layout is row-major.
            let slice = match tensor.dtype() {
                DType::F32 => tensor.as_slice().map(HostSlice::F32),
                DType::F64 => tensor.as_slice().map(HostSlice::F64),
                DType::F16 => tensor.as_slice().map(HostSlice::F16),
                DType::BF16 => tensor.as_slice().map(HostSlice::BF16),
                _ => None,
            };
            match slice {
                Some(slice) => take(Ok(Some(slice))),
                None => take_data(Ok(tensor.into_data()), take),
            }
        }
    }
}

#[cfg(feature = "cube")]
mod cube {
    use burn::backend::{Cube, TensorMetadata, ops::FloatTensorOps};
    use burn::tensor::{Shape, Tensor};

    use super::{HostSlice, Readback, take_data};

    impl Readback for Cube {
        fn read(
            tensor: Self::FloatTensorPrimitive,
            take: impl FnOnce(Result<Option<HostSlice<'_>>, String>),
        ) {
            // Waits until the device has computed it; the operations queued behind it go on.
            let elems = tensor.shape().num_elements();
            let flat = Cube::float_reshape(tensor, Shape::new([elems]));
            let data = Tensor::<1>::from_primitive::<Cube>(flat).try_into_data();
            take_data(data.map_err(|cause| cause.to_string()), take);
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::Tensor;
    use burn::tensor::Device;

    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn memory_of_ones_own_is_overwritten() {
        let tensor = Tensor::<2>::zeros([2, 2], &Device::flex());
        let changed = overwritten(tensor, HostSlice::F32(&[1.0, 2.0, 3.0, 4.0])).unwrap();
        assert_eq!(changed.dims(), [2, 2]);
        assert_eq!(values(changed), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn shared_transposed_and_other_memory_is_left_alone() {
        let new = HostSlice::F32(&[1.0, 2.0, 3.0, 4.0]);
        let tensor = Tensor::<2>::ones([2, 2], &Device::flex());
        assert!(overwritten(tensor.clone(), new).is_none());
        assert_eq!(values(tensor.clone()), [1.0; 4]);
        assert!(overwritten(tensor.transpose(), new).is_none());
        let short = Tensor::<1>::ones([3], &Device::flex());
        assert!(overwritten(short, new).is_none());
        let integers = HostSlice::F64(&[1.0]);
        assert!(overwritten(Tensor::<1>::ones([1], &Device::flex()), integers).is_none());
    }
}
