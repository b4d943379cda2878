//! The outcome of loading a file into a model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Lists what was loaded and what was not. All names are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// The path of the file.
    pub path: String,
    /// Parameters that have the file's values now.
    pub loaded: Vec<String>,
    /// Parameters that the file has in another shape, such as a head for another number of classes.
    pub skipped: Vec<ShapeDifference>,
    /// Parameters that the file does not have.
    pub missing: Vec<String>,
    /// Tensors that the model does not have, PyTorch's counters of batches (`num_batches_tracked`) aside.
    pub unexpected: Vec<String>,
    /// Tensors of the file whose types Burn lacks, each with its type.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

pub(super) fn with_types(tensors: Vec<(String, String)>) -> Vec<String> {
    let named = tensors.into_iter();
    named.map(|(name, dtype)| format!("{name} ({dtype})")).collect()
}

/// A parameter that differs in shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShapeDifference {
    /// The path of the parameter in the model.
    pub parameter: String,
    /// The shape in the model.
    pub model: Vec<usize>,
    /// The shape in the file, in the model's layout.
    pub file: Vec<usize>,
}

/// A tensor of PyTorch's that no model here has: how many batches a normalization layer has seen.
const BATCH_COUNTER: &str = "num_batches_tracked";

impl LoadReport {
    pub(super) fn sorted(mut self) -> Self {
        self.unexpected.retain(|name| !name.ends_with(BATCH_COUNTER));
        self.loaded.sort();
        self.skipped.sort();
        self.unexpected.sort();
        self
    }

    /// Returns the numbers of the report in one line.
    pub fn summary(&self) -> String {
        format!(
            "{}: {} loaded, {} skipped by shape, {} missing, {} unexpected",
            self.path,
            self.loaded.len(),
            self.skipped.len(),
            self.missing.len(),
            self.unexpected.len()
        )
    }
}

impl fmt::Display for ShapeDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parameter, model, file) = (&self.parameter, &self.model, &self.file);
        write!(f, "{parameter} (model {model:?}, file {file:?})")
    }
}

/// The numbers, and a line for each kind of tensor that was not loaded.
impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())?;
        let skipped: Vec<String> = self.skipped.iter().map(ToString::to_string).collect();
        for (what, names) in [
            ("skipped by shape", &skipped),
            ("missing", &self.missing),
            ("unexpected", &self.unexpected),
            ("of a type that Burn lacks", &self.unreadable),
        ] {
            if !names.is_empty() {
                write!(f, "\n  {what}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}
