//! Errors of placing a model by a device map.

use bonfire_checkpoint::weights::{FileError, ShapeDifference};
use bonfire_plan::device_map::MapError;

/// A model, a map and a file do not fit together. Lists have all faults at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The map and the model differ.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The map names a device that is not in the list.
    #[error("the device map names device {index}, but {count} devices are given")]
    NoDevice {
        /// An index in the map that is too high, from 0.
        index: usize,
        /// The number of devices in the list.
        count: usize,
    },
    /// The map leaves these parameters in a file, and there is no file.
    #[error(
        "{} stay on disk, but there is no file to read them from: use `Dispatch::load`",
        .0.join(", ")
    )]
    NoFile(Vec<String>),
    /// The file lacks parameters that the model needs.
    #[error("{path} does not have this model:{}", lists(.missing, .different))]
    Incomplete {
        /// The weights file that was loaded.
        path: String,
        /// The paths of parameters that the file lacks.
        missing: Vec<String>,
        /// The parameters that have another shape in the file.
        different: Vec<ShapeDifference>,
    },
    /// Parameters that stay in a file cannot be trained.
    #[error(
        "{} would be trained, but stay on disk: freeze them, map them to cpu, or load the model on a device \
         without autodiff",
        .0.join(", ")
    )]
    Trained(Vec<String>),
    /// Parameters that already have a reparameterization, such as LoRA, and can have only one.
    #[error(
        "{} cannot be offloaded, because they have a reparameterization already: map them to a device",
        .0.join(", ")
    )]
    Reparameterized(Vec<String>),
}

fn lists(missing: &[String], different: &[ShapeDifference]) -> String {
    let different: Vec<String> = different.iter().map(ToString::to_string).collect();
    let lists = [("missing", missing), ("of another shape", &different)];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let lists: Vec<String> =
        lists.map(|(what, names)| format!(" {what}: {}", names.join(", "))).collect();
    lists.join(";")
}
