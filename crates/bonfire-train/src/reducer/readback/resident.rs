//! Tensors of Burn's backend for devices, whether or not it fuses operations.
//!
//! That backend is `CubeBackend`, or `Fusion` of it if any package of a build enables fusion, which this crate cannot
//! know. Both are implemented here, and the type of Burn's backend chooses.

use burn::backend::{BackendTypes, TensorMetadata};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_fusion::custom::{CustomOpIr, OperationIr, StreamId, TensorIr};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime, NoOp, get_client};

/// A backend whose tensors are CubeCL's on a device, or lead to them.
pub(crate) trait Resident: BackendTypes {
    /// The tensor on the device, once all work for it is queued, which may be a plan of fused kernels.
    fn resolved(tensor: Self::FloatTensorPrimitive) -> CubeTensor;

    /// As [`resolved`](Self::resolved), for integers.
    fn resolved_int(tensor: Self::IntTensorPrimitive) -> CubeTensor;

    /// A tensor of Burn's for one that is on the device already.
    fn known(tensor: CubeTensor) -> Self::FloatTensorPrimitive;
}

/// Operations are queued one by one, when they are called.
impl Resident for CubeBackend {
    fn resolved(tensor: CubeTensor) -> CubeTensor {
        tensor
    }

    fn resolved_int(tensor: CubeTensor) -> CubeTensor {
        tensor
    }

    fn known(tensor: CubeTensor) -> CubeTensor {
        tensor
    }
}

/// Operations are collected, and queued when a result is needed.
impl<B> Resident for Fusion<B>
where
    B: FusionBackend
        + BackendTypes<FloatTensorPrimitive = CubeTensor, IntTensorPrimitive = CubeTensor>,
    B::FusionRuntime: FusionRuntime<FusionDevice = CubeDevice>,
{
    fn resolved(tensor: Self::FloatTensorPrimitive) -> CubeTensor {
        let client = tensor.client.clone();
        client.resolve_tensor_float::<B>(tensor)
    }

    fn resolved_int(tensor: Self::IntTensorPrimitive) -> CubeTensor {
        let client = tensor.client.clone();
        client.resolve_tensor_int::<B>(tensor)
    }

    /// An operation that does nothing leads to it.
    fn known(tensor: CubeTensor) -> Self::FloatTensorPrimitive {
        let (shape, dtype) = (tensor.shape(), tensor.dtype);
        let client = get_client::<B>(&tensor.device);
        let id = client.register_tensor_handle(B::float_tensor_handle(tensor));
        let output = TensorIr::uninit(id, shape, dtype);
        let operation = OperationIr::Custom(CustomOpIr::new("bonfire_average", &[], &[output]));
        let mut outputs = client.register(StreamId::current(), operation, NoOp::<B>::new());
        outputs.pop().expect("the operation has one output")
    }
}
