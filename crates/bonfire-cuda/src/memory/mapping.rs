//! Device memory of the driver's virtual memory management: what it gives to other processes is a descriptor of an
//! open file. It goes where the older handles of CUDA IPC do not, as between containers that share sockets and no more.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{self, CUdeviceptr, CUmemAllocationHandleType_enum, CUresult};

use crate::driver::context::Context;
use crate::error::{Result, check};

/// `CUmemLocation`. Declared here, like the two below, because headers from CUDA 13.2 on have a union in the place of
/// `id`, with the same layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    id: i32,
}

/// Has the layout of `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: u32,
    handles: u32,
    location: Location,
    windows: *mut c_void,
    flags: [u8; 8],
}

/// Has the layout of `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: u32,
}

/// The value of `CU_MEM_LOCATION_TYPE_DEVICE` in cuda.h.
const DEVICE: u32 = 1;
/// The value of `CU_MEM_ALLOCATION_TYPE_PINNED` in cuda.h.
const PINNED: u32 = 1;
/// The value of `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` in cuda.h.
const DESCRIPTOR: u32 = 1;
/// The value of `CU_MEM_ACCESS_FLAGS_PROT_READWRITE` in cuda.h.
const READ_AND_WRITE: u32 = 3;

const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

/// An allocation that is mapped for a device. Unmapped on drop, and freed when no process has it any more; all work that
/// used it must be done by then.
#[derive(Debug)]
pub(crate) struct Mapping {
    addresses: Addresses,
    allocation: Allocation,
}

impl Mapping {
    /// At least `len` bytes of the device of a context.
    pub(crate) fn allocate(context: &Context, len: usize) -> Result<Self> {
        context.bind()?;
        let properties = Properties {
            kind: PINNED,
            handles: DESCRIPTOR,
            location: location(context),
            windows: std::ptr::null_mut(),
            flags: [0; 8],
        };
        let mut granularity = 0;
        // SAFETY: `granularity` is a live integer that the call writes; `properties` has the layout that the call reads.
        check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(
                &mut granularity,
                (&raw const properties).cast(),
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        })?;
        let bytes = len.next_multiple_of(granularity.max(1));
        let mut handle = 0;
        // SAFETY: as above; `handle` is a live integer that the call writes.
        let result =
            unsafe { sys::cuMemCreate(&mut handle, bytes, (&raw const properties).cast(), 0) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(context.out_of_memory(bytes)?);
        }
        check("cuMemCreate", result)?;
        Self::map(context, Allocation { handle }, bytes)
    }

    /// Maps memory that another process gave, of that many bytes, for the device of a context.
    pub(crate) fn open(context: &Context, file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        context.bind()?;
        let mut handle = 0;
        // The call takes the number of the descriptor in the place of an address.
        let file = file.as_raw_fd() as usize as *mut c_void;
        // SAFETY: `handle` is a live integer that the call writes; the descriptor is open, because it is borrowed, and the
        // driver says what is none of its own. It does not keep it.
        check("cuMemImportFromShareableHandle", unsafe {
            sys::cuMemImportFromShareableHandle(
                &mut handle,
                file,
                CUmemAllocationHandleType_enum(DESCRIPTOR),
            )
        })?;
        Self::map(context, Allocation { handle }, bytes)
    }

    fn map(context: &Context, allocation: Allocation, bytes: usize) -> Result<Self> {
        let mut start = 0;
        // SAFETY: `start` is a live integer that the call writes; any address will do.
        check("cuMemAddressReserve", unsafe {
            sys::cuMemAddressReserve(&mut start, bytes, 0, 0, 0)
        })?;
        let addresses = Addresses { start, bytes };
        // SAFETY: the addresses are reserved and nothing is mapped there; the driver refuses an allocation of another size.
        check("cuMemMap", unsafe { sys::cuMemMap(start, bytes, 0, allocation.handle, 0) })?;
        let mapping = Self { addresses, allocation };
        mapping.allow(context)?;
        Ok(mapping)
    }

    pub(crate) fn allow(&self, context: &Context) -> Result<()> {
        let Addresses { start, bytes } = self.addresses;
        let access = Access { location: location(context), flags: READ_AND_WRITE };
        // SAFETY: all of the addresses are mapped; `access` is one description, of the layout that the call reads.
        check("cuMemSetAccess", unsafe {
            sys::cuMemSetAccess(start, bytes, (&raw const access).cast(), 1)
        })
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        let mut file: i32 = -1;
        // SAFETY: for this kind of handle the call writes one int, which is live.
        check("cuMemExportToShareableHandle", unsafe {
            sys::cuMemExportToShareableHandle(
                (&raw mut file).cast(),
                self.allocation.handle,
                CUmemAllocationHandleType_enum(DESCRIPTOR),
                0,
            )
        })?;
        // SAFETY: the call has made the descriptor for its caller, who has it alone.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.addresses.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.addresses.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Addresses { start, bytes } = self.addresses;
        // SAFETY: it was mapped so and is unmapped once; the owner of the mapping has waited for all work that used it.
        let _ = unsafe { sys::cuMemUnmap(start, bytes) };
    }
}

/// Addresses of this process, given back on drop.
#[derive(Debug)]
struct Addresses {
    start: CUdeviceptr,
    bytes: usize,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: they were reserved so and are given back once; nothing is mapped there any more.
        let _ = unsafe { sys::cuMemAddressFree(self.start, self.bytes) };
    }
}

/// A hold on memory of a device, ended on drop.
#[derive(Debug)]
struct Allocation {
    handle: sys::CUmemGenericAllocationHandle,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the handle is of cuMemCreate or cuMemImportFromShareableHandle and is released once.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

fn location(context: &Context) -> Location {
    Location { kind: DEVICE, id: context.device().raw() }
}
