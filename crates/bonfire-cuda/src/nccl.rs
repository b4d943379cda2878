//! NVIDIA's collective library, loaded at run time.
//!
//! A communicator is made without blocking, so that every wait for other ranks is one of the caller's: it
//! asks for the [`state`](NcclRank::state) until that is done, or gives up and drops the communicator. After
//! the reference of NCCL 2.14 and later.

use std::sync::Arc;

use libloading::Library;

use crate::error::CudaError;
use functions::{Functions, checked};

mod functions;
mod kind;
mod rank;

pub use kind::{NcclOp, NcclType};
pub use rank::{Message, NcclPlace, NcclRank};

/// The names it goes by.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version that makes communicators without blocking and takes its configuration.
const VERSION_MIN: u32 = 21700;

/// What names a group to those who join it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::BYTES],
}

/// The library.
#[derive(Debug)]
pub struct Nccl {
    functions: Functions,
    version: u32,
    _library: Library,
}

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
        let functions = Functions::of(&library)?;
        let mut version = 0;
        // SAFETY: `version` is a live integer that the call writes (nccl.h).
        let result = unsafe { (functions.get_version)(&mut version) };
        checked("ncclGetVersion", result)?;
        let version = u32::try_from(version).unwrap_or(0);
        if version < VERSION_MIN {
            return Err(missing(&format!(
                "version {version} is older than {VERSION_MIN}"
            )));
        }
        Ok(Arc::new(Self {
            functions,
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
        let result = unsafe { (self.functions.get_unique_id)(&mut id) };
        checked("ncclGetUniqueId", result)?;
        Ok(id)
    }
}

fn missing(reason: &str) -> CudaError {
    CudaError::NoNccl {
        reason: reason.to_owned(),
    }
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
