//! Moves a tensor's values to and from host memory by each backend's fastest way, or leaves them on the device.

use burn::backend::{Backend, DispatchDevice};
use burn::tensor::{Device, Tensor, TensorData, Transaction};

use crate::reducer::collect::Gradient;
use crate::values::DeviceTensor;
use crate::values::HostSlice;
use crate::values::reducible;

#[cfg(feature = "cuda")]
mod device_memory;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub(crate) mod raw;
#[cfg(feature = "cuda")]
pub(crate) mod resident;

/// A backend whose tensors can be read while a backward pass runs.
pub(crate) trait Readback: Backend {
    fn flat(tensor: Self::FloatTensorPrimitive) -> Tensor<1>;

    /// A tensor of this backend; `None` if it is on another.
    fn primitive(tensor: Tensor<1>) -> Option<Self::FloatTensorPrimitive>;

    /// The values on the device, or the reason why they cannot be reached there.
    fn on_device(tensor: Self::FloatTensorPrimitive) -> Result<DeviceTensor, String>;
}

/// The required properties of a tensor.
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "nothing of this build has memory to claim")
)]
#[derive(Clone, Debug)]
pub(crate) struct Shell {
    pub(crate) shape: Vec<usize>,
    pub(crate) tensor_dtype: burn::tensor::DType,
    pub(crate) device: Device,
}

/// Unshared memory of a tensor, to be written.
pub(crate) struct Claim<const D: usize> {
    pub(crate) memory: DeviceTensor,
    pub(crate) finish: Box<dyn FnOnce() -> Tensor<D> + Send>,
}

/// Calls `take` with the values of a tensor without autodiff in row-major order: `None` if gradients cannot have their
/// type, or the backend's error if they cannot be read.
pub(crate) fn read<const D: usize>(
    tensor: Tensor<D>,
    take: impl FnOnce(Result<Option<HostSlice<'_>>, String>),
) {
    #[cfg(feature = "flex")]
    if let DispatchDevice::Flex(_) = tensor.device().as_dispatch() {
        let primitive = tensor.try_into_primitive::<burn::backend::Flex>();
        return match primitive {
            Ok(primitive) => flex::read(primitive, take),
            Err(_) => take(Err("it is on another backend than its device".to_owned())),
        };
    }
    take_data(tensor.try_into_data().map_err(|cause| format!("{cause:?}")), take);
}

/// Calls `take` with a gradient that is wanted in host memory: its values, as [`read`] does, or the tensor itself if a
/// device has them, for [`read_together`].
pub(crate) fn gradient(tensor: Tensor<1>, take: impl FnOnce(Result<Option<Gradient<'_>>, String>)) {
    match tensor.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => read(tensor, |values| {
            take(values.map(|values| values.map(Gradient::Host)));
        }),
        #[allow(unreachable_patterns, reason = "a build may have no other")]
        _ => {
            let dtype = reducible(tensor.dtype());
            take(Ok(dtype.map(|dtype| Gradient::Unread(dtype, Box::new(tensor)))));
        }
    }
}

/// Reads the values of tensors. Each device is waited for once; the operations queued behind them continue.
pub(crate) fn read_together(tensors: Vec<Tensor<1>>) -> Result<Vec<TensorData>, String> {
    let mut read: Vec<(usize, TensorData)> = Vec::with_capacity(tensors.len());
    let mut left: Vec<(usize, Tensor<1>)> = tensors.into_iter().enumerate().collect();
    // A transaction of Burn asks the device of its first tensor for all of them.
    while let Some((_, first)) = left.first() {
        let device = first.device();
        let is_there = |(_, tensor): &mut (usize, Tensor<1>)| tensor.device() == device;
        let (places, there): (Vec<_>, Vec<_>) = left.extract_if(.., is_there).unzip();
        let reads = there.into_iter();
        let reads = reads.fold(Transaction::default(), Transaction::register);
        let data = reads.try_execute().map_err(|cause| cause.to_string())?;
        read.extend(places.into_iter().zip(data));
    }
    read.sort_unstable_by_key(|(place, _)| *place);
    Ok(read.into_iter().map(|(_, data)| data).collect())
}

pub(crate) fn on_device<const D: usize>(tensor: Tensor<D>) -> Result<DeviceTensor, String> {
    match tensor.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => primitive::<burn::backend::Flex, D>(tensor),
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => primitive::<burn::backend::Cube, D>(tensor),
        #[allow(unreachable_patterns, reason = "other packages may add backends")]
        other => Err(format!("it is on {other:?}")),
    }
}

