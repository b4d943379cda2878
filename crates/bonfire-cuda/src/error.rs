//! What can go wrong with a GPU, and what to do about it.

pub(crate) mod version;

use std::ffi::CStr;
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use version::CudaVersion;

#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    #[error(
        "no CUDA driver: {reason}; install NVIDIA's driver, or start the container with the GPUs \
         (`--gpus all`)"
    )]
    NoDriver { reason: String },
    #[error(
        "the driver is made for CUDA {found}, but {needed} or later is needed: update the driver"
    )]
    DriverTooOld { found: CudaVersion, needed: CudaVersion },
    #[error("no CUDA device {ordinal}: there are {count}; see CUDA_VISIBLE_DEVICES and nvidia-smi")]
    NoDevice { ordinal: u32, count: u32 },
    #[error(
        "no NVRTC ({reason}): install the CUDA toolkit or its nvrtc package of the driver's major \
         version, and set CUDA_PATH if it is not in the library path"
    )]
    NoCompiler { reason: String },
    /// The headers that Burn's kernels include are not there.
    #[error(
        "no headers of CUDA ({reason}): Burn's kernels include them; install the CUDA toolkit of the driver's \
         major version, and set CUDA_PATH to the folder that has include/cuda_fp16.h"
    )]
    NoToolkit { reason: String },
    #[error(
        "no NCCL ({reason}): install NVIDIA's libnccl2, 2.17 or later, for the driver's major version, and \
         set LD_LIBRARY_PATH if it is elsewhere; groups of GPUs of one host need none"
    )]
    NoNccl { reason: String },
    /// A kernel does not compile; a fault of this crate or of an NVRTC that is too old.
    #[error("NVRTC refuses the kernel {kernel} ({code}):\n{log}")]
    Compile { kernel: String, code: String, log: String },
    #[error(
        "no {bytes} bytes of device memory to be had on device {ordinal}, {free} of {total} are \
         free: use a smaller model or batch, or fewer ranks on this device"
    )]
    OutOfMemory { bytes: usize, ordinal: u32, free: usize, total: usize },
    #[error("{what}: bytes {start}..{end} of {len}")]
    Range {
        what: &'static str,
        start: usize,
        /// One past the last byte.
        end: usize,
        len: usize,
    },
    /// The driver does not have a function that a later one has.
    #[error("this driver has no {function}: it came with CUDA {since}; update the driver")]
    Missing { function: &'static str, since: CudaVersion },
    #[error("{call}: {name} ({description})")]
    Call { call: &'static str, name: String, description: String, code: u32 },
}

pub(crate) type Result<T, E = CudaError> = std::result::Result<T, E>;

/// What cuda.h says of leaves "the process in an inconsistent state", or without the context. The last two
/// have no name in bindings older than CUDA 12.8: a fault of a device or of memory over NVLink that was
/// contained, and lost memory of tensor cores.
const STICKY: [u32; 13] = [
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as u32,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as u32,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT as u32,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as u32,
    CUresult::CUDA_ERROR_ASSERT as u32,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR as u32,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION as u32,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS as u32,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE as u32,
    CUresult::CUDA_ERROR_INVALID_PC as u32,
    CUresult::CUDA_ERROR_LAUNCH_FAILED as u32,
    226,
    721,
];

impl CudaError {
    /// Whether nothing more can be done in this process with this device: its context is lost.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Self::Call { code, .. } if STICKY.contains(code))
    }
}

/// Turns the result of a driver call into an error that names the call.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call {
        call,
        name: format!("{result:?}"),
        description: describe(result),
        code: result as u32,
    })
}

pub(crate) fn describe(result: CUresult) -> String {
    let mut text = ptr::null();
    // SAFETY: the library is loaded, or there would be no result of it; `text` is a live pointer that the call writes.
    let known = unsafe { sys::cuGetErrorString(result, &mut text) };
    if known != CUresult::CUDA_SUCCESS || text.is_null() {
        return "no description".to_owned();
    }
    // SAFETY: on success the text is a constant of the driver, which ends in NUL and is never freed.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
