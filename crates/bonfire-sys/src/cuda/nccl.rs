//! NVIDIA's collective library, loaded at run time.
//!
//! A communicator is made without blocking, so that every wait for other ranks is one of the caller's: it
//! asks for the [`state`](NcclRank::state) until that is done, or gives up and drops the communicator. After
//! the reference of NCCL 2.14 and later.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use libloading::Library;

use super::context::Context;
use super::error::CudaError;
use super::event::EventState;
use super::span::Span;
use super::stream::Stream;

/// The names it goes by.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// What names a group to those who join it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::BYTES],
}

/// The element types that it adds (`ncclDataType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum NcclType {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
}

/// How it combines elements (`ncclRedOp_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum NcclOp {
    Sum = 0,
    Product = 1,
    Max = 2,
    Min = 3,
    Mean = 4,
}

/// A rank of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclPlace {
    /// Which.
    pub rank: u32,
    /// Of how many.
    pub world_size: u32,
}

type Raw = *mut c_void;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type CommInit = unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int, *mut Config) -> c_int;
type OnComm = unsafe extern "C" fn(Raw) -> c_int;
type GetAsyncError = unsafe extern "C" fn(Raw, *mut c_int) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Raw, Raw) -> c_int;
type Rooted =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Raw, Raw) -> c_int;
type Moved =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Raw, Raw) -> c_int;

/// `ncclConfig_t` as NCCL 2.17 has it; later versions take it by its size and version.
#[repr(C)]
struct Config {
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

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// The oldest version that makes communicators without blocking and takes [`Config`].
const VERSION_MIN: u32 = 21700;

/// The library.
#[derive(Debug)]
pub struct Nccl {
    get_unique_id: GetUniqueId,
    comm_init: CommInit,
    comm_abort: OnComm,
    get_async_error: GetAsyncError,
    group_start: Group,
    group_end: Group,
    all_reduce: AllReduce,
    reduce: Rooted,
    broadcast: Moved,
    version: u32,
    _library: Library,
}

/// A rank's membership in a group of NCCL. Dropping it gives up whatever it still does, without waiting for
/// other ranks: before, all ranks must be done with what they queued.
#[derive(Debug)]
pub struct NcclRank {
    raw: Raw,
    nccl: Arc<Nccl>,
    context: Context,
    world_size: u32,
}

// SAFETY: a communicator may be used from any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for NcclRank {}

impl UniqueId {
    /// Its size.
    pub const BYTES: usize = 128;

    /// As bytes, to send.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.bytes
    }

