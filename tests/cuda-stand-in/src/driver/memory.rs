//! Memory of devices, of the host as devices reach it, and of other processes.
//!
//! Each allocation of device memory is a memory object of its own without a name, so that another process
//! can map it; it is gone when nobody has it mapped any more.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::calls::tell;
use crate::driver::context::Context;
use crate::driver::mapping::Allocation;
use crate::driver::stream::stream_of;
use crate::settings::{Fault, Settings};
use crate::status::{Status, done, give};
use crate::table::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of this device and process.
    Device(usize),
    /// Of this device, allocated in the order of a stream: not for other processes, nor for words.
    Pool(usize),
    /// Mapped for this device, of another process.
    Imported(usize),
    /// Page-locked memory from the driver.
    Host,
    /// Page-locked memory of the program.
    Registered,
}

pub(crate) struct Block {
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    /// The memory object, where there is one.
    file: Option<File>,
    /// What virtual memory management has mapped.
    mapped: Option<Mapped>,
}

/// What is mapped, and for whom.
pub(crate) struct Mapped {
    allocation: Arc<Allocation>,
    /// The devices whose work may touch it.
    open_to: Vec<usize>,
}

impl Mapped {
    pub(crate) fn of(allocation: Arc<Allocation>) -> Self {
        Self { allocation, open_to: Vec::new() }
    }
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

/// The kind of a range that lies in one block, and that block's base.
pub(crate) fn find(address: u64, len: usize) -> Option<(u64, Kind)> {
    let blocks = lock(&BLOCKS);
    let (base, block) = blocks.range(..=address).next_back()?;
    let end = (address - base) as usize + len;
    (end <= block.len).then_some((*base, block.kind))
}

pub(crate) fn place(base: u64, len: usize, kind: Kind, mapped: Mapped) {
    let block = Block { len, kind, file: None, mapped: Some(mapped) };
    lock(&BLOCKS).insert(base, block);
}

pub(crate) fn displace(base: u64, len: usize) -> Result<(), Status> {
    let mut blocks = lock(&BLOCKS);
    let found = blocks.get(&base).filter(|block| block.len == len && block.mapped.is_some());
    found.ok_or(Status::InvalidValue)?;
    blocks.remove(&base);
    Ok(())
}

/// Lets a device touch such a range, if it reaches it.
pub(crate) fn set_open(
    base: u64,
    len: usize,
    device: usize,
    reaches: impl Fn(&Allocation) -> bool,
) -> Result<(), Status> {
    let mut blocks = lock(&BLOCKS);
    let block = blocks.get_mut(&base).filter(|block| block.len == len);
    let mapped = block.and_then(|block| block.mapped.as_mut()).ok_or(Status::InvalidValue)?;
    if !reaches(&mapped.allocation) {
        return Err(Status::PeerAccessUnsupported);
    }
    mapped.open_to.push(device);
    Ok(())
}

/// Whether a device may touch the block at an address, where that goes by device.
fn is_open_to(base: u64, device: usize) -> Option<bool> {
    let blocks = lock(&BLOCKS);
    let mapped = blocks.get(&base)?.mapped.as_ref()?;
    Some(mapped.open_to.contains(&device))
}

/// Checks that a stream of this context can wait for the word or write it.
pub(crate) fn check_word(context: &Context, address: u64, bytes: usize) -> Result<(), Status> {
    let found = find(address, bytes);
    if let Some(is_open) = found.and_then(|(base, _)| is_open_to(base, context.device)) {
        return is_open.then_some(()).ok_or(Status::InvalidValue);
    }
    match found {
        Some((_, Kind::Device(device))) if context.may_touch(device) => Ok(()),
        Some((_, Kind::Imported(device))) if device == context.device => Ok(()),
        Some((_, Kind::Host | Kind::Registered)) => Ok(()),
        _ => Err(Status::InvalidValue),
    }
}

/// The memory object of an allocation, to be mapped by another process, and its size.
pub(crate) fn object_of(base: u64) -> Option<(i32, usize)> {
    let blocks = lock(&BLOCKS);
    let block = blocks.get(&base)?;
    let file = block.file.as_ref()?;
    matches!(block.kind, Kind::Device(_)).then(|| (file.as_raw_fd(), block.len))
}

/// Opens a memory object that a process has, this one or another.
pub(crate) fn open_object(process: u32, descriptor: i32) -> io::Result<File> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    OpenOptions::new().read(true).write(true).open(path)
}

pub(crate) fn map(file: File, len: usize, kind: Kind) -> Result<u64, Status> {
    // SAFETY: the system chooses an address where nothing is.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(Status::OutOfMemory);
    }
    let block = Block { len, kind, file: Some(file), mapped: None };
    lock(&BLOCKS).insert(address as u64, block);
    Ok(address as u64)
}

