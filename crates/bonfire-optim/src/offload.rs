//! State of optimizers, and parameters, in host memory instead of a device's, with the step on the CPU, after
//! ZeRO-Offload (Ren et al. 2021, arXiv 2101.06840); and both in files instead of memory, after ZeRO-Infinity
//! (Rajbhandari et al. 2021, arXiv 2104.07857). The step is the same pass, over memory whose pages the kernel writes out
//! and takes.

use std::path::Path;
use std::sync::Arc;

use bonfire_sys::{FileMemory, FileMemoryError};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Shape, TensorData};
use bytemuck::Pod;

/// Smaller tensors stay in memory: their own mapping costs more than it saves.
const FILE_BYTES_MIN: usize = 64 << 10;

/// The place of optimizers' state, and of a training's parameters, outside of the device's memory.
///
/// For a model on a GPU the step is computed on the CPU: gradient and parameter come to the host, and the parameter goes
/// back. The device has no state then, and the bits are those of a step on the CPU. For a model on the CPU (Flex) host
/// memory is where its state is anyway, and the bits are those without an offload.
///
/// Files have no names: nothing is left of them when a training ends, however it ends, and what is to outlive it is
/// saved as ever. Each optimizer, on each rank, has its own files.
///
/// ```
/// # mod bonfire { pub mod optim { pub use bonfire_optim::*; } }
/// use bonfire::optim::{AdamWConfig, Offload};
/// use burn::optim::ModuleOptimizer;
///
/// let offload = Offload::to_files(std::env::temp_dir())?;
/// let optimizer = AdamWConfig::new().build().with_offload(offload);
/// let optimizer = ModuleOptimizer::from(optimizer);
/// # Ok::<(), bonfire_optim::FileMemoryError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The folder of files; without one, state is in host memory.
    folder: Option<Arc<Path>>,
    has_parameters: bool,
}

impl Offload {
    /// Selects host memory, for models on GPUs.
    pub fn to_memory() -> Self {
        Self { folder: None, has_parameters: false }
    }

    /// Selects files on the disk of `folder`, which has to exist. A folder in memory (tmpfs) saves none.
    ///
    /// Files are made in the first step of a parameter. Burn's optimizers cannot return an error: that step panics
    /// with a [`FileMemoryError`]'s message where the disk is full.
    pub fn to_files(folder: impl AsRef<Path>) -> Result<Self, FileMemoryError> {
        let folder = folder.as_ref();
        // The folder takes files.
        FileMemory::zeroed(folder, 1)?;
        Ok(Self { folder: Some(folder.into()), has_parameters: false })
    }

    /// Includes the parameters. `bonfire_train::DdpConfig::with_offload` puts them there before the first step: those of a
    /// model on a GPU into host memory or files, those of a model on the CPU into files. An optimizer by itself puts
    /// those on the CPU that it steps into files, and steps them there from then on.
    #[must_use]
    pub fn with_parameters(self) -> Self {
        Self { has_parameters: true, ..self }
    }

    /// Returns true if parameters are offloaded, too.
    pub fn has_parameters(&self) -> bool {
        self.has_parameters
    }

    /// Returns true if large tensors are in files, rather than in memory.
    pub fn has_files(&self) -> bool {
        self.folder.is_some()
    }

    /// Returns the device of offloaded state, which is the CPU (Flex); `None` in a build without it.
    pub fn device() -> Option<Device> {
        #[cfg(feature = "flex")]
        return Some(Device::flex());
        #[cfg(not(feature = "flex"))]
        return None;
    }

    /// Copies the values of a parameter into a file, if they belong there.
    ///
    /// # Errors
    /// [`FileMemoryError`] if there is no room for them.
    pub fn stored(&self, values: &TensorData) -> Result<Option<TensorData>, FileMemoryError> {
        let (shape, dtype) = (values.shape(), values.dtype());
        let Some(folder) = self.folder_of(shape, dtype).filter(|_| self.has_parameters) else {
            return Ok(None);
        };
        let mut memory = FileMemory::zeroed(folder, values.as_bytes().len())?;
        memory.copy_from_slice(values.as_bytes());
        Ok(Some(in_file(Arc::new(memory), shape.clone(), dtype)))
    }

    /// The folder for a tensor of this size, if it belongs into a file.
    pub(crate) fn folder_of(&self, shape: &Shape, dtype: DType) -> Option<&Arc<Path>> {
        let is_large = shape.num_elements() * dtype.size() >= FILE_BYTES_MIN;
        self.folder.as_ref().filter(|_| is_large)
    }
}

/// A tensor in a file. Clones share the file until one of them is written.
#[derive(Clone, Debug)]
pub(crate) struct FileTensor {
    memory: Arc<FileMemory>,
    shape: Shape,
    dtype: DType,
    folder: Arc<Path>,
}

impl FileTensor {
    pub(crate) fn zeroed(shape: Shape, dtype: DType, folder: &Arc<Path>) -> Self {
        let memory = memory(folder, shape.num_elements() * dtype.size());
        Self { memory: Arc::new(memory), shape, dtype, folder: folder.clone() }
    }

    pub(crate) fn copied(data: &TensorData, folder: &Arc<Path>) -> Self {
        let mut tensor = Self::zeroed(data.shape().clone(), data.dtype(), folder);
        tensor.values_mut().copy_from_slice(data.as_bytes());
        tensor
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns true if it is the memory of these values, in row-major order.
    pub(crate) fn has(&self, values: &[u8], shape: &Shape) -> bool {
        std::ptr::eq(&self.memory[..], values) && self.shape == *shape
    }

    pub(crate) fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        if Arc::get_mut(&mut self.memory).is_none() {
            let mut own = memory(&self.folder, self.memory.len());
            own.copy_from_slice(&self.memory);
            self.memory = Arc::new(own);
        }
        let memory = Arc::get_mut(&mut self.memory).expect("of its own");
        bytemuck::cast_slice_mut(memory)
    }

    pub(crate) fn data(&self) -> TensorData {
        in_file(self.memory.clone(), self.shape.clone(), self.dtype)
    }

    /// Marks the step as over: the next needs the values last.
    pub(crate) fn set_idle(&self) {
        self.memory.set_idle();
    }
}

fn memory(folder: &Path, bytes: usize) -> FileMemory {
    let memory = FileMemory::zeroed(folder, bytes);
    memory.unwrap_or_else(|error| panic!("the state of an optimizer: {error}"))
}

fn in_file(memory: Arc<FileMemory>, shape: Shape, dtype: DType) -> TensorData {
    let memory = bytes::Bytes::from_owner(Shared(memory));
    let bytes = Bytes::from_shared(memory, AllocationProperty::File);
    TensorData::from_bytes(bytes, shape, dtype)
}

struct Shared(Arc<FileMemory>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
