//! Virtual memory management: allocations, addresses, and what is mapped where; and descriptors of allocations, which are
//! those of memory objects.
//!
//! An object says in its name which device it is of. Access goes by device, whatever `cuCtxEnablePeerAccess` says.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::calls::tell;
use crate::driver::context::Context;
use crate::driver::device::{known, reaches};
use crate::driver::memory::{Kind, Mapped, displace, object, place, set_open};
use crate::settings::{Fault, Settings};
use crate::status::{Status, done, give};
use crate::table::{Table, lock};

/// Has the layout of `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: u32,
    id: i32,
}

/// Has the layout of `CUmemAllocationProp`.
#[repr(C)]
pub struct Properties {
    kind: u32,
    handles: u32,
    location: Location,
    windows: *mut c_void,
    flags: [u8; 8],
}

/// Has the layout of `CUmemAccessDesc`.
#[repr(C)]
pub struct Access {
    location: Location,
    flags: u32,
}

const GRANULARITY: usize = 2 << 20;

const DEVICE: u32 = 1;
/// A kind of memory: page-locked, the only one.
const PINNED: u32 = 1;
const DESCRIPTOR: u32 = 1;
const READ_AND_WRITE: u32 = 3;

const NAME: &str = "stand-in device ";

/// Memory of a device, of this process or another.
pub(crate) struct Allocation {
    file: File,
    len: usize,
    device: usize,
    is_own: bool,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.is_own {
            let used = &Context::of_device(self.device).used_bytes;
            used.fetch_sub(self.len, Ordering::Relaxed);
        }
    }
}

static ALLOCATIONS: Table<Allocation> = Table::new(0xa_0000_0000);

static RESERVED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

pub(crate) fn has_descriptors() -> bool {
    !Settings::get().has(Fault::NoDescriptors)
}

fn device_at(location: Location) -> Result<usize, Status> {
    if location.kind != DEVICE {
        return Err(Status::InvalidValue);
    }
    known(location.id)
}

fn create(len: usize, properties: &Properties) -> Result<usize, Status> {
    if !has_descriptors() {
        return Err(Status::NotSupported);
    }
    let device = device_at(properties.location)?;
    let is_known = properties.kind == PINNED && properties.handles == DESCRIPTOR;
    if !is_known || len == 0 || !len.is_multiple_of(GRANULARITY) {
        return Err(Status::InvalidValue);
    }
    let used = &Context::of_device(device).used_bytes;
    let before = used.fetch_add(len, Ordering::Relaxed);
    if before + len > Settings::get().memory_bytes {
        used.fetch_sub(len, Ordering::Relaxed);
        return Err(Status::OutOfMemory);
    }
    let name = CString::new(format!("{NAME}{device}")).expect("no zero in it");
    let made = object(len, &name).map(|file| Allocation { file, len, device, is_own: true });
    Ok(ALLOCATIONS.insert(made?))
}

/// What another process has given, or this one.
fn import(descriptor: i32) -> Result<usize, Status> {
    let link =
        fs::read_link(format!("/proc/self/fd/{descriptor}")).map_err(|_| Status::InvalidValue)?;
    let name = link.to_string_lossy();
    let device = name
        .strip_prefix("/memfd:")
        .and_then(|name| name.strip_prefix(NAME))
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .ok_or(Status::InvalidValue)?;
    // SAFETY: it is open: it was found just now, and its owner keeps it during the call.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = file.try_clone_to_owned().map(File::from);
    let file = file.map_err(|_| Status::OutOfMemory)?;
    let len = file.metadata().map_err(|_| Status::InvalidValue)?.len() as usize;
    Ok(ALLOCATIONS.insert(Allocation { file, len, device, is_own: false }))
}

