//! The status codes that calls return.

use std::ffi::{CStr, c_char};

/// Has the values of `CUresult`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    PeerAccessUnsupported = 217,
    FileNotFound = 301,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    PeerAccessAlreadyEnabled = 704,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    NotSupported = 801,
}

const ALL: [(Status, &CStr, &CStr); 15] = {
    use Status::*;
    [
        (Success, c"CUDA_SUCCESS", c"no error"),
        (InvalidValue, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        (OutOfMemory, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        (InvalidDevice, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        (InvalidImage, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        (InvalidContext, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        (
            PeerAccessUnsupported,
            c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
            c"peer access is not supported between these two devices",
        ),
        (FileNotFound, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
        (InvalidHandle, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        (NotFound, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        (NotReady, c"CUDA_ERROR_NOT_READY", c"device not ready"),
        (
            PeerAccessAlreadyEnabled,
            c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
            c"peer access is already enabled",
        ),
        (
            HostMemoryAlreadyRegistered,
            c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            c"part or all of the requested memory range is already mapped",
        ),
        (
            HostMemoryNotRegistered,
            c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
            c"pointer does not correspond to a registered memory region",
        ),
        (NotSupported, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    ]
};

/// What a call returns for a result.
pub(crate) fn done(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::Success)
}

pub(crate) fn give<T>(place: Option<&mut T>, value: T) -> Result<(), Status> {
    *place.ok_or(Status::InvalidValue)? = value;
    Ok(())
}

fn text(code: u32, place: Option<&mut *const c_char>, name: bool) -> Status {
    let found = ALL.iter().find(|(status, ..)| *status as u32 == code);
    let text = found.map(|(_, short, long)| if name { *short } else { *long });
    done(text.ok_or(Status::InvalidValue).and_then(|text| give(place, text.as_ptr())))
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: u32, place: Option<&mut *const c_char>) -> Status {
    text(code, place, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: u32, place: Option<&mut *const c_char>) -> Status {
    text(code, place, true)
}
