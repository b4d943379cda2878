//! State of optimizers, and parameters, in files instead of memory, after ZeRO-Infinity (Rajbhandari et al. 2021,
//! arXiv 2104.07857). On the CPU the step is the same pass, over memory whose pages the kernel writes out and takes.

use std::path::Path;
use std::sync::Arc;

use bonfire_sys::{FileMemory, FileMemoryError};
use burn::tensor::{AllocationProperty, Bytes, DType, Shape, TensorData};
use bytemuck::Pod;

/// What has fewer bytes stays in memory: a mapping of its own costs more than it saves.
const FILE_BYTES_MIN: usize = 64 << 10;

/// Where optimizers keep their state, and a training its parameters, instead of in memory, for models on the CPU
/// (Flex).
///
/// The bits are those without it. Files have no names: nothing is left of them when a training ends, however it
/// ends, and what is to outlive it is saved as ever. Each optimizer, on each rank, has files of its own.
///
/// ```
/// use bonfire_optim::{AdamWConfig, Offload};
/// use burn::optim::ModuleOptimizer;
///
/// let offload = Offload::to_files(std::env::temp_dir())?;
/// let optimizer = AdamWConfig::new().build().with_offload(offload);
/// let optimizer = ModuleOptimizer::from(optimizer);
/// # Ok::<(), bonfire_optim::FileMemoryError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Offload {
    folder: Arc<Path>,
    has_parameters: bool,
}

impl Offload {
    /// Files on the disk of `folder`, which has to exist. A folder in memory (tmpfs) saves none.
    ///
    /// Files are made in the first step of a parameter. Burn's optimizers have no way to return an error: that
    /// step panics with a [`FileMemoryError`]'s message where the disk is full, and on other devices than the
    /// CPU.
    pub fn to_files(folder: impl AsRef<Path>) -> Result<Self, FileMemoryError> {
        let folder = folder.as_ref();
        // The folder takes files.
        FileMemory::zeroed(folder, 1)?;
        Ok(Self {
            folder: folder.into(),
            has_parameters: false,
        })
    }

    /// The same for parameters, too: an optimizer puts those that it steps into files, and steps them there from
    /// then on. `bonfire_train::Ddp::with_offload` puts all there before the first step.
    #[must_use]
    pub fn with_parameters(self) -> Self {
        Self {
            has_parameters: true,
            ..self
        }
    }

    /// Whether parameters are in files, too.
    pub fn has_parameters(&self) -> bool {
        self.has_parameters
    }

    /// The values of a parameter in a file, if they belong there.
    ///
    /// # Errors
    /// [`FileMemoryError`] if there is no room for them.
    pub fn stored(&self, values: &TensorData) -> Result<Option<TensorData>, FileMemoryError> {
        let (shape, dtype) = (values.shape(), values.dtype());
        if !self.has_parameters || !self.takes(shape, dtype) {
            return Ok(None);
        }
        let mut memory = FileMemory::zeroed(&self.folder, values.as_bytes().len())?;
        memory.copy_from_slice(values.as_bytes());
        Ok(Some(in_file(Arc::new(memory), shape.clone(), dtype)))
    }

    /// Whether state of this size belongs into a file.
    pub(crate) fn takes(&self, shape: &Shape, dtype: DType) -> bool {
        shape.num_elements() * dtype.size() >= FILE_BYTES_MIN
    }

    fn memory(&self, bytes: usize) -> FileMemory {
        let memory = FileMemory::zeroed(&self.folder, bytes);
        memory.unwrap_or_else(|error| panic!("the state of an optimizer: {error}"))
    }
}

/// A tensor in a file. Clones share the file until one of them is written.
#[derive(Clone, Debug)]
pub(crate) struct FileTensor {
    memory: Arc<FileMemory>,
    shape: Shape,
    dtype: DType,
    offload: Offload,
}

impl FileTensor {
    /// Bits of zero.
    pub(crate) fn zeroed(shape: Shape, dtype: DType, offload: &Offload) -> Self {
        let memory = offload.memory(shape.num_elements() * dtype.size());
        Self {
            memory: Arc::new(memory),
            shape,
            dtype,
            offload: offload.clone(),
        }
    }

    pub(crate) fn copied(data: &TensorData, offload: &Offload) -> Self {
        let mut tensor = Self::zeroed(data.shape().clone(), data.dtype(), offload);
        tensor.values_mut().copy_from_slice(data.as_bytes());
        tensor
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether it is the memory of these values, in row-major order.
    pub(crate) fn has(&self, values: &[u8], shape: &Shape) -> bool {
        std::ptr::eq(&self.memory[..], values) && self.shape == *shape
    }

    /// The values, which nobody else sees.
    pub(crate) fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        if Arc::get_mut(&mut self.memory).is_none() {
            let mut own = self.offload.memory(self.memory.len());
            own.copy_from_slice(&self.memory);
            self.memory = Arc::new(own);
        }
        let memory = Arc::get_mut(&mut self.memory).expect("of its own");
        bytemuck::cast_slice_mut(memory)
    }

    /// The values, still in the file.
    pub(crate) fn data(&self) -> TensorData {
        in_file(self.memory.clone(), self.shape.clone(), self.dtype)
    }

    /// Says that the step is over: the next needs the values last.
    pub(crate) fn set_idle(&self) {
        self.memory.set_idle();
    }
}

/// Values that stay in their file.
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
