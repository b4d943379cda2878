//! NVIDIA's collective library, loaded at run time.
//!
//! A communicator is made without blocking, so that every wait for other ranks is one of the caller's: it
//! asks for the [`state`](NcclRank::state) until that is done, or gives up and drops the communicator. After
//! the reference of NCCL 2.14 and later.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use libloading::Library;

use crate::error::{CudaError, Result};
use functions::{Functions, checked};

mod functions;
mod kind;
mod rank;

pub use kind::{NcclOp, NcclType};
pub use rank::{Message, NcclPlace, NcclRank};

const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Returns what to try to load, in this order: a folder that the user names, the path of the loader, and where pip and
/// conda put the library in the environment that is active.
fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from);
    let named = folder("NCCL_HOME").map(|home| home.join("lib"));
    let conda = folder("CONDA_PREFIX").map(|prefix| prefix.join("lib"));
    let versions = folder("VIRTUAL_ENV").and_then(|venv| fs::read_dir(venv.join("lib")).ok());
    let versions = versions.into_iter().flatten().flatten();
    let pip = versions.map(|python| python.path().join("site-packages/nvidia/nccl/lib"));
    let folders = named.into_iter().chain([PathBuf::new()]).chain(pip).chain(conda);
    let names = |folder: PathBuf| NAMES.map(|name| folder.join(name));
    folders.flat_map(names).collect()
}

/// The oldest version that makes communicators without blocking and takes its configuration.
const VERSION_MIN: u32 = 21700;

/// What names a group to those who join it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::BYTES],
}

#[derive(Debug)]
pub struct Nccl {
    functions: Functions,
    version: u32,
    _library: Library,
}

impl UniqueId {
    pub const BYTES: usize = 128;

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.bytes
    }

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
    /// [`CudaError::NoNccl`] if it is missing or too old.
    pub fn load() -> Result<Arc<Self>> {
        let library = candidates(|name| env::var_os(name)).iter().find_map(|path| {
            // SAFETY: loading a library runs its initialisers; NCCL's are those that every user runs.
            unsafe { Library::new(path) }.ok()
        });
        let library = library.ok_or_else(|| {
            missing("libnccl.so.2 is neither in the library path nor in NCCL_HOME/lib")
        })?;
        let functions = Functions::of(&library)?;
        let mut version = 0;
        // SAFETY: `version` is a live integer that the call writes (nccl.h).
        let result = unsafe { (functions.get_version)(&mut version) };
        checked("ncclGetVersion", result)?;
        let version = u32::try_from(version).unwrap_or(0);
        if version < VERSION_MIN {
            return Err(missing(&format!("version {version} is older than {VERSION_MIN}")));
        }
        Ok(Arc::new(Self { functions, version, _library: library }))
    }

    /// Its version, as 23007 for 2.30.7.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// A name for a new group.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId { bytes: [0; UniqueId::BYTES] };
        // SAFETY: `id` is a live struct of the size that nccl.h states, which the call writes.
        let result = unsafe { (self.functions.get_unique_id)(&mut id) };
        checked("ncclGetUniqueId", result)?;
        Ok(id)
    }
}

fn missing(reason: &str) -> CudaError {
    CudaError::NoNccl { reason: reason.to_owned() }
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

    #[test]
    fn the_library_that_pip_or_conda_installed_is_found() {
        let venv = env::temp_dir().join(format!("bonfire-nccl-{}", std::process::id()));
        let pip = venv.join("lib/python3.12/site-packages/nvidia/nccl/lib");
        fs::create_dir_all(&pip).unwrap();
        let found = candidates(|name| match name {
            "NCCL_HOME" => Some("/opt/nccl".into()),
            "CONDA_PREFIX" => Some("/opt/conda".into()),
            "VIRTUAL_ENV" => Some(venv.clone().into()),
            _ => None,
        });
        fs::remove_dir_all(&venv).unwrap();
        let expected = ["/opt/nccl/lib".into(), PathBuf::new(), pip, "/opt/conda/lib".into()];
        let expected =
            expected.iter().flat_map(|folder: &PathBuf| NAMES.map(|name| folder.join(name)));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}
