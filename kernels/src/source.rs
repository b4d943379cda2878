//! Kernels as CUDA C++, for those who launch them on streams of their own.
//!
//! CubeCL turns a kernel into CUDA C++ without a device, a driver or a client. NVRTC compiles the
//! text with [`NVRTC_OPTIONS`] and an architecture from `sm_75` up, and needs neither headers nor
//! an include path. The driver launches the function named [`KernelSource::entry`] with
//!
//! - [`Launch::cubes`] blocks of [`Launch::units`] threads, both in x, and
//!   [`Launch::shared_bytes`] of dynamic shared memory;
//! - one 8-byte device address per buffer, in the order that the kernel's own module states;
//! - as the last argument, by value, the bytes of [`Launch::info`].
//!
//! Those bytes are the C++ struct `info_st`: the scalars, grouped by type (signed integers after
//! floats, unsigned ones after those; in a group as the kernel declares them), each group padded to
//! 8 bytes, then for each buffer its length in vectors as a `u32`, padded to 8 bytes. [`Launch`]
//! builds them, and a test compares them with the struct in the source.
//!
//! Buffers come out `__restrict__`: no two arguments of one launch may overlap where either is
//! written. Indices are not checked on the device, so a launch that is larger than its buffers is
//! undefined behaviour. The text is the same in every run and for every device.

use std::sync::Arc;

use cubecl::cmma::MatrixLayout;
use cubecl::ir::settings::KernelSettings;
use cubecl::ir::{
    AddressType, ContiguousElements, DeviceIdentity, DeviceProperties, ElemType,
    HardwareProperties, MemoryDeviceProperties, MmaProperties, TargetProperties, UIntKind,
    VectorSize,
};
use cubecl::prelude::*;
use cubecl::profile::TimingMethod;
use cubecl::{Compiler, InfoBuilder, define_kernel};
use cubecl_cpp::cuda::mma::manual::contiguous_elements_cuda;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Cuda;

pub use bonfire_cuda::EXACT_OPTIONS as NVRTC_OPTIONS;

/// Threads per block: with one vector of each buffer in flight per thread, the size that reached
/// the copy bandwidth of an H200 (2026-11-20), together with two blocks per multiprocessor.
pub(crate) const UNITS: u32 = 512;

/// Elements of one launch: with more, a 32-bit index could overflow.
pub const ELEMS_MAX: usize = 1 << 31;

/// Threads of one launch, for the same reason.
const UNITS_MAX: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("CubeCL cannot compile {kernel} to CUDA C++; this is a defect of the kernel: {reason}")]
    Compiler { kernel: String, reason: String },
    /// It includes a header that this crate has no replacement for.
    #[error(
        "the CUDA C++ of {kernel} includes {header}, which NVRTC may not find: add what it uses"
    )]
    Header { kernel: String, header: String },
    /// An index would not fit 32 bits.
    #[error("{elems} elements in one launch, at most {ELEMS_MAX}: split the range")]
    TooMany { elems: usize },
}

/// A kernel as text, the same for all launches of the variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// CUDA C++ for NVRTC; includes nothing.
    pub source: String,
    /// The name of the kernel in it, `extern "C"`.
    pub entry: String,
    pub buffers: usize,
    /// Threads per block, as its launch bounds have it.
    pub units: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// One launch of a kernel, complete but for the addresses. Worth keeping: it depends on the number
/// of elements, not on where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub cubes: u32,
    pub units: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    info: Vec<u64>,
}

impl Launch {
    /// The kernel's last argument, by value; aligned to 8 bytes.
    #[must_use]
    pub fn info(&self) -> &[u8] {
        bytemuck::cast_slice(&self.info)
    }

    /// Puts a launch together from scalars in the order of the kernel's parameters and the length of each buffer.
    pub(crate) fn new(grid: Grid, scalars: &[Scalar], lengths: &[usize]) -> Self {
        let mut info = InfoBuilder::default();
        for scalar in scalars {
            info.scalars.push_raw(scalar.bytes(), scalar.element);
        }
        for &length in lengths {
            info.metadata.register_buffer(length as u64, AddressType::U32);
        }
        Self {
            cubes: grid.cubes,
            units: grid.units,
            shared_bytes: grid.shared_bytes,
            info: info.finish(AddressType::U32).data,
        }
    }

    /// A launch of a kernel with 64-bit indices and no scalars that asks for no length.
    pub(crate) fn of_unknown_lengths(grid: Grid, buffers: usize) -> Self {
        Self {
            cubes: grid.cubes,
            units: grid.units,
            shared_bytes: grid.shared_bytes,
            info: vec![0; buffers],
        }
    }
}

/// How many elements a launch does, and on how much of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Elements of each buffer; at most [`ELEMS_MAX`].
    pub elems: usize,
    /// Blocks at most. Two per multiprocessor fill a device; fewer leave room for computation.
    pub cubes_max: u32,
}