fn primitive<B: Readback, const D: usize>(tensor: Tensor<D>) -> Result<DeviceTensor, String>
where
    burn::tensor::DispatchTensor: burn::backend::DispatchKindConversion<B>,
{
    let primitive = tensor.try_into_primitive::<B>();
    B::on_device(primitive.map_err(|_| "it is on another backend than its device".to_owned())?)
}

/// Memory for a tensor: that of `own`, if it is not shared, or new.
pub(crate) fn claim<const D: usize>(
    own: Option<Tensor<D>>,
    shell: &Shell,
) -> Result<Claim<D>, String> {
    match shell.device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => host_memory::claim(shell),
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => device_memory::claim(own, shell),
        #[allow(unreachable_patterns, reason = "other packages may add backends")]
        other => {
            drop(own);
            Err(format!("it is on {other:?}"))
        }
    }
}

fn take_data(
    data: Result<TensorData, String>,
    take: impl FnOnce(Result<Option<HostSlice<'_>>, String>),
) {
    match data {
        Ok(data) => take(Ok(HostSlice::of(&data))),
        Err(cause) => take(Err(cause)),
    }
}

/// Values, and which of a tensor's elements they are.
pub(crate) type Run<'a> = (std::ops::Range<usize>, HostSlice<'a>);

#[cfg(feature = "flex")]
pub(crate) use flex::overwritten;

