//! The devices that there are, and their attributes.

use std::ffi::c_char;

use crate::driver::mapping::has_descriptors;
use crate::settings::{Fault, Settings};
use crate::status::{Status, done, give};

/// The version of CUDA 13.0.
const DRIVER_VERSION: i32 = 13_000;

const MULTIPROCESSORS: i32 = 16;

/// Checks that there is such a device.
pub(crate) fn known(device: i32) -> Result<usize, Status> {
    let number = usize::try_from(device).map_err(|_| Status::InvalidDevice)?;
    if number < Settings::get().devices { Ok(number) } else { Err(Status::InvalidDevice) }
}

pub(crate) fn reaches(from: usize, to: usize) -> bool {
    from == to || !Settings::get().has(Fault::NoPeer)
}

/// Writes text with its end into a caller's buffer.
fn give_text(place: *mut c_char, len: i32, text: &str) -> Result<(), Status> {
    let len = usize::try_from(len).map_err(|_| Status::InvalidValue)?;
    if place.is_null() || len <= text.len() {
        return Err(Status::InvalidValue);
    }
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller's buffer has `len` bytes, more than the text, as the driver asks of it.
        let target = unsafe { place.add(index) };
        // SAFETY: as above.
        unsafe { target.write(byte as c_char) };
    }
    Ok(())
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> Status {
    Settings::get();
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Option<&mut i32>) -> Status {
    done(give(version, DRIVER_VERSION))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Option<&mut i32>) -> Status {
    done(give(count, Settings::get().devices as i32))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Option<&mut i32>, ordinal: i32) -> Status {
    done(known(ordinal).and_then(|_| give(device, ordinal)))
}

/// The devices of compute capability 7.5 that have no tensor cores are known by this word in their names.
fn name() -> &'static str {
    match Settings::get().capability {
        (7, 5) => "stand-in for a GTX",
        _ => "stand-in for a GPU",
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(target: *mut c_char, len: i32, device: i32) -> Status {
    done(known(device).and_then(|_| give_text(target, len, name())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32) -> Status {
    let text = |number| format!("0000:{:02X}:00.0", number + 1);
    done(known(device).and_then(|number| give_text(id, len, &text(number))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Option<&mut [u8; 16]>, device: i32) -> Status {
    let mut bytes = *b"stand-in GPU 000";
    bytes[15] += device as u8;
    done(known(device).and_then(|_| give(uuid, bytes)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetLuid(
    _luid: *mut c_char,
    _mask: Option<&mut u32>,
    _device: i32,
) -> Status {
    Status::NotSupported
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Option<&mut usize>, device: i32) -> Status {
    done(known(device).and_then(|_| give(bytes, Settings::get().memory_bytes)))
}

/// Attributes by their numbers in cuda.h; what is not listed is not there.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(
    value: Option<&mut i32>,
    attribute: u32,
    device: i32,
) -> Status {
    let settings = Settings::get();
    let (major, minor) = settings.capability;
    let number = match attribute {
        1..=3 => 1024,         // threads per block; block in x, y
        4 => 64,               // block in z
        5 => i32::MAX,         // grid in x
        6 | 7 => 65_535,       // grid in y, z
        8 => 48 << 10,         // shared memory per block
        10 => 32,              // warp
        12 | 82 => 65_536,     // registers per block, per multiprocessor
        16 => MULTIPROCESSORS, // multiprocessors
        17 => i32::from(device == 0 && settings.has(Fault::KernelTimeLimit)),
        31 | 40 | 41 => 1, // concurrent kernels, copy engines, unified addressing
        33 => device + 1,  // PCI bus
        39 => 2048,        // threads per multiprocessor
        75 => major,
        76 => minor,
        81 | 97 => crate::driver::module::SHARED_BYTES_MAX as i32, // shared memory at most
        102 | 103 => i32::from(has_descriptors()), // virtual memory management, with descriptors
        _ => 0,
    };
    done(known(device).and_then(|_| give(value, number)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(can: Option<&mut i32>, from: i32, to: i32) -> Status {
    let answer = known(from).and_then(|from| Ok((from, known(to)?)));
    done(answer.and_then(|(from, to)| give(can, i32::from(from != to && reaches(from, to)))))
}

/// All links are the same, as over NVLink.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetP2PAttribute(
    value: Option<&mut i32>,
    attribute: u32,
    from: i32,
    to: i32,
) -> Status {
    const PERFORMANCE_RANK: u32 = 1;
    let answer = known(from).and_then(|from| Ok((from, known(to)?)));
    done(answer.and_then(|(from, to)| {
        let reaches = i32::from(reaches(from, to));
        give(value, if attribute == PERFORMANCE_RANK { 0 } else { reaches })
    }))
}
