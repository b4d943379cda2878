//! Device memory that other processes open.
//!
//! A handle says which process has which descriptor of the memory object; the system then lets processes of
//! the same user map it. Nothing has a name that could stay behind.

use std::process;

use crate::driver::context::Context;
use crate::driver::device::reaches;
use crate::driver::memory::{Kind, find, map, object_of, open_object, unmap};
use crate::settings::{Fault, Settings};
use crate::status::{Status, done, give};

/// Has the layout of `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle {
    magic: [u8; 16],
    process: u32,
    descriptor: i32,
    device: u32,
    unused: u32,
    len: u64,
    padding: [u8; 24],
}

const _: () = assert!(size_of::<Handle>() == 64);

const MAGIC: [u8; 16] = *b"stand-in memory!";

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuIpcGetMemHandle(handle: Option<&mut Handle>, address: u64) -> Status {
    if Settings::get().has(Fault::NoIpc) {
        return Status::NotSupported;
    }
    let Some((base, Kind::Device(device))) = find(address, 1) else {
        return Status::InvalidValue;
    };
    let object = object_of(base).filter(|_| base == address);
    done(object.ok_or(Status::InvalidValue).and_then(|(descriptor, len)| {
        let made = Handle {
            magic: MAGIC,
            process: process::id(),
            descriptor,
            device: device as u32,
            unused: 0,
            len: len as u64,
            padding: [0; 24],
        };
        give(handle, made)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcOpenMemHandle_v2(
    address: Option<&mut u64>,
    handle: Handle,
    _flags: u32,
) -> Status {
    done(open(handle).and_then(|made| give(address, made)))
}

fn open(handle: Handle) -> Result<u64, Status> {
    let context = Context::current()?;
    if handle.magic != MAGIC {
        return Err(Status::InvalidValue);
    }
    // A process has its own memory already, and the driver refuses to map it twice.
    if handle.process == process::id() {
        return Err(Status::InvalidContext);
    }
    if Settings::get().has(Fault::NoIpcOpen) || !reaches(context.device, handle.device as usize) {
        return Err(Status::PeerAccessUnsupported);
    }
    let file = open_object(handle.process, handle.descriptor);
    let file = file.map_err(|_| Status::InvalidValue)?;
    map(file, handle.len as usize, Kind::Imported(context.device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(address: u64) -> Status {
    done(unmap(address, |kind| matches!(kind, Kind::Imported(_))).map(|_| ()))
}
