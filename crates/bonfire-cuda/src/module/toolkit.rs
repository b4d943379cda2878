//! The installation of CUDA whose headers Burn's kernels include. Those of this workspace include none.
//!
//! It is looked for where CubeCL looks (`cubecl_cuda::install`), which panics in the middle of a training where
//! there is none, or where NVRTC does not find what a kernel includes: so it is tried before.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::driver::device::ComputeCapability;
use crate::error::{CudaError, Result};
use crate::module::nvrtc::Nvrtc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    root: PathBuf,
}

const VARIABLE: &str = "CUDA_PATH";

const FOLDERS: [&str; 2] = ["/usr/local/cuda", "/opt/cuda"];

/// Where it is spread over the folders of the system, this is, and so they are its root.
const COMPILER: &str = "/usr/bin/nvcc";
const SYSTEM: &str = "/usr";

/// From here on Burn's kernels use tensor cores.
const TENSOR_CORES_FROM: u32 = 8;

impl Toolkit {
    /// Finds it: below CUDA_PATH if that is set, else in /usr/local/cuda, /opt/cuda or /usr.
    ///
    /// # Errors
    /// [`CudaError::NoToolkit`].
    pub fn find() -> Result<Self> {
        Self::find_with(env::var(VARIABLE).ok(), |path| fs::exists(path).unwrap_or(false))
    }

    fn find_with(variable: Option<String>, exists: impl Fn(&str) -> bool) -> Result<Self> {
        let folder = FOLDERS.into_iter().find(|folder| exists(folder));
        let system = || exists(COMPILER).then_some(SYSTEM);
        let root = variable.or_else(|| folder.or_else(system).map(str::to_owned));
        match root {
            Some(root) => Ok(Self { root: root.into() }),
            None => Err(CudaError::NoToolkit {
                reason: format!(
                    "{VARIABLE} is not set, and there is no {}, {} or {COMPILER}",
                    FOLDERS[0], FOLDERS[1]
                ),
            }),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Compiles a kernel that includes what Burn's may, for devices of this capability: the headers of 16-bit
    /// floats, and from capability 8.0 on that of tensor cores.
    ///
    /// # Errors
    /// [`CudaError::NoToolkit`] with what NVRTC does not find.
    pub fn check(&self, nvrtc: Nvrtc, capability: ComputeCapability) -> Result<()> {
        let folder = self.root.join("include");
        match nvrtc.compile_including(capability, &folder, &source(capability)) {
            Ok(_) => Ok(()),
            Err(CudaError::Compile { code, log, .. }) => {
                let first = log.lines().find(|line| !line.trim().is_empty());
                let reason = format!(
                    "NVRTC does not compile with the headers of {}: {}",
                    folder.display(),
                    first.unwrap_or(&code).trim()
                );
                Err(CudaError::NoToolkit { reason })
            }
            Err(other) => Err(other),
        }
    }
}

/// A kernel that includes what Burn's may.
fn source(capability: ComputeCapability) -> String {
    let mut text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n".to_owned();
    if capability.major >= TENSOR_CORES_FROM {
        text.push_str("#include <mma.h>\n");
    }
    text.push_str("extern \"C\" __global__ void headers(float* out) { *out = 1.0f; }\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variable: Option<&str>, there: &[&str]) -> Option<String> {
        let found = Toolkit::find_with(variable.map(str::to_owned), |path| there.contains(&path));
        found.ok().map(|toolkit| toolkit.root.display().to_string())
    }

    #[test]
    fn it_is_looked_for_where_cubecl_looks() {
        let all = ["/usr/local/cuda", "/opt/cuda", "/usr/bin/nvcc"];
        for (variable, there, root) in [
            (Some("/else/where"), &all[..], Some("/else/where")),
            (None, &all[..], Some("/usr/local/cuda")),
            (None, &all[1..], Some("/opt/cuda")),
            (None, &all[2..], Some("/usr")),
            (None, &[], None),
        ] {
            assert_eq!(found(variable, there).as_deref(), root, "{there:?}");
        }
    }

    #[test]
    fn where_it_is_missing_the_error_says_what_to_do() {
        let error = Toolkit::find_with(None, |_| false).unwrap_err().to_string();
        for says in ["CUDA_PATH is not set", "/opt/cuda", "include/cuda_fp16.h"] {
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn tensor_cores_need_a_header_of_their_own() {
        let of = |major| source(ComputeCapability { major, minor: 0 });
        assert!(of(9).contains("mma.h") && !of(7).contains("mma.h"));
        assert!(of(7).contains("cuda_bf16.h"));
    }
}