/// Maps at an address that is reserved: an object, or nothing again.
fn map_at(address: u64, len: usize, file: Option<&File>) -> Result<(), Status> {
    let shared = libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (access, flags, file) = match file {
        Some(file) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: the range was reserved here and is nobody else's; who still uses what was there breaks the driver's rules.
    let made = unsafe { libc::mmap(address as *mut c_void, len, access, shared | flags, file, 0) };
    if made == libc::MAP_FAILED { Err(Status::OutOfMemory) } else { Ok(()) }
}

fn reserve(len: usize) -> Result<u64, Status> {
    if len == 0 || !len.is_multiple_of(GRANULARITY) {
        return Err(Status::InvalidValue);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the system chooses an address where nothing is.
    let made = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    if made == libc::MAP_FAILED {
        return Err(Status::OutOfMemory);
    }
    lock(&RESERVED).insert(made as u64, len);
    Ok(made as u64)
}

fn map(address: u64, len: usize, allocation: Arc<Allocation>) -> Result<(), Status> {
    if lock(&RESERVED).get(&address) != Some(&len) || allocation.len != len {
        return Err(Status::InvalidValue);
    }
    map_at(address, len, Some(&allocation.file))?;
    let kind = if allocation.is_own {
        Kind::Device(allocation.device)
    } else {
        Kind::Imported(allocation.device)
    };
    place(address, len, kind, Mapped::of(allocation));
    Ok(())
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAllocationGranularity(
    granularity: Option<&mut usize>,
    _properties: Option<&Properties>,
    _option: u32,
) -> Status {
    done(give(granularity, GRANULARITY))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(
    handle: Option<&mut u64>,
    len: usize,
    properties: Option<&Properties>,
    _flags: u64,
) -> Status {
    tell("cuMemCreate");
    let properties = properties.ok_or(Status::InvalidValue);
    done(properties.and_then(|properties| give(handle, create(len, properties)? as u64)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Status {
    done(ALLOCATIONS.remove(handle as usize).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressReserve(
    address: Option<&mut u64>,
    len: usize,
    _alignment: usize,
    _wish: u64,
    _flags: u64,
) -> Status {
    done(reserve(len).and_then(|made| give(address, made)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, len: usize) -> Status {
    let mut reserved = lock(&RESERVED);
    if reserved.get(&address) != Some(&len) {
        return Status::InvalidValue;
    }
    reserved.remove(&address);
    // SAFETY: the range was reserved here, and the caller has unmapped what was there.
    unsafe { libc::munmap(address as *mut c_void, len) };
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: u64,
    len: usize,
    offset: usize,
    handle: u64,
    _flags: u64,
) -> Status {
    if offset != 0 {
        return Status::InvalidValue;
    }
    let allocation = ALLOCATIONS.get(handle as usize);
    done(allocation.and_then(|allocation| map(address, len, allocation)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, len: usize) -> Status {
    done(displace(address, len).and_then(|()| map_at(address, len, None)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(
    address: u64,
    len: usize,
    access: Option<&Access>,
    count: usize,
) -> Status {
    let (Some(access), 1) = (access, count) else {
        return Status::InvalidValue;
    };
    if access.flags != READ_AND_WRITE {
        return Status::InvalidValue;
    }
    done(device_at(access.location).and_then(|device| {
        set_open(address, len, device, |allocation| reaches(device, allocation.device))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemExportToShareableHandle(
    descriptor: Option<&mut i32>,
    handle: u64,
    kind: u32,
    _flags: u64,
) -> Status {
    tell("cuMemExportToShareableHandle");
    if kind != DESCRIPTOR {
        return Status::NotSupported;
    }
    done(ALLOCATIONS.get(handle as usize).and_then(|allocation| {
        let file = allocation.file.try_clone().map_err(|_| Status::OutOfMemory)?;
        give(descriptor, file.into_raw_fd())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemImportFromShareableHandle(
    handle: Option<&mut u64>,
    descriptor: usize,
    kind: u32,
) -> Status {
    tell("cuMemImportFromShareableHandle");
    if kind != DESCRIPTOR {
        return Status::NotSupported;
    }
    done(import(descriptor as i32).and_then(|made| give(handle, made as u64)))
}
