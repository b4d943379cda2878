//! Reading a tensor's values into host memory, as each backend does it best.

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
mod flex {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::{HostSlice, Readback, take_data};

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
