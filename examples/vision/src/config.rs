//! The configuration of a training: Distribuuuu's sections, keys and defaults, read from a YAML file
//! and from `KEY VALUE` pairs of the command line, which come after the file.
//!
//! Every value is checked by itself when it is read, so an error names its key and position. Unknown keys are errors.

mod assignment;
mod check;
mod error;
mod sections;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::model::ModelConfig;
use crate::nearest::{did_you_mean, nearest};
use crate::networks::resnet::Stem;
use assignment::Assignment;
pub use error::{ConfigError, Origin};
pub use sections::{
    Augment, Config, CudnnSection, Format, LrPolicy, ModelSection, OptimSection, StemName,
    TestSection, TrainSection,
};

impl Config {
    /// Loads the defaults, changed by a file, then by `KEY VALUE` pairs.
    ///
    /// # Errors
    /// [`ConfigError`] names the key, and the line if it stands in a file.
    pub fn load(file: Option<&Path>, pairs: &[String]) -> Result<Self, ConfigError> {
        let mut assignments = match file {
            Some(file) => assignment::of_file(file)?,
            None => Vec::new(),
        };
        assignments.extend(assignment::of_pairs(pairs)?);
        Self::from_assignments(assignments)
    }

    fn from_assignments(assignments: Vec<Assignment>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut tree = tree(&config);
        let mut origins = BTreeMap::new();
        for Assignment { key, value, origin } in assignments {
            let Some(place) = leaf(&mut tree, &key) else {
                let known = keys(&tree);
                let suggestion = nearest(&key, known.iter().map(String::as_str));
                return Err(ConfigError::UnknownKey {
                    suggestion: did_you_mean(suggestion),
                    origin,
                    key,
                });
            };
            *place = value;
            // One value has changed since this went well, so it is the one at fault.
            config =
                serde_json::from_value(tree.clone()).map_err(|cause| ConfigError::WrongValue {
                    origin: origin.clone(),
                    key: key.clone(),
                    cause: cause.to_string(),
                })?;
            origins.insert(key, origin);
        }
        check::check(&config).map_err(|(key, cause)| ConfigError::WrongValue {
            origin: origins.remove(key).unwrap_or(Origin::Default),
            key: key.to_owned(),
            cause,
        })?;
        Ok(config)
    }

    /// Formats it as a file that [`load`](Self::load) reads.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("plain data can always be written")
    }

    /// Writes the configuration into [`Config::out_dir`], which is made if it does not exist: completely or not at
    /// all.
    ///
    /// # Errors
    /// [`ConfigError::Unwritable`].
    pub fn save(&self) -> Result<PathBuf, ConfigError> {
        let path = self.saved_path();
        write_whole(&path, self.to_yaml().as_bytes())?;
        Ok(path)
    }

    /// Returns the path of the copy in [`Config::out_dir`].
    pub fn saved_path(&self) -> PathBuf {
        self.out_dir.join(&self.cfg_dest)
    }

    /// Returns the options of the network.
    pub fn network(&self) -> ModelConfig {
        ModelConfig {
            arch: self.model.arch,
            classes: self.model.num_classes.get(),
            image_size: self.train.im_size.get(),
            stem: self.model.stem.map(|stem| match stem {
                StemName::ImageNet => Stem::Large,
                StemName::Cifar => Stem::Small,
            }),
            zero_init_residual: self.model.zero_init_residual,
        }
    }
}

/// Writes a file completely or not at all.
///
/// # Errors
/// [`ConfigError::Unwritable`].
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), ConfigError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        fs::create_dir_all(folder)?;
        let mut file = File::create(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| {
        // What is left of it fills the disk, and the error matters more.
        let _ = fs::remove_file(&unfinished);
        ConfigError::Unwritable { path: path.to_owned(), source }
    })
}

fn tree(config: &Config) -> Value {
    serde_json::to_value(config).expect("plain data can always be written")
}

/// Finds a value by a key such as `TRAIN.BATCH_SIZE`; `None` if there is no such key, or if it is a section's.
fn leaf<'a>(tree: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let place = key.split('.').try_fold(tree, |tree, name| tree.as_object_mut()?.get_mut(name))?;
    (!place.is_object()).then_some(place)
}

/// All keys that have a value.
fn keys(tree: &Value) -> Vec<String> {
    let sections = tree.as_object().into_iter().flatten();
    sections
        .flat_map(|(section, value)| match value.as_object() {
            Some(values) => values.keys().map(|name| format!("{section}.{name}")).collect(),
            None => vec![section.clone()],
        })
        .collect()
}

#[cfg(test)]
mod tests;