/// No backend of this build has its tensors in host memory.
#[cfg(not(feature = "flex"))]
pub(crate) fn overwritten<const D: usize>(
    _tensor: burn::Tensor<D>,
    _runs: &[Run<'_>],
) -> Option<burn::Tensor<D>> {
    None
}

#[cfg(feature = "flex")]
mod flex {
    use std::ops::Range;

    use burn::Tensor;
    use burn::backend::flex::FlexTensor;
    use burn::backend::{Element, Flex, TensorMetadata, ops::FloatTensorOps};
    use burn::tensor::{DType, Shape};
    use bytemuck::Pod;

    use super::host_memory;
    use super::{DeviceTensor, HostSlice, Readback, Run, take_data};

    /// The tensor with other values of the same number and type, in its own memory; `None` if that memory is shared,
    /// or is not in host memory and row-major.
    pub(crate) fn overwritten<const D: usize>(
        tensor: Tensor<D>,
        runs: &[Run<'_>],
    ) -> Option<Tensor<D>> {
        let mut primitive = tensor.try_into_primitive::<Flex>().ok()?;
        let (start, end) = primitive.layout().contiguous_offsets()?;
        if end - start != runs.iter().map(|(_, values)| values.len()).sum::<usize>() {
            return None;
        }
        for (elems, values) in runs {
            let place = start + elems.start..start + elems.end;
            match values {
                HostSlice::F32(values) => overwrite(&mut primitive, place, values),
                HostSlice::F64(values) => overwrite(&mut primitive, place, values),
                HostSlice::F16(values) => overwrite(&mut primitive, place, values),
                HostSlice::BF16(values) => overwrite(&mut primitive, place, values),
            }?;
        }
        Some(Tensor::from_primitive::<Flex>(primitive))
    }

    fn overwrite<T: Element + Pod>(
        tensor: &mut FlexTensor,
        place: Range<usize>,
        values: &[T],
    ) -> Option<()> {
        if tensor.dtype() != T::dtype() {
            return None;
        }
        tensor.try_storage_mut::<T>()?[place].copy_from_slice(values);
        Some(())
    }

    pub(super) fn read(
        tensor: FlexTensor,
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

    impl Readback for Flex {
        fn flat(tensor: Self::FloatTensorPrimitive) -> Tensor<1> {
            let shape = Shape::new([tensor.shape().num_elements()]);
            Tensor::from_primitive::<Self>(Self::float_reshape(tensor, shape))
        }

        fn primitive(tensor: Tensor<1>) -> Option<Self::FloatTensorPrimitive> {
            tensor.try_into_primitive::<Self>().ok()
        }

        fn on_device(tensor: Self::FloatTensorPrimitive) -> Result<DeviceTensor, String> {
            let mut found = Err("it cannot be read".to_owned());
            read(tensor, |values| {
                found = values.and_then(|values| {
                    let values = values.ok_or("its type is none that gradients have")?;
                    host_memory::tensor(values)
                });
            });
            found
        }
    }
}

/// Host memory does not belong to a device.
#[cfg(all(feature = "flex", not(test)))]
mod host_memory {
    use super::{Claim, DeviceTensor, HostSlice, Shell};

    const REASON: &str = "it is in host memory";

    pub(super) fn tensor(_values: HostSlice<'_>) -> Result<DeviceTensor, String> {
        Err(REASON.to_owned())
    }

    pub(super) fn claim<const D: usize>(_shell: &Shell) -> Result<Claim<D>, String> {
        Err(REASON.to_owned())
    }
}

/// In tests it stands in for a device's.
#[cfg(all(feature = "flex", test))]
mod host_memory {
    use super::{Claim, DeviceTensor, HostSlice, Shell, Tensor};
    use crate::reducer::device_route::double;

    pub(super) fn tensor(values: HostSlice<'_>) -> Result<DeviceTensor, String> {
        Ok(double::tensor(values))
    }

    pub(super) fn claim<const D: usize>(shell: &Shell) -> Result<Claim<D>, String> {
        let shell = shell.clone();
        let elems = shell.shape.iter().product();
        let dtype = crate::values::reducible(shell.tensor_dtype).expect("checked when it began");
        let (memory, seen) = double::zeros(dtype, elems);
        let finish = move || {
            let values = seen.lock().expect("no holder of the lock panics");
            let data = values.slice(0..elems).to_tensor_data(&shell.shape);
            Tensor::from_data(data, (&shell.device, shell.tensor_dtype))
        };
        Ok(Claim { memory, finish: Box::new(finish) })
    }
}

#[cfg(feature = "cube")]
mod cube {
    use burn::backend::{Cube, TensorMetadata, ops::FloatTensorOps};
    use burn::tensor::{Shape, Tensor};

    use super::{DeviceTensor, Readback, device_memory};

    impl Readback for Cube {
        fn flat(tensor: Self::FloatTensorPrimitive) -> Tensor<1> {
            let shape = Shape::new([tensor.shape().num_elements()]);
            Tensor::from_primitive::<Self>(Self::float_reshape(tensor, shape))
        }

        fn primitive(tensor: Tensor<1>) -> Option<Self::FloatTensorPrimitive> {
            tensor.try_into_primitive::<Self>().ok()
        }

        fn on_device(tensor: Self::FloatTensorPrimitive) -> Result<DeviceTensor, String> {
            device_memory::tensor(tensor)
        }
    }
}

/// Only memory of CUDA devices has addresses.
#[cfg(all(feature = "cube", not(feature = "cuda")))]
mod device_memory {
    use burn::backend::{BackendTypes, Cube};
    use burn::tensor::Tensor;

    use super::{Claim, DeviceTensor, Shell};

    const REASON: &str = "it is not on CUDA";

    pub(super) fn tensor(
        _tensor: <Cube as BackendTypes>::FloatTensorPrimitive,
    ) -> Result<DeviceTensor, String> {
        Err(REASON.to_owned())
    }

    pub(super) fn claim<const D: usize>(
        _own: Option<Tensor<D>>,
        _shell: &Shell,
    ) -> Result<Claim<D>, String> {
        Err(REASON.to_owned())
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
