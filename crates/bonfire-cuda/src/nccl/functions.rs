//! The functions of NCCL and what they take, as `nccl.h` has them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::{UniqueId, VERSION_MIN, missing};
use crate::error::{CudaError, Result};

pub(super) type Raw = *mut c_void;
pub(super) type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
pub(super) type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
pub(super) type CommInit =
    unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int, *mut Config) -> c_int;
pub(super) type OnComm = unsafe extern "C" fn(Raw) -> c_int;
pub(super) type GetAsyncError = unsafe extern "C" fn(Raw, *mut c_int) -> c_int;
pub(super) type Group = unsafe extern "C" fn() -> c_int;
pub(super) type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Raw, Raw) -> c_int;
pub(super) type Rooted =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Raw, Raw) -> c_int;
pub(super) type Moved =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Raw, Raw) -> c_int;
pub(super) type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Raw, Raw) -> c_int;
pub(super) type Recv = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Raw, Raw) -> c_int;

/// `ncclConfig_t` as NCCL 2.17 has it; later versions take it by its size and version.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
}

const _: () = assert!(size_of::<Config>() == 40);

/// The value `NCCL_CONFIG_UNDEF_INT` of nccl.h.
const UNDEFINED: c_int = c_int::MIN;

pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

/// What this crate calls. The library must outlive it.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) get_version: GetVersion,
    pub(super) get_unique_id: GetUniqueId,
    pub(super) comm_init: CommInit,
    pub(super) comm_abort: OnComm,
    pub(super) get_async_error: GetAsyncError,
    pub(super) group_start: Group,
    pub(super) group_end: Group,
    pub(super) all_reduce: AllReduce,
    pub(super) reduce: Rooted,
    pub(super) broadcast: Moved,
    pub(super) send: Send,
    pub(super) recv: Recv,
}

impl Functions {
    pub(super) fn of(library: &Library) -> Result<Self> {
        Ok(Self {
            get_version: symbol(library, "ncclGetVersion")?,
            get_unique_id: symbol(library, "ncclGetUniqueId")?,
            comm_init: symbol(library, "ncclCommInitRankConfig")?,
            comm_abort: symbol(library, "ncclCommAbort")?,
            get_async_error: symbol(library, "ncclCommGetAsyncError")?,
            group_start: symbol(library, "ncclGroupStart")?,
            group_end: symbol(library, "ncclGroupEnd")?,
            all_reduce: symbol(library, "ncclAllReduce")?,
            reduce: symbol(library, "ncclReduce")?,
            broadcast: symbol(library, "ncclBroadcast")?,
            send: symbol(library, "ncclSend")?,
            recv: symbol(library, "ncclRecv")?,
        })
    }
}

impl Config {
    /// Of a communicator that never blocks.
    pub(super) const fn never_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: VERSION_MIN,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
        }
    }
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: every use names a function of nccl.h with its type there.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| missing(&format!("the library has no {name}")))
}

/// For calls that may continue in the background.
pub(super) fn begun(call: &'static str, result: c_int) -> Result<()> {
    if result == IN_PROGRESS {
        return Ok(());
    }
    checked(call, result)
}

pub(super) fn checked(call: &'static str, result: c_int) -> Result<()> {
    if result == SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call {
        call,
        name: format!("ncclResult {result}"),
        description: "set NCCL_DEBUG=WARN to see why".to_owned(),
        code: u32::try_from(result).unwrap_or(u32::MAX),
    })
}
