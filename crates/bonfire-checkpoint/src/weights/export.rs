//! Parameters written for other programs.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use burn::tensor::{BoolStore, DType};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{BurnToPyTorchAdapter, ModuleAdapter, ModuleContext};
use safetensors::tensor::{Dtype, View, serialize_to_file};

use super::FileError;
use super::adapter::{BURN, Layout, PRODUCER};

/// The path and the layout of parameters that are written as safetensors.
///
/// ```
/// # mod bonfire { pub mod weights { pub use bonfire_checkpoint::weights::*; } }
/// use bonfire::weights::Export;
///
/// // In files of at most 5 GB, with an index, as `transformers` writes and reads them.
/// let export = Export::new("model.safetensors").for_pytorch().with_file_bytes_max(5_000_000_000);
/// # let _ = export;
/// ```
#[derive(Clone, Debug)]
pub struct Export {
    path: PathBuf,
    layout: Layout,
    file_bytes_max: u64,
}

impl Export {
    /// Writes into one file, in Burn's layout and with Burn's names.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), layout: Layout::Burn, file_bytes_max: u64::MAX }
    }

    /// Selects PyTorch's layout: the weights of `Linear` are transposed, and normalization layers' `gamma` and `beta`
    /// become `weight` and `bias`.
    #[must_use]
    pub fn for_pytorch(self) -> Self {
        Self { layout: Layout::PyTorch, ..self }
    }

    /// Splits tensors into files of at most `file_bytes_max` bytes, unless a single tensor has more. If there are
    /// several files, `model.safetensors` becomes `model-00001-of-00002.safetensors` and so on, and
    /// `model.safetensors.index.json` lists the file of each tensor.
    #[must_use]
    pub fn with_file_bytes_max(self, file_bytes_max: u64) -> Self {
        Self { file_bytes_max, ..self }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes tensors, each with the types of the modules around it as Burn names them, outermost first. The values of
    /// one tensor are read when it is written, and freed before those of the next.
    ///
    /// # Errors
    /// [`FileError::Unwritable`]. Each file is replaced completely or left as it was, and the index comes last.
    pub fn write(&self, tensors: Vec<(StoredTensor, Vec<String>)>) -> Result<(), FileError> {
        let adapted = tensors.into_iter().map(|(tensor, containers)| match self.layout {
            Layout::Burn => tensor,
            Layout::PyTorch => BurnToPyTorchAdapter.adapt(tensor, ModuleContext::new(&containers)),
        });
        let files = self.divided(adapted.collect());
        // One key, because the writer has several in no order, and two exports would differ.
        let (key, value) = match self.layout {
            Layout::Burn => (PRODUCER, BURN),
            Layout::PyTorch => ("format", "pt"),
        };
        let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
        let mut index = BTreeMap::new();
        let mut total = 0;
        for (number, tensors) in files.iter().enumerate() {
            let path = self.path_of(number, files.len());
            write_file(tensors, metadata.clone(), &path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            for tensor in tensors {
                total += tensor.byte_len();
                index.insert(tensor.name.clone(), name.clone().into_owned());
            }
        }
        if files.len() > 1 {
            let index = serde_json::json!({
                "metadata": { "total_size": total },
                "weight_map": index,
            });
            let path = self.path.with_added_extension("index.json");
            let text = format!("{index:#}\n");
            replaced(&path, |unfinished| {
                std::fs::write(unfinished, text).map_err(|cause| unwritable(&path, &cause))
            })?;
        }
        Ok(())
    }

    fn divided(&self, tensors: Vec<StoredTensor>) -> Vec<Vec<StoredTensor>> {
        let mut files = vec![Vec::new()];
        let mut bytes = 0;
        for tensor in tensors {
            let len = tensor.byte_len() as u64;
            if bytes > 0 && bytes + len > self.file_bytes_max {
                files.push(Vec::new());
                bytes = 0;
            }
            bytes += len;
            files.last_mut().expect("there is one").push(tensor);
        }
        files
    }

    fn path_of(&self, number: usize, files: usize) -> PathBuf {
        if files == 1 {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let number = number + 1;
        let name = format!("{stem}-{number:05}-of-{files:05}.safetensors");
        self.path.with_file_name(name)
    }
}

super::from_paths!(Export);

fn write_file(
    tensors: &[StoredTensor],
    metadata: HashMap<String, String>,
    path: &Path,
) -> Result<(), FileError> {
    let failure = RefCell::new(None);
    let views = tensors.iter().map(|tensor| {
        let view = Lazy::new(tensor, &failure);
        view.map(|view| (tensor.name.as_str(), view))
    });
    let views: Result<Vec<_>, String> = views.collect();
    let views = views.map_err(|cause| unwritable(path, &cause))?;
    replaced(path, |unfinished| {
        let written = serialize_to_file(views, Some(metadata), unfinished);
        let written = written.map_err(|cause| unwritable(path, &cause));
        // A tensor may fail to come.
        let came = failure.take().map(|cause| unwritable(path, &cause));
        came.map_or(written, Err)
    })
}

/// Writes a temporary file beside `path`, and renames it when it is complete.
fn replaced(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let unfinished = path.with_added_extension("unfinished");
    // The safetensors writer makes a file for its owner alone; this one has the mode of the umask.
    let made = File::create(&unfinished).and_then(|file| file.metadata());
    let renamed = made.map_err(|cause| unwritable(path, &cause)).and_then(|made| {
        write(&unfinished)?;
        std::fs::set_permissions(&unfinished, made.permissions())
            .and_then(|()| std::fs::rename(&unfinished, path))
            .map_err(|cause| unwritable(path, &cause))
    });
    if renamed.is_err() {
        // What is left of it is of no use, and the error matters more.
        let _ = std::fs::remove_file(&unfinished);
    }
    renamed
}

fn unwritable(path: &Path, cause: &dyn std::fmt::Display) -> FileError {
    FileError::Unwritable { path: path.display().to_string(), cause: cause.to_string() }
}

struct Lazy<'a> {
    tensor: &'a StoredTensor,
    dtype: Dtype,
    shape: Vec<usize>,
    failure: &'a RefCell<Option<String>>,
}

impl<'a> Lazy<'a> {
    fn new(tensor: &'a StoredTensor, failure: &'a RefCell<Option<String>>) -> Result<Self, String> {
        let dtype = match tensor.dtype {
            DType::F64 => Dtype::F64,
            DType::F32 | DType::Flex32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::I64 => Dtype::I64,
            DType::I32 => Dtype::I32,
            DType::I16 => Dtype::I16,
            DType::I8 => Dtype::I8,
            DType::U64 => Dtype::U64,
            DType::U32 => Dtype::U32,
            DType::U16 => Dtype::U16,
            DType::U8 => Dtype::U8,
            DType::Bool(BoolStore::Native) => Dtype::BOOL,
            other => {
                return Err(format!(
                    "{} is of type {other:?}, which safetensors has not",
                    tensor.name
                ));
            }
        };
        Ok(Self { tensor, dtype, shape: tensor.shape.iter().copied().collect(), failure })
    }
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.tensor.to_bytes() {
            Ok(bytes) => bytes.to_vec().into(),
            Err(cause) => {
                self.failure.borrow_mut().get_or_insert(cause.to_string());
                vec![0; self.data_len()].into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.tensor.byte_len()
    }
}
