//! Settings that Bonfire's configuration and DeepSpeed's have in common.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The data type of forward and backward passes. Parameters and moments keep 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision: 32 bits per value.
    #[default]
    F32,
    /// bf16: 16 bits with the range of f32.
    Bf16,
    /// IEEE half precision (f16), with a scaled loss.
    F16,
}

/// The data type in which gradients are communicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// The gradients' own data type, unchanged.
    #[default]
    Own,
    /// Gradients are sent as bf16.
    Bf16,
    /// Gradients are sent as IEEE f16.
    F16,
}

/// The route of gradients between the ranks. `bonfire::ddp::GradientRoute` has their conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// From device to device where that is possible.
    #[default]
    Auto,
    /// Through host memory, on all devices.
    Host,
    /// From device to device, or not at all.
    Device,
    /// Over NVIDIA's NCCL, or not at all.
    Nccl,
}

/// The data type in which workers of DiLoCo exchange parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OuterGradients {
    /// 4 bytes for each parameter.
    #[default]
    F32,
    /// 2 bytes for each parameter.
    Bf16,
    /// 1 byte for each parameter, and a scale per block of 256.
    Int8,
}

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
