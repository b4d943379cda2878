//! The compiler that refuses every kernel.

use std::convert::Infallible;
use std::fmt;

use cubecl_environment::backtrace::BackTrace;
use cubecl_ir::nvidia::SmArch;
use cubecl_runtime::compiler::{CompilationError, Compiler};
use cubecl_runtime::kernel::{BufferIOAttr, KernelDefinition};

use crate::nvptx::ptx_version::PtxVersion;

/// What a kernel sent to this back end is answered.
const REFUSAL: &str = "the LLVM back end is replaced by a stand-in in this workspace; use the CUDA \
     C++ back end (feature `cuda-cpp`, or `CudaBackend::Cpp`)";

/// What the back end compiles for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// NVIDIA GPUs.
    #[default]
    Nvptx,
}

/// Takes the place of the compiler through LLVM, and compiles nothing.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// What a kernel would be compiled for.
    pub target: LlvmTarget,
}

/// The options that `cubecl-cuda` hands over; none is read.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// An AMD architecture; there is no stand-in for that target.
    pub arch: Option<Infallible>,
    /// The compute capability of the device.
    pub sm_arch: Option<SmArch>,
    /// The PTX version to emit.
    pub ptx_version: Option<PtxVersion>,
    /// Whether scalars travel in the kernel's parameter block.
    pub grid_constants: bool,
}

/// What the compiler would return.
#[derive(Clone, Debug)]
pub enum PlironArtifact {
    /// A kernel for NVIDIA GPUs.
    NvptxCode(NvptxModule),
}

/// A compiled kernel for NVIDIA GPUs. No value of it can exist.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// The assembly, ending in a NUL.
    pub ptx: Vec<std::ffi::c_char>,
    /// The symbol to launch.
    pub entrypoint: String,
    /// The intermediate form, for logs.
    pub ir: String,
    /// Shared memory of a launch, in bytes.
    pub shared_memory_size: usize,
    /// What the kernel does with each buffer.
    pub io: Vec<BufferIOAttr>,
    /// Keeps the type without values.
    pub never: Infallible,
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::NvptxCode(module) = self;
        match module.never {}
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &Self::CompilationOptions,
    ) -> Result<Self::Representation, CompilationError> {
        Err(CompilationError::Generic {
            reason: REFUSAL.to_string(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