    /// From bytes that another rank sent.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self { bytes }
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

impl Nccl {
    /// Finds and loads it.
    ///
    /// # Errors
    /// [`CudaError::NoNccl`] where there is none, or one that is too old.
    pub fn load() -> Result<Arc<Self>, CudaError> {
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: loading a library runs its initialisers; NCCL's are those that every user runs.
            unsafe { Library::new(*name) }.ok()
        });
        let library = library.ok_or_else(|| missing("libnccl.so.2 is not in the library path"))?;
        let get_version: GetVersion = symbol(&library, "ncclGetVersion")?;
        let mut version = 0;
        // SAFETY: `version` is a live integer that the call writes (nccl.h).
        checked("ncclGetVersion", unsafe { get_version(&mut version) })?;
        let version = u32::try_from(version).unwrap_or(0);
        if version < VERSION_MIN {
            return Err(missing(&format!(
                "version {version} is older than {VERSION_MIN}"
            )));
        }
        Ok(Arc::new(Self {
            get_unique_id: symbol(&library, "ncclGetUniqueId")?,
            comm_init: symbol(&library, "ncclCommInitRankConfig")?,
            comm_abort: symbol(&library, "ncclCommAbort")?,
            get_async_error: symbol(&library, "ncclCommGetAsyncError")?,
            group_start: symbol(&library, "ncclGroupStart")?,
            group_end: symbol(&library, "ncclGroupEnd")?,
            all_reduce: symbol(&library, "ncclAllReduce")?,
            reduce: symbol(&library, "ncclReduce")?,
            broadcast: symbol(&library, "ncclBroadcast")?,
            version,
            _library: library,
        }))
    }

    /// Its version, as 23007 for 2.30.7.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// A name for a new group.
    ///
    /// # Errors
    /// What it says.
    pub fn unique_id(&self) -> Result<UniqueId, CudaError> {
        let mut id = UniqueId {
            bytes: [0; UniqueId::BYTES],
        };
        // SAFETY: `id` is a live struct of the size that nccl.h states, which the call writes.
        checked("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }
}

impl NcclRank {
    /// Begins to join a group. It is joined once [`state`](Self::state) is done.
    ///
    /// # Errors
    /// What it says.
    pub fn join(
        nccl: &Arc<Nccl>,
        context: &Context,
        id: UniqueId,
        place: NcclPlace,
    ) -> Result<Self, CudaError> {
        assert!(place.rank < place.world_size, "{place:?}");
        context.bind()?;
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: VERSION_MIN,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
        };
        let (rank, ranks) = (place.rank.cast_signed(), place.world_size.cast_signed());
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` and `config` are live and of the types that nccl.h states, the config of the size
        // and version that it names; the call writes the one and reads the other; a context is current.
        let result = unsafe { (nccl.comm_init)(&mut raw, ranks, id, rank, &mut config) };
        begun("ncclCommInitRankConfig", result)?;
        Ok(Self {
            raw,
            nccl: Arc::clone(nccl),
            context: context.clone(),
            world_size: place.world_size,
        })
    }

    /// Whether what was begun is queued: joining, or an operation. Nothing else may be asked of it before.
    ///
    /// # Errors
    /// What it says: some rank failed.
    pub fn state(&mut self) -> Result<EventState, CudaError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is valid until drop; `state` is a live integer that the call writes.
        let result = unsafe { (self.nccl.get_async_error)(self.raw, &mut state) };
        checked("ncclCommGetAsyncError", result)?;
        if state == IN_PROGRESS {
            return Ok(EventState::Pending);
        }
        checked("ncclCommGetAsyncError", state)?;
        Ok(EventState::Done)
    }

    /// Begins to queue a reduction of all ranks' data, in place, to all ranks.
    ///
    /// # Errors
    /// What it says.
    pub fn all_reduce(
        &mut self,
        stream: &Stream,
        data: &Span,
        (kind, op): (NcclType, NcclOp),
    ) -> Result<(), CudaError> {
        let (address, count) = self.prepare(stream, data, kind);
        // SAFETY: the data are device memory of that many elements that is freed only after this context
        // is idle; stream and communicator are valid and of this context (nccl.h).
        let result = unsafe {
            (self.nccl.all_reduce)(
                address,
                address,
                count,
                kind as c_int,
                op as c_int,
                self.raw,
                stream.raw().cast(),
            )
        };
        begun("ncclAllReduce", result)
    }

    /// Begins to queue reductions, in place, each to one rank: element by element of `parts`, the rank's
    /// number in the list.
    ///
    /// # Errors
    /// What it says.
    pub fn reduce_parts(
        &mut self,
        stream: &Stream,
        parts: &[(u32, Span)],
        (kind, op): (NcclType, NcclOp),
    ) -> Result<(), CudaError> {
        self.together(|own| {
            for (root, part) in parts {
                own.assert_root(*root);
                let (address, count) = own.prepare(stream, part, kind);
                // SAFETY: as in `all_reduce`; the root is one of the ranks (`assert_root`).
                let result = unsafe {
                    (own.nccl.reduce)(
                        address,
                        address,
                        count,
                        kind as c_int,
                        op as c_int,
                        root.cast_signed(),
                        own.raw,
                        stream.raw().cast(),
                    )
                };
                begun("ncclReduce", result)?;
            }
            Ok(())
        })
    }

    /// Begins to queue broadcasts of bytes, each from one rank: the rank's number in the list.
    ///
    /// # Errors
    /// What it says.
    pub fn broadcast_parts(
        &mut self,
        stream: &Stream,
        parts: &[(u32, Span)],
    ) -> Result<(), CudaError> {
        self.together(|own| {
            for (root, part) in parts {
                own.assert_root(*root);
                let (address, count) = own.prepare(stream, part, NcclType::U8);
                // SAFETY: as in `reduce_parts`.
                let result = unsafe {
                    (own.nccl.broadcast)(
                        address,
                        address,
                        count,
                        NcclType::U8 as c_int,
                        root.cast_signed(),
                        own.raw,
                        stream.raw().cast(),
                    )
                };
                begun("ncclBroadcast", result)?;
            }
            Ok(())
        })
    }

    /// Several operations as one, which begin and end together.
    fn together(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: it takes nothing; the group is ended below on this very thread (nccl.h).
        checked("ncclGroupStart", unsafe { (self.nccl.group_start)() })?;
        let queued = body(self);
        // SAFETY: a group was started on this thread above.
        let ended = begun("ncclGroupEnd", unsafe { (self.nccl.group_end)() });
        queued.and(ended)
    }

    /// The address and the elements of data that an operation is about.
    fn prepare(&self, stream: &Stream, data: &Span, kind: NcclType) -> (*mut c_void, usize) {
        assert!(
            stream.context().is_same(&self.context),
            "the stream and the communicator belong to different contexts"
        );
        assert!(
            data.len().is_multiple_of(kind.bytes()),
            "{} bytes are no whole number of {kind:?}",
            data.len()
        );
        data.used_by(&self.context);
        (data.address() as *mut c_void, data.len() / kind.bytes())
    }

    #[track_caller]
    fn assert_root(&self, root: u32) {
        assert!(root < self.world_size, "rank {root} of {}", self.world_size);
    }
}

impl NcclType {
    /// The size of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: the communicator was made once and is given up once; the library is loaded.
        let _ = unsafe { (self.nccl.comm_abort)(self.raw) };
    }
}

fn missing(reason: &str) -> CudaError {
    CudaError::NoNccl {
        reason: reason.to_owned(),
    }
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, CudaError> {
    // SAFETY: every use names a function of nccl.h with its type there.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found
        .map(|function| *function)
        .map_err(|_| missing(&format!("the library has no {name}")))
}

/// For calls that may go on in the background.
fn begun(call: &'static str, result: c_int) -> Result<(), CudaError> {
    if result == IN_PROGRESS {
        return Ok(());
    }
    checked(call, result)
}

fn checked(call: &'static str, result: c_int) -> Result<(), CudaError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_says_what_to_do() {
        match Nccl::load() {
            Ok(nccl) => println!("skipped: this machine has NCCL {}", nccl.version()),
            Err(error) => {
                assert!(matches!(error, CudaError::NoNccl { .. }), "{error:?}");
                assert!(error.to_string().contains("LD_LIBRARY_PATH"), "{error}");
            }
        }
    }

    #[test]
    fn a_name_survives_the_way_to_another_rank() {
        let mut bytes = [0; UniqueId::BYTES];
        bytes[127] = 9;
        assert_eq!(UniqueId::from_bytes(bytes).to_bytes(), bytes);
    }
}
