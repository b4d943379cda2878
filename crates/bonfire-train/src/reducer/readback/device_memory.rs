//! Tensors in the memory of CUDA devices.

use burn::backend::{BackendTypes, Cube, TensorMetadata};
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::custom::StreamId;

use super::resident::Resident;
use super::{Claim, DeviceTensor, Shell, on_device};
use crate::reducer::readback::raw;

type Primitive = <Cube as BackendTypes>::FloatTensorPrimitive;

pub(super) fn tensor(tensor: Primitive) -> Result<DeviceTensor, String> {
    raw::on_device(Cube::resolved(tensor))
}

/// Memory for a tensor: that of `own`, if it is not shared and its elements lie in order, or new.
pub(super) fn claim<const D: usize>(
    own: Option<Tensor<D>>,
    shell: &Shell,
) -> Result<Claim<D>, String> {
    // What cannot be written to is given back before the new is taken, which may then be the same.
    match own.and_then(|own| sole(own, shell)) {
        Some(own) => in_place(own),
        None => fresh(shell),
    }
}

/// The tensor, if it is like the shell and may be written: the gradient of two parameters, such as that of a sum, may
/// not.
fn sole<const D: usize>(tensor: Tensor<D>, shell: &Shell) -> Option<CubeTensor> {
    let tensor = Cube::resolved(tensor.try_into_primitive::<Cube>().ok()?);
    let is_alike = tensor.dtype == shell.tensor_dtype && tensor.shape()[..] == shell.shape[..];
    let is_own = tensor.handle.stream == StreamId::current();
    let is_writable = is_own && tensor.can_mut() && tensor.is_contiguous();
    (is_alike && is_writable).then_some(tensor)
}

fn in_place<const D: usize>(tensor: CubeTensor) -> Result<Claim<D>, String> {
    let memory = raw::on_device(tensor.clone())?;
    Ok(Claim {
        memory,
        finish: Box::new(move || Tensor::from_primitive::<Cube>(Cube::known(tensor))),
    })
}

fn fresh<const D: usize>(shell: &Shell) -> Result<Claim<D>, String> {
    let elems = shell.shape.iter().product::<usize>();
    // In one dimension, where no backend leaves gaps.
    let flat = Tensor::<1>::empty([elems], (&shell.device, shell.tensor_dtype));
    let memory = on_device(flat.clone())?;
    let shape: [usize; D] =
        shell.shape[..].try_into().expect("a parameter has as many dimensions as its gradient");
    Ok(Claim { memory, finish: Box::new(move || flat.reshape(shape)) })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::world::device::open;
    use crate::{DeviceKind, LocalRank, Occupancy};

    fn device() -> Option<Device> {
        let alone = LocalRank { local_rank: 0, local_world_size: 1 };
        let opened = open(DeviceKind::Cuda, Occupancy::Oversubscribed, alone);
        opened.inspect_err(|error| println!("skipped: {error}")).ok().map(|(device, _)| device)
    }

    fn address<const D: usize>(tensor: &Tensor<D>) -> u64 {
        raw::address(&on_device(tensor.clone()).unwrap())
    }

    fn shell_of(tensor: &Tensor<2>) -> Shell {
        Shell {
            shape: tensor.dims().to_vec(),
            tensor_dtype: tensor.dtype(),
            device: tensor.device(),
        }
    }

    /// Where the average of a tensor would be, and one more than what is there.
    fn claimed(tensor: Tensor<2>) -> (u64, Vec<f32>) {
        let shell = shell_of(&tensor);
        let Claim { memory, finish } = claim(Some(tensor), &shell).unwrap();
        let address = raw::address(&memory);
        drop(memory);
        let more: Tensor<2> = finish() + 1.0;
        (address, more.into_data().try_to_vec().unwrap())
    }

    #[test]
    fn cuda_averages_take_the_memory_that_nobody_else_has() {
        let Some(device) = device() else { return };
        let made = || Tensor::<2>::ones([3, 4], &device) * 2.0;
        let tensor = made();
        let its = address(&tensor);
        assert_eq!(claimed(tensor), (its, vec![3.0; 12]));

        let shared = made();
        let its = address(&shared);
        assert_ne!(claimed(shared.clone()).0, its);
        assert_eq!(shared.into_data().try_to_vec::<f32>().unwrap(), [2.0; 12]);

        // Its rows are not where rows are looked for.
        let transposed = made().transpose();
        let shell = shell_of(&transposed);
        assert!(sole(transposed, &shell).is_none());
    }
}
