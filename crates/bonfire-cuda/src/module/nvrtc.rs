//! The compiler of CUDA C++, loaded at run time.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use crate::driver::device::{ComputeCapability, text_of};
use crate::error::version::CudaVersion;
use crate::error::{CudaError, Result};
use crate::module::Cubin;

/// Proof that NVRTC is loaded in this process.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc {
    version: CudaVersion,
}

/// What NVRTC needs beside `--gpu-architecture`, so that a kernel has the bits of its reference: no product and sum in
/// one rounding where the source has two, no flushing of denormals, divisions and roots correctly rounded.
pub const EXACT_OPTIONS: [&str; 4] =
    ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

/// Where a toolkit may be besides the paths of the loader.
const TOOLKIT_VARIABLES: [&str; 3] = ["CUDA_PATH", "CUDA_HOME", "CUDA_ROOT"];
const TOOLKIT_DEFAULT: &str = "/usr/local/cuda";
const LIBRARY_FOLDERS: [&str; 3] = ["lib64", "lib", "targets/x86_64-linux/lib"];

impl Nvrtc {
    /// Finds and loads NVRTC: in the paths of the loader, then below CUDA_PATH, CUDA_HOME, CUDA_ROOT
    /// and /usr/local/cuda.
    ///
    /// # Errors
    /// [`CudaError::NoCompiler`].
    pub fn load() -> Result<Self> {
        if !is_present() {
            load_from_toolkit();
        }
        if !is_present() {
            let reason = "libnvrtc.so is neither in the library path nor in a toolkit".to_owned();
            return Err(CudaError::NoCompiler { reason });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are live integers that the call writes; the library is loaded.
        let result = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        if result != nvrtcResult::NVRTC_SUCCESS {
            let reason = format!("nvrtcVersion says {result:?}");
            return Err(CudaError::NoCompiler { reason });
        }
        let version = CudaVersion {
            major: u32::try_from(major).unwrap_or(0),
            minor: u32::try_from(minor).unwrap_or(0),
        };
        Ok(Self { version })
    }

    pub fn version(self) -> CudaVersion {
        self.version
    }

    /// Compiles CUDA C++ without any include file to code for devices of one capability; `name` is for
    /// messages. Products that are added are rounded like others, divisions and roots correctly, and
    /// denormals are kept: kernels give the bits of the CPU.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with what the compiler printed.
    pub fn compile(
        self,
        capability: ComputeCapability,
        name: &str,
        source: &str,
        defines: &[String],
    ) -> Result<Cubin> {
        let mut options = vec![architecture(capability), "--std=c++17".to_owned()];
        options.extend(EXACT_OPTIONS.map(str::to_owned));
        options.extend(defines.iter().map(|define| format!("-D{define}")));
        Program::build(name, source, &options)
    }

    /// Compiles CUDA C++ that includes headers of a toolkit, as CubeCL does.
    pub(crate) fn compile_including(
        self,
        capability: ComputeCapability,
        folder: &Path,
        source: &str,
    ) -> Result<Cubin> {
        let include = |folder: &Path| format!("--include-path={}", folder.display());
        let options = [architecture(capability), include(folder), include(&folder.join("cccl"))];
        Program::build("headers", source, &options)
    }
}

fn architecture(capability: ComputeCapability) -> String {
    let ComputeCapability { major, minor } = capability;
    format!("--gpu-architecture=sm_{major}{minor}")
}

fn is_present() -> bool {
    // SAFETY: loading a library runs its initialisers; NVRTC's are those that every user of it runs.
    unsafe { sys::is_culib_present() }
}

/// Loads NVRTC by its path. The bindings look for it by name afterwards, and the loader then gives
/// them the library that is loaded under that name already; so does NVRTC for its built-in headers.
fn load_from_toolkit() {
    let roots = TOOLKIT_VARIABLES
        .iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from)
        .chain([PathBuf::from(TOOLKIT_DEFAULT)]);
    for folder in roots.flat_map(|root| LIBRARY_FOLDERS.map(|folder| root.join(folder))) {
        let compilers = libraries(&folder, "libnvrtc.so.");
        if compilers.iter().any(|library| load_for_ever(library)) {
            for built_ins in libraries(&folder, "libnvrtc-builtins.so.") {
                load_for_ever(&built_ins);
            }
            return;
        }
    }
}

fn load_for_ever(library: &Path) -> bool {
    // SAFETY: as in `is_present`; the file is a library of a CUDA toolkit.
    let loaded = unsafe { libloading::Library::new(library) };
    // It stays for the life of the process, as the bindings keep it as well.
    loaded.map(std::mem::forget).is_ok()
}

/// The libraries in a folder whose name is `prefix` and a version of one or two numbers: the names
/// that programs link to.
fn libraries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(prefix).is_some_and(|version| version.parse::<f64>().is_ok())
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(is_library).collect()
}

struct Program {
    raw: nvrtcProgram,
}

impl Program {
    fn build(name: &str, source: &str, options: &[String]) -> Result<Cubin> {
        let program = Self::create(name, source)?;
        program.compile(name, options)?;
        program.cubin(name)
    }

    fn create(name: &str, source: &str) -> Result<Self> {
        let text = |text: &str| CString::new(text).expect("kernel sources have no NUL");
        let (source, file) = (text(source), text(name));
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; both texts end in NUL and live through
        // the call, which copies them; there are no headers, so those pointers may be null.
        let result = unsafe {
            sys::nvrtcCreateProgram(
                &mut raw,
                source.as_ptr(),
                file.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        checked(name, result, String::new)?;
        Ok(Self { raw })
    }

    fn compile(&self, name: &str, options: &[String]) -> Result<()> {
        let options: Vec<CString> = options
            .iter()
            .map(|option| CString::new(option.as_str()).expect("options have no NUL"))
            .collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is valid until drop; the array has as many pointers as stated, each to a
        // text that ends in NUL and lives through the call.
        let result =
            unsafe { sys::nvrtcCompileProgram(self.raw, pointers.len() as i32, pointers.as_ptr()) };
        checked(name, result, || self.log())
    }

    fn log(&self) -> String {
        let mut len = 0;
        // SAFETY: the program is valid; `len` is a live integer that the call writes.
        let result = unsafe { sys::nvrtcGetProgramLogSize(self.raw, &mut len) };
        if result != nvrtcResult::NVRTC_SUCCESS || len == 0 {
            return String::new();
        }
        let mut bytes = vec![0_u8; len];
        // SAFETY: the buffer has the size that the compiler asked for.
        let result = unsafe { sys::nvrtcGetProgramLog(self.raw, bytes.as_mut_ptr().cast()) };
        if result != nvrtcResult::NVRTC_SUCCESS {
            return String::new();
        }
        text_of(&bytes)
    }

    fn cubin(&self, name: &str) -> Result<Cubin> {
        let mut len = 0;
        // SAFETY: the program is valid and compiled; `len` is a live integer that the call writes.
        let result = unsafe { sys::nvrtcGetCUBINSize(self.raw, &mut len) };
        checked(name, result, String::new)?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: the buffer has the size that the compiler asked for.
        let result = unsafe { sys::nvrtcGetCUBIN(self.raw, bytes.as_mut_ptr().cast()) };
        checked(name, result, String::new)?;
        Ok(Cubin::new(bytes))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is destroyed once; the call sets the pointer to null.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.raw) };
    }
}

fn checked(name: &str, result: nvrtcResult, log: impl FnOnce() -> String) -> Result<()> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Compile { kernel: name.to_owned(), code: format!("{result:?}"), log: log() })
}
