//! A file with parameters, and how its names become those of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{
    Applier, ApplyError, ApplyResult, KeyRemapper, ModuleStore, PytorchStore,
    map_indices_contiguous,
};

use super::adapter::{Layout, ToModel};
use super::kind::{self, Kind};
use super::safetensors_file::{self, Contents};
use super::{FileError, LoadReport, ShapeDifference, names, report};

/// A safetensors file, or one that `torch.save` has written.
///
/// Names are changed in the order of the calls, then compared with the model's. A prefix that all of them have before
/// the model's names, such as the `module.` of a model that was saved inside of PyTorch's `DistributedDataParallel`,
/// is removed, and a line of the log reports it.
#[derive(Clone, Debug)]
pub struct WeightsFile {
    path: PathBuf,
    /// Regular expressions and what replaces what they match.
    renamings: Vec<(String, String)>,
    key: Option<String>,
    indices: Indices,
}

pub(super) struct Tensors {
    pub(super) by_name: BTreeMap<String, StoredTensor>,
    pub(super) layout: Layout,
    /// Those whose types Burn lacks, each with its type.
    pub(super) unreadable: Vec<(String, String)>,
}

impl Tensors {
    pub(super) fn fitted<M: Module>(&mut self, model: &M, path: &Path) -> ToModel {
        let adapter = ToModel::of(model, self.layout, path);
        let in_file: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        let Some(prefix) = names::prefix(&in_file, &adapter.names()) else {
            return adapter;
        };
        tracing::info!("names in {} are taken without {prefix}", path.display());
        let named = std::mem::take(&mut self.by_name).into_iter();
        self.by_name = named
            .map(|(name, mut tensor)| {
                if let Some(rest) = name.strip_prefix(&prefix) {
                    tensor.name = rest.to_owned();
                }
                (tensor.name.clone(), tensor)
            })
            .collect();
        adapter
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indices {
    Kept,
    Contiguous,
}

impl WeightsFile {
    /// Names the file at a path: safetensors, a `torch.save` file, or the index of several safetensors files beside
    /// it. The format follows from the content, whatever its ending. A safetensors file has Burn's layout if its
    /// metadata names Burn, otherwise PyTorch's.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), renamings: Vec::new(), key: None, indices: Indices::Kept }
    }

    /// Removes a prefix from the names that have it.
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

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all tensors in the file, after all changes, sorted. Only the description of the file is
    /// read, so it can be checked before a model is built.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] or [`FileError::BadPattern`].
    pub fn names(&self) -> Result<Vec<String>, FileError> {
        Ok(self.tensors()?.by_name.into_keys().collect())
    }

    /// Loads all tensors that fit into a model, which is returned in any case.
    pub fn load<M: Module>(&self, model: M) -> (M, Result<LoadReport, FileError>) {
        match self.loader(&model) {
            Ok(mut loader) => {
                let model = model.map(&mut loader);
                (model, loader.finish())
            }
            Err(error) => (model, Err(error)),
        }
    }

    /// Returns the [`ModuleMapper`] that loads it into a model, one tensor after the other.
    ///
    /// # Errors
    /// [`FileError::Unreadable`] or [`FileError::BadPattern`].
    pub fn loader<M: Module>(&self, model: &M) -> Result<WeightsLoader, FileError> {
        let mut tensors = self.tensors()?;
        let adapter = Box::new(tensors.fitted(model, &self.path));
        let names = tensors.by_name.keys().cloned().collect();
        let stored = tensors.by_name.into_values().collect();
        Ok(WeightsLoader {
            file: self.clone(),
            names,
            unreadable: tensors.unreadable,
            applier: Applier::new(stored, None, Some(adapter), true),
        })
    }

    pub(super) fn tensors(&self) -> Result<Tensors, FileError> {
        let mut renamer = KeyRemapper::new();
        for (pattern, replacement) in &self.renamings {
            renamer = renamer.add_pattern(pattern, replacement).map_err(|error| {
                FileError::BadPattern {
                    pattern: pattern.clone(),
                    cause: last_line(&error.to_string()),
                }
            })?;
        }
        let contents = match kind::of(&self.path).map_err(|error| unreadable(&self.path, &error))? {
            Kind::PyTorch => self.of_torch()?,
            Kind::Safetensors => described(&self.path)?,
            Kind::Index => self.indexed()?,
        };
        // All files together: the numbers of layers count over all of them.
        let (mut tensors, _) = renamer.remap(contents.tensors);
        if self.indices == Indices::Contiguous {
            (tensors, _) = map_indices_contiguous(tensors);
        }
        let by_name = names::by_name(tensors)
            .map_err(|name| FileError::SameName { path: self.path.display().to_string(), name })?;
        for (name, dtype) in &contents.unreadable {
            let path = self.path.display();
            tracing::warn!(
                "{name} in {path} is of type {dtype}, which Burn lacks: it is not loaded"
            );
        }
        Ok(Tensors { by_name, layout: contents.layout, unreadable: contents.unreadable })
    }

    fn of_torch(&self) -> Result<Contents, FileError> {
        let mut store = PytorchStore::from_file(&self.path).map_indices_contiguous(false);
        if let Some(key) = &self.key {
            store = store.with_top_level_key(key);
        }
        let tensors = store.get_all_tensors();
        let tensors = tensors.map_err(|error| unreadable(&self.path, &error))?;
        Ok(Contents {
            tensors: tensors.values().cloned().collect(),
            layout: Layout::PyTorch,
            unreadable: Vec::new(),
        })
    }

    /// The files that an index names, which lie beside it. A tensor is taken from the file that the index names.
    fn indexed(&self) -> Result<Contents, FileError> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = std::fs::read(&self.path).map_err(|error| unreadable(&self.path, &error))?;
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
        let Index { weight_map } = serde_json::from_slice(text)
            .map_err(|error| unreadable(&self.path, &format!("no index of weights: {error}")))?;
        let files: BTreeSet<&String> = weight_map.values().collect();
        let mut all: Option<Contents> = None;
        let mut found = BTreeSet::new();
        for file in files {
            let path = self.path.with_file_name(file);
            let mut contents = described(&path)?;
            let is_here = |name: &String| weight_map.get(name).is_none_or(|other| other == file);
            contents.tensors.retain(|tensor| is_here(&tensor.name));
            contents.unreadable.retain(|(name, _)| is_here(name));
            found.extend(contents.tensors.iter().map(|tensor| tensor.name.clone()));
            found.extend(contents.unreadable.iter().map(|(name, _)| name.clone()));
            match &mut all {
                None => all = Some(contents),
                Some(all) if all.layout != contents.layout => {
                    let cause = "it has another layout than the files before it in its index";
                    return Err(unreadable(&path, &cause));
                }
                Some(all) => {
                    all.tensors.append(&mut contents.tensors);
                    all.unreadable.append(&mut contents.unreadable);
                }
            }
        }
        for (name, file) in weight_map.iter().filter(|(name, _)| !found.contains(*name)) {
            let path = self.path.display();
            tracing::warn!("{path} lists {name} in {file}, which does not have it");
        }
        all.ok_or_else(|| unreadable(&self.path, &"it names no files"))
    }

