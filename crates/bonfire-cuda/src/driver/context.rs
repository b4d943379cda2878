//! The primary context of a device: the one that Burn, and every library in the process, shares.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext};

use crate::driver::device::Device;
use crate::error::{CudaError, Result, check};

/// The primary context of a device, retained. Clones are the same context.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    raw: CUcontext,
    device: Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    pub free: usize,
    pub total: usize,
}

// SAFETY: a context handle is an opaque name; "the driver API is thread safe" (CUDA programming
// guide, contexts are "usable from any thread"), and this type dereferences nothing.
unsafe impl Send for Inner {}
// SAFETY: as above: every function that takes the handle may be called from several threads at once.
unsafe impl Sync for Inner {}

impl Context {
    /// Retains the primary context of a device, and creates it if nobody has.
    ///
    /// # Errors
    /// What the driver says: often that the device's memory is full.
    pub fn retain(device: &Device) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; the device came from the driver.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut raw, device.raw())
        })?;
        let inner = Arc::new(Inner { raw, device: device.clone() });
        Ok(Self { inner })
    }

    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Makes it the context of this thread, as most functions of the driver need it.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained, so the handle is valid.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.inner.raw) })
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }

    /// Waits for everything that was ever queued on any stream of this context, also by others.
    ///
    /// # Errors
    /// What the driver says, also about work that failed earlier.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: it takes no arguments; a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live integers that the call writes; a context is current.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(MemoryInfo { free, total })
    }

    pub(crate) fn out_of_memory(&self, bytes: usize) -> Result<CudaError> {
        let memory = self.memory_info()?;
        Ok(CudaError::OutOfMemory {
            bytes,
            ordinal: self.device().ordinal(),
            free: memory.free,
            total: memory.total,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: it was retained once in `retain` and is released once here; whatever lives in it
        // holds a clone of the Arc, so nothing does any more. A failure has nobody to go to.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.raw()) };
    }
}

/// A function of the driver, if it has it; the driver stays loaded for ever.
///
/// # Safety
/// `F` must be the type of the function with that name. The driver must be loaded.
pub(crate) unsafe fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: `Driver::load` found the library, so this returns it and does not panic.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller vouches for the type.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.ok().map(|function| *function)
}
