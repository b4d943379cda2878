//! A file with parameters, and how its names become those of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{
    Applier, ApplyError, ApplyResult, KeyRemapper, ModuleStore, PytorchStore, SafetensorsStore,
};

use crate::adapter::{Layout, PRODUCER, ToModel};
use crate::{FileError, LoadReport, ShapeDifference};

/// How many bytes the description of a safetensors file may have, as in its reference reader.
const DESCRIPTION_BYTES_MAX: u64 = 100_000_000;

/// A safetensors file, or one that `torch.save` has written.
///
/// Names are changed in the order of the calls, then compared with the model's.
#[derive(Clone, Debug)]
pub struct WeightsFile {
    path: PathBuf,
    /// Regular expressions and what replaces what they match.
    renamings: Vec<(String, String)>,
    key: Option<String>,
    indices: Indices,
}

/// What numbers in names mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indices {
    Kept,
    Contiguous,
}

impl WeightsFile {
    /// The file at a path. `.pt` and `.pth` are PyTorch's, `.json` is the index of several safetensors files beside it,
    /// everything else is safetensors. A safetensors file has Burn's layout if it says that Burn has saved it, otherwise PyTorch's.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            renamings: Vec::new(),
            key: None,
            indices: Indices::Kept,
        }
    }

    /// Takes a prefix off names that have it, such as the `module.` of a model that was saved inside
    /// of PyTorch's `DistributedDataParallel`.
    #[must_use]
    pub fn without_prefix(self, prefix: &str) -> Self {
        let mut pattern = "^".to_owned();
        for character in prefix.chars() {
            if !character.is_alphanumeric() && character != '_' {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        self.renaming(pattern, "")
    }

    /// Replaces what a regular expression matches in names; `$1` is its first group.
    #[must_use]
    pub fn renaming(mut self, pattern: impl Into<String>, replacement: impl Into<String>) -> Self {
        self.renamings.push((pattern.into(), replacement.into()));
        self
    }

    /// Takes the tensors under a key of a PyTorch checkpoint, such as `state_dict`.
    #[must_use]
    pub fn under_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Counts the layers of PyTorch's `Sequential` without those that have no parameters, as a `Vec`
    /// of layers counts them: `fc.0` and `fc.2` become `fc.0` and `fc.1`.
    #[must_use]
    pub fn with_contiguous_indices(mut self) -> Self {
        self.indices = Indices::Contiguous;
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors in the file, after all changes, sorted. Only the file's description is
    /// read: whether there is such a file can be known before a model is built.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] or [`FileError::BadPattern`].
    pub fn names(&self) -> Result<Vec<String>, FileError> {
        let (tensors, _) = self.tensors()?;
        Ok(tensors.into_keys().collect())
    }

    /// Loads what fits into a model, which comes back in any case.
    pub fn load<M: Module>(&self, model: M) -> (M, Result<LoadReport, FileError>) {
        match self.loader(&model) {
            Ok(mut loader) => {
                let model = model.map(&mut loader);
                (model, loader.finish())
            }
            Err(error) => (model, Err(error)),
        }
    }

    /// What loads it into a model, one tensor after the other, as a [`ModuleMapper`].
    ///
    /// # Errors
    /// [`FileError::Unreadable`] or [`FileError::BadPattern`].
    pub fn loader<M: Module>(&self, model: &M) -> Result<WeightsLoader, FileError> {
        let (tensors, layout) = self.tensors()?;
        let names = tensors.keys().cloned().collect();
        let adapter = Box::new(ToModel::of(model, layout));
        let tensors = tensors.into_values().collect();
        Ok(WeightsLoader {
            file: self.clone(),
            names,
            applier: Applier::new(tensors, None, Some(adapter), true),
        })
    }

    /// All tensors by their changed names.
    pub(crate) fn tensors(&self) -> Result<(BTreeMap<String, StoredTensor>, Layout), FileError> {
        let unreadable = |cause: String| FileError::Unreadable {
            path: self.path.display().to_string(),
            cause: cause.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        let mut renamer = KeyRemapper::new();
        for (pattern, replacement) in &self.renamings {
            renamer = renamer.add_pattern(pattern, replacement).map_err(|error| {
                FileError::BadPattern {
                    pattern: pattern.clone(),
                    cause: last_line(&error.to_string()),
                }
            })?;
        }
        // For the words of the operating system; the readers have their own for a missing file.
        File::open(&self.path).map_err(|error| unreadable(error.to_string()))?;
        let contiguous = self.indices == Indices::Contiguous;
        if is_pytorch(&self.path) {
            let mut store = PytorchStore::from_file(&self.path)
                .map_indices_contiguous(contiguous)
                .remap(renamer);
            if let Some(key) = &self.key {
                store = store.with_top_level_key(key);
            }
            let tensors = store.get_all_tensors();
            let tensors = tensors.map_err(|error| unreadable(error.to_string()))?;
            return Ok((tensors.clone(), Layout::PyTorch));
        }
        let no_safetensors = |error| unreadable(format!("no safetensors file: {error}"));
        let mut all = BTreeMap::new();
        let mut layout = Layout::Burn;
        for file in files_of(&self.path).map_err(no_safetensors)? {
            layout = layout_of_safetensors(&file).map_err(no_safetensors)?;
            let mut store = SafetensorsStore::from_file(&file)
                .map_indices_contiguous(contiguous)
                .remap(renamer.clone());
            let tensors = store.get_all_tensors();
            let tensors = tensors.map_err(|error| unreadable(error.to_string()))?;
            all.extend(tensors.clone());
        }
        Ok((all, layout))
    }

    fn report(&self, result: ApplyResult, names: &[String]) -> Result<LoadReport, FileError> {
        let path = self.path.display().to_string();
        let mut report = LoadReport {
            path: path.clone(),
            loaded: result.applied,
            skipped: Vec::new(),
            missing: result.missing.into_iter().map(|(name, _)| name).collect(),
            unexpected: result.unused,
        };
        for error in result.errors {
            match error {
                ApplyError::ShapeMismatch {
                    path,
                    expected,
                    found,
                } => report.skipped.push(ShapeDifference {
                    parameter: path,
                    model: expected.to_vec(),
                    file: found.to_vec(),
                }),
                ApplyError::DTypeMismatch {
                    path: ref parameter,
                    ..
                }
                | ApplyError::AdapterError {
                    path: ref parameter,
                    ..
                }
                | ApplyError::LoadError {
                    path: ref parameter,
                    ..
                } => {
                    return Err(FileError::BrokenTensor {
                        path,
                        parameter: parameter.clone(),
                        cause: error.to_string(),
                    });
                }
            }
        }
        let report = report.sorted();
        if report.loaded.is_empty() {
            let skipped = report.skipped.into_iter().map(|skipped| skipped.parameter);
            let in_model: Vec<String> = report.missing.into_iter().chain(skipped).collect();
            return Err(FileError::NothingFits {
                path,
                count: names.len(),
                in_file: some_of(names),
                in_model: some_of(&in_model),
            });
        }
        Ok(report)
    }
}

/// Loads a file into a model, which is mapped with it.
pub struct WeightsLoader {
    file: WeightsFile,
    names: Vec<String>,
    applier: Applier,
}

impl std::fmt::Debug for WeightsLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut loader = f.debug_struct("WeightsLoader");
        loader.field("file", &self.file).finish_non_exhaustive()
    }
}

impl WeightsLoader {
    /// What became of everything.
    ///
    /// # Errors
    /// [`FileError::NothingFits`] or [`FileError::BrokenTensor`].
    pub fn finish(self) -> Result<LoadReport, FileError> {
        self.file.report(self.applier.into_result(), &self.names)
    }
}

impl ModuleMapper for WeightsLoader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.applier.enter_module(name, container);
    }

    fn exit_module(&mut self, name: &str, container: &str) {
        self.applier.exit_module(name, container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.applier.map_float(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.applier.map_int(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.applier.map_bool(param)
    }
}

impl From<&str> for WeightsFile {
    fn from(path: &str) -> Self {
        Self::new(path)
    }
}

impl From<&Path> for WeightsFile {
    fn from(path: &Path) -> Self {
        Self::new(path)
    }
}

impl From<PathBuf> for WeightsFile {
    fn from(path: PathBuf) -> Self {
        Self::new(path)
    }
}

impl From<&WeightsFile> for WeightsFile {
    fn from(file: &WeightsFile) -> Self {
        file.clone()
    }
}

fn is_pytorch(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        extension.eq_ignore_ascii_case("pt") || extension.eq_ignore_ascii_case("pth")
    })
}

/// The file itself, or those that an index names.
fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(vec![path.to_owned()]);
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_slice(&std::fs::read(path)?)?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    Ok(names
        .into_iter()
        .map(|name| path.with_file_name(name))
        .collect())
}

/// What a safetensors file says about its producer. It begins with the length of its description,
/// which is JSON.
fn layout_of_safetensors(path: &Path) -> io::Result<Layout> {
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > DESCRIPTION_BYTES_MAX {
        let cause = format!("a description of {length} bytes is too long");
        return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
    }
    let mut description = Vec::new();
    file.take(length).read_to_end(&mut description)?;
    let description: serde_json::Value = serde_json::from_slice(&description)?;
    let producer = &description["__metadata__"][PRODUCER];
    Ok(Layout::said(producer.as_str()))
}

/// The first few names.
fn some_of(names: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    match names.get(..SHOWN_MAX) {
        Some(first) if names.len() > SHOWN_MAX => format!("{} and others", first.join(", ")),
        _ if names.is_empty() => "none".to_owned(),
        _ => names.join(", "),
    }
}

/// Where a regular expression's error says what is wrong; the lines before show where.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().to_owned()
}
