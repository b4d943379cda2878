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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    #[default]
    Nvptx,
}

/// Takes the place of the compiler through LLVM, and compiles nothing.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    pub target: LlvmTarget,
}

/// The options that `cubecl-cuda` hands over; none is read.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    pub arch: Option<Infallible>,
    pub sm_arch: Option<SmArch>,
    pub ptx_version: Option<PtxVersion>,
    pub grid_constants: bool,
}

#[derive(Clone, Debug)]
pub enum PlironArtifact {
    NvptxCode(NvptxModule),
}

/// A compiled kernel for NVIDIA GPUs. No value of it can exist.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    pub ptx: Vec<std::ffi::c_char>,
    pub entrypoint: String,
    pub ir: String,
    pub shared_memory_size: usize,
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
