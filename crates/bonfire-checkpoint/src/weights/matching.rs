//! Finds a model's tensors in a file, without reading their values.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{ModuleAdapter, ModuleContext};

use super::report::with_types;
use super::{FileError, LoadReport, ShapeDifference, WeightsFile};

/// A tensor of a model that is looked for in a file.
#[derive(Clone, Debug)]
pub struct ModelTensor {
    /// Its path, without variants of enums.
    pub path: String,
    /// The types of the modules around it as Burn names them, outermost first.
    pub containers: Vec<String>,
    /// The identity of the parameter. Tensors with the same one share their values.
    pub id: ParamId,
    /// The shape in the model.
    pub shape: Vec<usize>,
}

/// The tensors of a file that a model has.
pub struct Matched {
    /// The tensors by their paths, in the model's layout and type. Each is read when its values are asked for.
    pub tensors: HashMap<String, StoredTensor>,
    /// What was found and what was not, in the order of the model.
    pub report: LoadReport,
}

impl WeightsFile {
    /// Finds the tensors of a model in the file.
    ///
    /// # Errors
    /// As [`names`](Self::names).
    pub fn matched<M: Module>(
        &self,
        model: &M,
        wanted: &[ModelTensor],
    ) -> Result<Matched, FileError> {
        let mut read = self.tensors()?;
        let adapter = read.fitted(model, self.path());
        let tensors = read.by_name;
        let mut unexpected: HashSet<&String> = tensors.keys().collect();
        let (mut found, mut missing, mut different) = (HashMap::new(), Vec::new(), Vec::new());
        let named = |wanted: &ModelTensor| {
            let context = ModuleContext::new(&wanted.containers);
            let (parent, name) = match wanted.path.rsplit_once('.') {
                Some((parent, name)) => (format!("{parent}."), name),
                None => (String::new(), wanted.path.as_str()),
            };
            let other = adapter.get_alternative_param_name(name, context.module_type()?)?;
            tensors.get_key_value(&format!("{parent}{other}"))
        };
        for tensor in wanted {
            // One of several that share their values may stand for all.
            let same = wanted.iter().filter(|other| other.id == tensor.id);
            let stored = [tensor].into_iter().chain(same).find_map(|tensor| {
                let stored = tensors.get_key_value(&tensor.path);
                stored.or_else(|| named(tensor))
            });
            let Some((name, stored)) = stored else {
                missing.push(tensor.path.clone());
                continue;
            };
            unexpected.remove(name);
            let mut stored = stored.clone();
            stored.name.clone_from(&tensor.path);
            let stored = adapter.adapt(stored, ModuleContext::new(&tensor.containers));
            if stored.shape.to_vec() != tensor.shape {
                different.push(ShapeDifference {
                    parameter: tensor.path.clone(),
                    model: tensor.shape.clone(),
                    file: stored.shape.to_vec(),
                });
            }
            found.insert(tensor.path.clone(), stored);
        }
        let report = LoadReport {
            path: self.path().display().to_string(),
            loaded: found.keys().cloned().collect(),
            unexpected: unexpected.into_iter().cloned().collect(),
            unreadable: with_types(read.unreadable),
            ..LoadReport::default()
        };
        Ok(Matched {
            tensors: found,
            report: LoadReport { skipped: different, missing, ..report.sorted() },
        })
    }
}
