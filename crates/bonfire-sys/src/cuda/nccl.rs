//! NVIDIA's collective library, loaded at run time: only to measure against.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use libloading::Library;

use super::context::Context;
use super::error::CudaError;
use super::span::Span;
use super::stream::Stream;

/// The names it goes by.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; 128],
}

type Raw = *mut c_void;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type CommInitRank = unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int) -> c_int;
type CommDestroy = unsafe extern "C" fn(Raw) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Raw, Raw) -> c_int;

/// The library.
#[derive(Debug)]
pub struct Nccl {
    get_version: GetVersion,
    get_unique_id: GetUniqueId,
    comm_init_rank: CommInitRank,
    comm_destroy: CommDestroy,
    all_reduce: AllReduce,
    _library: Library,
}

/// A rank's membership in a group of NCCL.
#[derive(Debug)]
pub struct NcclRank {
    raw: Raw,
    nccl: Arc<Nccl>,
    context: Context,
}

// SAFETY: a communicator may be used from any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for NcclRank {}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

impl Nccl {
    /// Finds and loads it; `None` where there is none.
    pub fn load() -> Option<Arc<Self>> {
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: loading a library runs its initialisers; NCCL's are those that every user runs.
            unsafe { Library::new(*name) }.ok()
        })?;
        Some(Arc::new(Self {
            get_version: symbol(&library, "ncclGetVersion")?,
            get_unique_id: symbol(&library, "ncclGetUniqueId")?,
            comm_init_rank: symbol(&library, "ncclCommInitRank")?,
            comm_destroy: symbol(&library, "ncclCommDestroy")?,
            all_reduce: symbol(&library, "ncclAllReduce")?,
            _library: library,
        }))
    }

    /// Its version, as 23007 for 2.30.7.
    ///
    /// # Errors
    /// What it says.
    pub fn version(&self) -> Result<u32, CudaError> {
        let mut version = 0;
        // SAFETY: `version` is a live integer that the call writes (nccl.h).
        checked("ncclGetVersion", unsafe {
            (self.get_version)(&mut version)
        })?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// A name for a new group.
    ///
    /// # Errors
    /// What it says.
    pub fn unique_id(&self) -> Result<UniqueId, CudaError> {
        let mut id = UniqueId { bytes: [0; 128] };
        // SAFETY: `id` is a live struct of the size that nccl.h states, which the call writes.
        checked("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }
}

impl NcclRank {
    /// Joins a group; blocks until all ranks have.
    ///
    /// # Errors
    /// What it says.
    pub fn join(
        nccl: &Arc<Nccl>,
        context: &Context,
        id: UniqueId,
        rank: u32,
        world_size: u32,
    ) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; a context is current (nccl.h).
        let result = unsafe {
            (nccl.comm_init_rank)(&mut raw, world_size.cast_signed(), id, rank.cast_signed())
        };
        checked("ncclCommInitRank", result)?;
        Ok(Self {
            raw,
            nccl: Arc::clone(nccl),
            context: context.clone(),
        })
    }

    /// Queues a sum of f32 in place.
    ///
    /// # Errors
    /// What it says.
    pub fn all_reduce_f32(&mut self, stream: &Stream, data: &Span) -> Result<(), CudaError> {
        self.context.bind()?;
        data.used_by(&self.context);
        let address = data.address() as *mut c_void;
        // SAFETY: the data are device memory of that many floats that is freed only after this context
        // is idle; stream and communicator are valid and of this context (nccl.h).
        let result = unsafe {
            (self.nccl.all_reduce)(
                address,
                address,
                data.len() / size_of::<f32>(),
                FLOAT32,
                SUM,
                self.raw,
                stream.raw().cast(),
            )
        };
        checked("ncclAllReduce", result)
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: the communicator was made once and is destroyed once; the library is loaded.
        let _ = unsafe { (self.nccl.comm_destroy)(self.raw) };
    }
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: every use names a function of nccl.h with its type there.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.ok().map(|function| *function)
}

fn checked(call: &'static str, result: c_int) -> Result<(), CudaError> {
    if result == 0 {
        return Ok(());
    }
    Err(CudaError::Call {
        call,
        name: format!("ncclResult {result}"),
        description: "set NCCL_DEBUG=WARN to see why".to_owned(),
        code: u32::try_from(result).unwrap_or(u32::MAX),
    })
}
