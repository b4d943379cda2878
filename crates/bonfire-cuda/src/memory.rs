//! Device memory that this process owns.

pub(crate) mod foreign;
pub(crate) mod host_memory;
pub(crate) mod ipc;
pub(crate) mod pinned;
pub(crate) mod span;

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};

use crate::driver::context::Context;
use crate::error::{CudaError, check};
use crate::memory::span::{Span, Users};

/// An allocation in device memory. Freed on drop, once all work of the contexts that used it is done.
///
/// Before drop, whoever queued a wait for another rank must see it released: the drop waits for it.
#[derive(Debug)]
pub struct DeviceRegion {
    address: CUdeviceptr,
    len: usize,
    context: Context,
    users: Users,
}

/// Smaller allocations share a block of this size, and all of a block is exported together.
const BLOCK_BYTES: usize = 2 << 20;

impl DeviceRegion {
    /// At least `len` bytes, with unknown content. Rounded up to blocks of 2 MiB, so that exporting it
    /// to another process exports nothing else.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] if the device is full.
    pub fn allocate(context: &Context, len: usize) -> Result<Arc<Self>, CudaError> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        context.bind()?;
        let rounded = len.next_multiple_of(BLOCK_BYTES);
        let mut address = 0;
        // SAFETY: `address` is a live integer that the call writes; a context is current.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, rounded) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let memory = context.memory_info()?;
            return Err(CudaError::OutOfMemory {
                bytes: rounded,
                ordinal: context.device().ordinal(),
                free: memory.free,
                total: memory.total,
            });
        }
        check("cuMemAlloc", result)?;
        Ok(Arc::new(Self {
            address,
            len,
            context: context.clone(),
            users: Users::default(),
        }))
    }

    /// The bytes asked for.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The context it was allocated in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// All of it.
    pub fn span(self: &Arc<Self>) -> Span {
        Span::of_region(Arc::clone(self))
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        self.users.synchronize_with(&self.context);
        // SAFETY: the address came from cuMemAlloc and is freed once; every context that queued work
        // on it is idle, and no span is left, since each holds the Arc. Errors of earlier work come
        // back here too and have been reported where they happened.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}
