//! Places outside of device memory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The place of state for which the device has no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum OffloadTo {
    /// Kept in the memory of the device.
    #[default]
    None,
    /// Kept in the memory of the host.
    Memory,
    /// Kept in files of this folder.
    Files(PathBuf),
}

impl From<String> for OffloadTo {
    fn from(text: String) -> Self {
        match text.as_str() {
            "none" => Self::None,
            "memory" => Self::Memory,
            _ => Self::Files(text.into()),
        }
    }
}

impl From<OffloadTo> for String {
    fn from(to: OffloadTo) -> Self {
        match to {
            OffloadTo::None => "none".to_owned(),
            OffloadTo::Memory => "memory".to_owned(),
            OffloadTo::Files(folder) => folder.display().to_string(),
        }
    }
}
