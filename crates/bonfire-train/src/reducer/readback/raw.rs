//! Burn's tensors as device memory: the only file of this crate that may be unsafe.
//!
//! A [`RawMemory`] is CubeCL's description of a tensor, and is made here alone. A [`Flight`] turns it into ranges that
//! kernels are queued on, and keeps them until the device is done.

pub(crate) mod order;

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex};

use bonfire_gpu::{Context, CudaGroup, CudaGroupError, NcclGroup, Span, Stream};
use burn::backend::TensorMetadata;
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::custom::StreamId;
use cubecl_runtime::runtime::Runtime;

use crate::values::DeviceTensor;
use crate::values::reducible;
use order::Order;

struct RawMemory {
    address: u64,
    bytes: usize,
    device: u32,
    /// The stream of CubeCL that the allocation belongs to.
    stream: StreamId,
    /// CubeCL's binding of the allocation: "a bound allocation is never freed, handed out again or
    /// relocated". Never looked at; the mutex makes it shareable.
    _binding: Mutex<Box<dyn Send>>,
}

impl fmt::Debug for RawMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawMemory({:#x}, {} bytes on device {})", self.address, self.bytes, self.device)
    }
}

/// The memory of a tensor on a CUDA device, in row-major order: its own, or that of a copy if its elements
/// lie in another order. Everything that leads to the tensor has been queued.
pub(crate) fn on_device(tensor: CubeTensor) -> Result<DeviceTensor, String> {
    let CubeDevice::Cuda(device) = &tensor.device else {
        return Err(format!("it is on {:?}, not on CUDA", tensor.device));
    };
    let device = u32::try_from(device.index).map_err(|error| error.to_string())?;
    let tensor = into_contiguous(tensor);
    // CubeCL orders a copy behind work of its other streams. What follows looks at the stream of this thread alone.
    let tensor = if tensor.handle.stream == StreamId::current() { tensor } else { tensor.copy() };
    let dtype = reducible(tensor.dtype)
        .ok_or_else(|| format!("gradients of type {:?} cannot be averaged", tensor.dtype))?;
    let elems = tensor.shape().num_elements();
    let bytes = elems * dtype.size_bytes();
    let resource = tensor
        .client
        .get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone())
        .map_err(|error| format!("{error:?}"))?;
    let found = resource.resource();
    let (address, size) = (found.ptr, found.size);
    assert!(size >= bytes as u64, "{elems} elements of {dtype} in {size} bytes");
    assert!(
        address.is_multiple_of(dtype.size_bytes() as u64),
        "elements of {dtype} at {address:#x}"
    );
    Ok(DeviceTensor {
        dtype,
        elems,
        memory: Arc::new(RawMemory {
            address,
            bytes,
            device,
            stream: tensor.handle.stream,
            _binding: Mutex::new(Box::new(resource)),
        }),
        // A handle: CubeCL writes in place only where there is no other.
        reader: Some(Box::new(Mutex::new(tensor))),
    })
}

#[cfg(test)]
pub(crate) fn address(tensor: &DeviceTensor) -> u64 {
    let memory = tensor.memory.downcast_ref::<RawMemory>();
    memory.expect("it is on a CUDA device").address
}

/// The owner of the stream on which work is queued.
///
/// # Safety
/// Once [`wait_idle`](Self::wait_idle) has returned `Ok`, all that was queued on the stream before is done.
pub(crate) unsafe trait Idle {
    /// Waits until the stream is idle, with a deadline.
    fn wait_idle(&self) -> Result<(), CudaGroupError>;
}

// SAFETY: `synchronize` returns `Ok` once an event has happened that it recorded on the group's stream, which
// the driver orders behind all that was queued there before.
unsafe impl Idle for CudaGroup {
    fn wait_idle(&self) -> Result<(), CudaGroupError> {
        self.synchronize()
    }
}

// SAFETY: as for `CudaGroup`; what NCCL queues, it queues on that stream, or orders that behind it.
unsafe impl Idle for NcclGroup {
    fn wait_idle(&self) -> Result<(), CudaGroupError> {
        self.synchronize()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Memory, and the stream of CubeCL that it belongs to.
    spans: Vec<(StreamId, Span)>,
}

impl Flight {
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(crate) fn board(&mut self, context: &Context, tensor: &DeviceTensor) -> Span {
        let memory = Arc::clone(&tensor.memory).downcast::<RawMemory>();
        let memory = memory.expect("tensors on CUDA devices have raw memory");
        assert_eq!(
            memory.device,
            context.device().ordinal(),
            "{memory:?} belongs to another device"
        );
        let (address, bytes, owner) = (memory.address, memory.bytes, memory.stream);
        // SAFETY: a `RawMemory` is made by `on_device` alone: the address and at least that number of bytes are
        // those that CubeCL's server names for a tensor of this device, whose primary context both use,
        // and the binding in the memory, which is the keeper, holds the allocation where it is. A clone of
        // the span stays here until `land` has seen the stream idle (`Idle`), or for ever, or until its memory is only
        // given to work that the device does behind that of the stream (`hand_back`).
        let span = unsafe { Span::foreign(context, address, bytes, memory) };
        self.spans.push((owner, span.clone()));
        span
    }

    /// Lets what this thread queues at CubeCL from now on wait, on the device, for everything on the group's `stream`,
    /// and gives the memory back that only such work can get.
    ///
    /// # Errors
    /// If that cannot be queued: then all memory stays.
    pub(crate) fn hand_back(&mut self, order: &mut Order, stream: &Stream) -> Result<(), String> {
        order.hold_back(stream)?;
        // CubeCL manages the memory of each of its streams apart, and gives it out again for later work of the same
        // stream only.
        let own = StreamId::current();
        self.spans.retain(|(owner, _)| *owner != own);
        Ok(())
    }

    /// Waits until the group's stream is idle, with its deadline, and gives the memory back.
    ///
    /// # Errors
    /// Those of the wait. The device may then still be at work: the memory is lost until the process ends.
    pub(crate) fn land(&mut self, group: &impl Idle) -> Result<(), CudaGroupError> {
        group.wait_idle()?;
        self.spans.clear();
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Work may still be queued on it.
        mem::take(&mut self.spans).into_iter().for_each(mem::forget);
    }
}
