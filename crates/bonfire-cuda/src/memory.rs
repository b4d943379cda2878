//! Device memory that this process owns.

pub(crate) mod foreign;
pub(crate) mod host_memory;
pub(crate) mod ipc;
pub(crate) mod mapping;
pub(crate) mod pinned;
pub(crate) mod span;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};

use crate::driver::context::Context;
use crate::error::{Result, check};
use crate::memory::mapping::Mapping;
use crate::memory::span::{Memory, Span, Users};

/// An allocation in device memory. Freed on drop, once all work of the contexts that used it is done.
///
/// Before drop, the code that queued a wait for another rank must see it released: the drop waits for it.
#[derive(Debug)]
pub struct DeviceRegion {
    backing: Backing,
    len: usize,
    context: Context,
    users: Users,
}

#[derive(Debug)]
enum Backing {
    Allocated(CUdeviceptr),
    Mapped(Mapping),
}

/// Smaller allocations share a block of this size, and all of a block is exported together.
const BLOCK_BYTES: usize = 2 << 20;

impl DeviceRegion {
    /// At least `len` bytes, with unknown content. Rounded up to blocks of 2 MiB, so that exporting it
    /// to another process exports nothing else.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::CudaError::OutOfMemory) if the device is full.
    pub fn allocate(context: &Context, len: usize) -> Result<Arc<Self>> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        context.bind()?;
        let rounded = len.next_multiple_of(BLOCK_BYTES);
        let mut address = 0;
        // SAFETY: `address` is a live integer that the call writes; a context is current.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, rounded) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(context.out_of_memory(rounded)?);
        }
        check("cuMemAlloc", result)?;
        Ok(Self::of(context, Backing::Allocated(address), len))
    }

    /// As [`allocate`](Self::allocate), to be given to other processes by a [`descriptor`](Self::descriptor).
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::CudaError::OutOfMemory) if the device is full; what the driver says if the device
    /// [gives no descriptors](crate::Device::gives_descriptors).
    pub fn allocate_for_descriptor(context: &Context, len: usize) -> Result<Arc<Self>> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        let mapping = Mapping::allocate(context, len)?;
        Ok(Self::of(context, Backing::Mapped(mapping), len))
    }

    fn of(context: &Context, backing: Backing, len: usize) -> Arc<Self> {
        Arc::new(Self { backing, len, context: context.clone(), users: Users::default() })
    }

    /// For another process of this machine, with the bytes that it [opens](crate::ImportedRegion::open_descriptor).
    ///
    /// # Panics
    /// If it was not [allocated for one](Self::allocate_for_descriptor).
    pub fn descriptor(&self) -> Result<(OwnedFd, usize)> {
        match &self.backing {
            Backing::Mapped(mapping) => Ok((mapping.descriptor()?, mapping.bytes())),
            Backing::Allocated(_) => panic!("the region was not allocated for a descriptor"),
        }
    }

    /// Lets work of another context of this process touch it.
    ///
    /// # Errors
    /// What the driver says if the devices cannot reach each other.
    pub fn open_to(&self, context: &Context) -> Result<()> {
        match &self.backing {
            Backing::Allocated(_) => context.enable_peer(&self.context),
            Backing::Mapped(mapping) => mapping.allow(context),
        }
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn span(self: &Arc<Self>) -> Span {
        Span::of(Memory::Own(Arc::clone(self)), self.len)
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        match &self.backing {
            Backing::Allocated(address) => *address,
            Backing::Mapped(mapping) => mapping.address(),
        }
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        self.users.synchronize_with(&self.context);
        // A mapping is dropped behind this, when everything that used it is done as well.
        if let Backing::Allocated(address) = self.backing {
            // SAFETY: the address came from cuMemAlloc and is freed once; every context that queued work
            // on it is idle, and no span is left, since each holds the Arc. Errors of earlier work come
            // back here too and have been reported where they happened.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }
}