    fn report(
        &self,
        result: ApplyResult,
        names: &[String],
        unreadable: Vec<(String, String)>,
    ) -> Result<LoadReport, FileError> {
        let path = self.path.display().to_string();
        let mut report = LoadReport {
            path: path.clone(),
            loaded: result.applied,
            skipped: Vec::new(),
            missing: result.missing.into_iter().map(|(name, _)| name).collect(),
            unexpected: result.unused,
            unreadable: report::with_types(unreadable),
        };
        for error in result.errors {
            match error {
                ApplyError::ShapeMismatch { path, expected, found } => {
                    report.skipped.push(ShapeDifference {
                        parameter: path,
                        model: expected.to_vec(),
                        file: found.to_vec(),
                    })
                }
                ApplyError::DTypeMismatch { path: ref parameter, .. }
                | ApplyError::AdapterError { path: ref parameter, .. }
                | ApplyError::LoadError { path: ref parameter, .. } => {
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
    /// Tensors whose types Burn lacks, each with its type.
    unreadable: Vec<(String, String)>,
    applier: Applier,
}

impl std::fmt::Debug for WeightsLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut loader = f.debug_struct("WeightsLoader");
        loader.field("file", &self.file).finish_non_exhaustive()
    }
}

impl WeightsLoader {
    /// Reports what was loaded and what was not.
    ///
    /// # Errors
    /// [`FileError::NothingFits`] or [`FileError::BrokenTensor`].
    pub fn finish(self) -> Result<LoadReport, FileError> {
        let result = self.applier.into_result();
        self.file.report(result, &self.names, self.unreadable)
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

super::from_paths!(WeightsFile);

impl From<&WeightsFile> for WeightsFile {
    fn from(file: &WeightsFile) -> Self {
        file.clone()
    }
}

fn described(path: &Path) -> Result<Contents, FileError> {
    match kind::of(path).map_err(|error| unreadable(path, &error))? {
        Kind::Safetensors => safetensors_file::read(path).map_err(|error| unreadable(path, &error)),
        Kind::PyTorch | Kind::Index => Err(unreadable(path, &"it is not a safetensors file")),
    }
}

fn unreadable(path: &Path, cause: &dyn std::fmt::Display) -> FileError {
    let cause = cause.to_string();
    FileError::Unreadable {
        path: path.display().to_string(),
        cause: cause.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

fn some_of(names: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    match names.get(..SHOWN_MAX) {
        Some(first) if names.len() > SHOWN_MAX => format!("{} and others", first.join(", ")),
        _ if names.is_empty() => "none".to_owned(),
        _ => names.join(", "),
    }
}

/// The line of a regular expression's error that has the reason; the lines before show the place.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().to_owned()
}