/// Unmaps a block whose kind is as expected.
pub(crate) fn unmap(base: u64, expected: impl Fn(Kind) -> bool) -> Result<Block, Status> {
    let mut blocks = lock(&BLOCKS);
    let found = blocks.get(&base).filter(|block| expected(block.kind));
    found.ok_or(Status::InvalidValue)?;
    let block = blocks.remove(&base).ok_or(Status::InvalidValue)?;
    // SAFETY: the range was mapped by `map` and nothing else was mapped there since; who still uses it breaks
    // the driver's rules, and is stopped by the system.
    unsafe { libc::munmap(base as *mut c_void, block.len) };
    Ok(block)
}

/// Memory that no path leads to; the name is what the system shows of it.
pub(crate) fn object(len: usize, name: &CStr) -> Result<File, Status> {
    // SAFETY: the name ends in NUL and lives through the call.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(Status::OutOfMemory);
    }
    // SAFETY: the descriptor is new and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    file.set_len(len as u64).map_err(|_| Status::OutOfMemory)?;
    Ok(file)
}

fn allocate(context: &Context, len: usize, kind: Kind) -> Result<u64, Status> {
    if len == 0 {
        return Err(Status::InvalidValue);
    }
    let before = context.used_bytes.fetch_add(len, Ordering::Relaxed);
    let fits = before + len <= Settings::get().memory_bytes;
    let made = if fits {
        object(len, c"stand-in").and_then(|file| map(file, len, kind))
    } else {
        Err(Status::OutOfMemory)
    };
    if made.is_err() {
        context.used_bytes.fetch_sub(len, Ordering::Relaxed);
    }
    made
}

fn allocate_host(address: Option<&mut *mut c_void>, len: usize) -> Result<(), Status> {
    let len = len.max(1);
    let made = object(len, c"stand-in").and_then(|file| map(file, len, Kind::Host))?;
    give(address, made as *mut c_void)
}

fn free(base: u64) -> Result<(), Status> {
    let own = |kind| matches!(kind, Kind::Device(_) | Kind::Pool(_));
    let Some((found, Kind::Device(device) | Kind::Pool(device))) = find(base, 1) else {
        return Err(Status::InvalidValue);
    };
    if found != base {
        return Err(Status::InvalidValue);
    }
    let context = Context::of_device(device);
    let block = unmap(base, own)?;
    context.used_bytes.fetch_sub(block.len, Ordering::Relaxed);
    Ok(())
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: Option<&mut u64>, len: usize) -> Status {
    tell("cuMemAlloc_v2");
    done(Context::current().and_then(|context| {
        let made = allocate(context, len, Kind::Device(context.device))?;
        give(address, made)
    }))
}

/// Waits for the device, as the driver may.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> Status {
    tell("cuMemFree_v2");
    done(Context::current().and_then(|context| {
        context.synchronize();
        free(address)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(address: Option<&mut u64>, len: usize, stream: usize) -> Status {
    tell("cuMemAllocAsync");
    done(stream_of(stream).and_then(|stream| {
        let made = allocate(stream.context, len, Kind::Pool(stream.context.device))?;
        give(address, made)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> Status {
    tell("cuMemFreeAsync");
    done(stream_of(stream).map(|stream| {
        stream.queue.push(move || {
            // Nobody learns of a wrong address here.
            let _ = free(address);
        });
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAddressRange_v2(
    base: Option<&mut u64>,
    len: Option<&mut usize>,
    address: u64,
) -> Status {
    let blocks = lock(&BLOCKS);
    let found = blocks
        .range(..=address)
        .next_back()
        .filter(|(base, block)| ((address - **base) as usize) < block.len);
    done(found.ok_or(Status::NotFound).and_then(|(start, block)| {
        base.map_or(Ok(()), |base| give(Some(base), *start))?;
        len.map_or(Ok(()), |len| give(Some(len), block.len))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(
    address: Option<&mut *mut c_void>,
    len: usize,
    _flags: u32,
) -> Status {
    tell("cuMemHostAlloc");
    done(allocate_host(address, len))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(address: Option<&mut *mut c_void>, len: usize) -> Status {
    tell("cuMemAllocHost_v2");
    done(allocate_host(address, len))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: u64) -> Status {
    tell("cuMemFreeHost");
    done(unmap(address, |kind| kind == Kind::Host).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: u64, len: usize, _flags: u32) -> Status {
    tell("cuMemHostRegister_v2");
    if Settings::get().has(Fault::NoHostLock) {
        return Status::NotSupported;
    }
    if address == 0 || len == 0 {
        return Status::InvalidValue;
    }
    let mut blocks = lock(&BLOCKS);
    let end = address + len as u64;
    let last = blocks.range(..end).next_back();
    if last.is_some_and(|(base, block)| base + block.len as u64 > address) {
        return Status::HostMemoryAlreadyRegistered;
    }
    let block = Block { len, kind: Kind::Registered, file: None, mapped: None };
    blocks.insert(address, block);
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: u64) -> Status {
    tell("cuMemHostUnregister");
    let mut blocks = lock(&BLOCKS);
    let found = blocks.get(&address).map(|block| block.kind);
    if found != Some(Kind::Registered) {
        return Status::HostMemoryNotRegistered;
    }
    blocks.remove(&address);
    Status::Success
}
