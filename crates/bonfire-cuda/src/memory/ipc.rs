//! Device memory shared between processes of one machine.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUipcMem_flags_enum, CUipcMemHandle};

use crate::driver::context::Context;
use crate::error::{CudaError, Result, check};
use crate::memory::DeviceRegion;
use crate::memory::mapping::Mapping;
use crate::memory::span::{Memory, Span, Users};

/// What a process sends so that another can map its device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// From another process these may be any: a wrong handle is refused when it is opened.
    pub bytes: [u8; Self::BYTES],
}

impl IpcHandle {
    pub const BYTES: usize = 64;

    /// The handle of a region, for another process of this machine.
    ///
    /// # Errors
    /// What the driver says: some containers and virtual machines forbid it.
    pub fn export(region: &DeviceRegion) -> Result<Self> {
        region.context().bind()?;
        let mut handle = CUipcMemHandle { reserved: [0; Self::BYTES] };
        // SAFETY: `handle` is a live struct that the call writes; the address is the base of an
        // allocation of cuMemAlloc that `region` keeps.
        check("cuIpcGetMemHandle", unsafe {
            sys::cuIpcGetMemHandle(&mut handle, region.address())
        })?;
        Ok(Self { bytes: handle.reserved.map(|byte| byte as u8) })
    }
}

/// Device memory of another process, mapped here. Unmapped on drop, once all work that used it is
/// done. The process that owns it must not free it before that.
#[derive(Debug)]
pub struct ImportedRegion {
    backing: Backing,
    len: usize,
    context: Context,
    users: Users,
}

#[derive(Debug)]
enum Backing {
    Opened(CUdeviceptr),
    Mapped(Mapping),
}

impl ImportedRegion {
    /// Maps the region behind a handle, which has `len` bytes.
    ///
    /// # Errors
    /// What the driver says: the handle may be of this very process, or of a device that this one cannot reach.
    pub fn open(context: &Context, handle: IpcHandle, len: usize) -> Result<Arc<Self>> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        context.bind()?;
        let raw = CUipcMemHandle { reserved: handle.bytes.map(|byte| byte as _) };
        let mut address = 0;
        // SAFETY: `address` is a live integer that the call writes; a context is current; a handle is
        // plain bytes, which the driver checks.
        check("cuIpcOpenMemHandle", unsafe {
            sys::cuIpcOpenMemHandle_v2(
                &mut address,
                raw,
                CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32,
            )
        })?;
        let region = Self::of(context, Backing::Opened(address), len);
        let found = region.mapped_len()?;
        if found < len {
            return Err(too_short(len, found));
        }
        Ok(region)
    }

    /// Maps the region behind a [descriptor](DeviceRegion::descriptor), which has `len` bytes; `bytes` came with it.
    ///
    /// # Errors
    /// What the driver says: the memory may be of a device that this one cannot reach, or have other bytes.
    pub fn open_descriptor(
        context: &Context,
        bytes: usize,
        file: BorrowedFd<'_>,
        len: usize,
    ) -> Result<Arc<Self>> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        if bytes < len {
            return Err(too_short(len, bytes));
        }
        let mapping = Mapping::open(context, file, bytes)?;
        Ok(Self::of(context, Backing::Mapped(mapping), len))
    }

    fn of(context: &Context, backing: Backing, len: usize) -> Arc<Self> {
        Arc::new(Self { backing, len, context: context.clone(), users: Users::default() })
    }

    pub fn span(self: &Arc<Self>) -> Span {
        Span::of(Memory::Imported(Arc::clone(self)), self.len)
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        match &self.backing {
            Backing::Opened(address) => *address,
            Backing::Mapped(mapping) => mapping.address(),
        }
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// How many bytes from its address on are really mapped.
    fn mapped_len(&self) -> Result<usize> {
        let (mut base, mut len) = (0, 0);
        // SAFETY: both are live integers that the call writes; the address is mapped.
        check("cuMemGetAddressRange", unsafe {
            sys::cuMemGetAddressRange_v2(&mut base, &mut len, self.address())
        })?;
        Ok(len.saturating_sub((self.address() - base) as usize))
    }
}

impl Drop for ImportedRegion {
    fn drop(&mut self) {
        self.users.synchronize_with(&self.context);
        // A mapping is dropped behind this, when everything that used it is done as well.
        if let Backing::Opened(address) = self.backing {
            // SAFETY: the address came from cuIpcOpenMemHandle and is closed once; every context that
            // queued work on it is idle, and no span is left, since each holds the Arc.
            let _ = unsafe { sys::cuIpcCloseMemHandle(address) };
        }
    }
}

fn too_short(len: usize, found: usize) -> CudaError {
    CudaError::Range {
        what: "memory imported from another process is shorter than agreed",
        start: 0,
        end: len,
        len: found,
    }
}