impl Spread {
    /// The work in steps of one vector of `width` elements.
    pub(crate) fn steps(self, width: usize) -> Result<Steps, SourceError> {
        let Self { elems, cubes_max } = self;
        if elems > ELEMS_MAX {
            return Err(SourceError::TooMany { elems });
        }
        let (vectors, tail) = (elems / width, elems % width);
        Ok(Steps {
            vectors: vectors as u32,
            tail: tail as u32,
            length: elems.div_ceil(width),
            grid: Grid::over(vectors.max(tail), UNITS, cubes_max),
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) vectors: u32,
    pub(crate) tail: u32,
    /// Vectors of a buffer, the last one perhaps not whole.
    pub(crate) length: usize,
    pub(crate) grid: Grid,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) cubes: u32,
    pub(crate) units: u32,
    pub(crate) shared_bytes: u32,
}

impl Grid {
    /// As many cubes as there is work for, in steps of one unit each, and no more than `cubes_max`.
    pub(crate) fn over(steps: usize, units: u32, cubes_max: u32) -> Self {
        let wanted = steps.div_ceil(units as usize).max(1);
        let cubes_max = u64::from(cubes_max).clamp(1, UNITS_MAX / u64::from(units));
        Self { cubes: wanted.min(cubes_max as usize) as u32, units, shared_bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar {
    element: ElemType,
    bytes: [u8; 8],
}

impl Scalar {
    fn new(element: ElemType, value: &[u8]) -> Self {
        assert_eq!(element.size(), value.len(), "a scalar of {element:?}");
        let mut bytes = [0; 8];
        bytes[..value.len()].copy_from_slice(value);
        Self { element, bytes }
    }

    pub(crate) fn u32(value: u32) -> Self {
        Self::new(ElemType::UInt(UIntKind::U32), &value.to_le_bytes())
    }

    pub(crate) fn of(element: ElemType, value: InputScalar) -> Self {
        Self::new(element, value.as_bytes())
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.element.size()]
    }
}

pub(crate) struct Target {
    pub(crate) settings: KernelSettings,
    pub(crate) device: Arc<DeviceProperties>,
    pub(crate) target: Arc<TargetProperties>,
}

impl Target {
    /// Kernels with cubes of this many units, without checks of their indices.
    pub(crate) fn cuda(units: u32) -> Self {
        let dim = CubeDim::new_1d(units);
        Self {
            settings: KernelSettings::new(dim.into(), ExecutionMode::Unchecked, AddressType::U32),
            device: Arc::new(device_properties()),
            target: Arc::new(target_properties()),
        }
    }
}

pub(crate) fn compile(
    kernel: &impl cubecl::CubeKernel,
    buffers: usize,
    units: u32,
) -> Result<KernelSource, SourceError> {
    let refused = |error: cubecl::CompilationError| SourceError::Compiler {
        kernel: kernel.name().to_owned(),
        reason: error.to_string(),
    };
    let definition = define_kernel(kernel).map_err(refused)?;
    let entry = definition.settings.kernel_name.clone();
    let options = CompilationOptions {
        supports_features: CppSupportedFeatures {
            grid_constants: true,
            ..CppSupportedFeatures::default()
        },
        ..CompilationOptions::default()
    };
    let compiled = CppCompiler::<Cuda>::default().compile(definition, &options).map_err(refused)?;
    let source = replace_headers(&compiled.source)
        .map_err(|header| SourceError::Header { kernel: entry.clone(), header })?;
    let shared_bytes = u32::try_from(compiled.shared_memory_size)
        .expect("a kernel's shared memory is counted in kilobytes");
    Ok(KernelSource { source, entry, buffers, units, shared_bytes })
}

/// Puts what a kernel uses of CUDA's headers in their place: a machine that has a driver and NVRTC
/// need not have the toolkit. The name of a header that has no replacement is the error.
fn replace_headers(source: &str) -> Result<String, String> {
    let mut replaced = String::with_capacity(source.len());
    for line in source.lines() {
        match line.strip_prefix("#include ") {
            None => replaced.push_str(line),
            Some("<cuda_fp16.h>") => replaced.push_str(include_str!("source/half.cuh")),
            Some("<cuda_bf16.h>") => replaced.push_str(include_str!("source/bfloat16.cuh")),
            Some(header) => return Err(header.to_owned()),
        }
        replaced.push('\n');
    }
    Ok(replaced)
}

/// What kernels may count on: any NVIDIA device of the last years, without the features that would need a newer one.
fn device_properties() -> DeviceProperties {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 256,
        max_shared_memory_size: 48 << 10,
        max_cube_count: (i32::MAX as u32, 65_535, 65_535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut properties = DeviceProperties::new(
        Default::default(),
        MemoryDeviceProperties::new(1 << 40, 512),
        hardware,
        TimingMethod::Device,
        DeviceIdentity::default(),
    );
    cubecl_cpp::register_supported_types(&mut properties);
    properties
}

/// What the compiler asks about tensor cores, which no kernel here uses.
fn target_properties() -> TargetProperties {
    TargetProperties {
        mma: MmaProperties {
            register_size_bits: 32,
            const_plane_size: 32,
            register_layout_a: MatrixLayout::RowMajor,
            register_layout_b: MatrixLayout::ColMajor,
            register_layout_acc: MatrixLayout::RowMajor,
            register_duplication_a: 1,
            register_duplication_b: 1,
            register_duplication_acc: 1,
            contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
        },
    }
}

#[cfg(test)]
mod tests;
