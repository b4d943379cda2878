//! Finds a model's tensors in a file.

use std::collections::{HashMap, HashSet};

use burn::module::Module;
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{ModuleAdapter, ModuleContext};

use super::PlaceError;
use super::survey::{Entry, Survey};
use crate::report::with_types;
use crate::{LoadReport, ShapeDifference, WeightsFile};

/// The tensors of a file that belong to the model, by path.
pub(super) fn found<M: Module>(
    model: &M,
    survey: &Survey,
    file: &WeightsFile,
) -> Result<(HashMap<String, StoredTensor>, LoadReport), PlaceError> {
    let mut read = file.tensors()?;
    let adapter = read.fitted(model, file.path());
    let tensors = read.by_name;
    let mut unexpected: HashSet<&String> = tensors.keys().collect();
    let (mut found, mut missing, mut different) = (HashMap::new(), Vec::new(), Vec::new());
    let named = |entry: &Entry| {
        let context = ModuleContext::new(&entry.containers);
        let (parent, name) = match entry.path.rsplit_once('.') {
            Some((parent, name)) => (format!("{parent}."), name),
            None => (String::new(), entry.path.as_str()),
        };
        let other = adapter.get_alternative_param_name(name, context.module_type()?)?;
        tensors.get_key_value(&format!("{parent}{other}"))
    };
    for entry in &survey.entries {
        // One of several that share their values may stand for all.
        let same = survey.entries.iter().filter(|other| other.id == entry.id);
        let mut same = [entry].into_iter().chain(same);
        let tensor = same.find_map(|entry| {
            let tensor = tensors.get_key_value(&entry.path);
            tensor.or_else(|| named(entry))
        });
        let Some((name, tensor)) = tensor else {
            missing.push(entry.path.clone());
            continue;
        };
        unexpected.remove(name);
        let mut tensor = tensor.clone();
        tensor.name.clone_from(&entry.path);
        let tensor = adapter.adapt(tensor, ModuleContext::new(&entry.containers));
        if tensor.shape.to_vec() != entry.shape {
            different.push(ShapeDifference {
                parameter: entry.path.clone(),
                model: entry.shape.clone(),
                file: tensor.shape.to_vec(),
            });
        }
        found.insert(entry.path.clone(), tensor);
    }
    let path = file.path().display().to_string();
    if !missing.is_empty() || !different.is_empty() {
        return Err(PlaceError::Incomplete {
            path,
            missing,
            different,
        });
    }
    let report = LoadReport {
        path,
        loaded: found.keys().cloned().collect(),
        unexpected: unexpected.into_iter().cloned().collect(),
        unreadable: with_types(read.unreadable),
        ..LoadReport::default()
    };
    Ok((found, report.sorted()))
}
