//! The kinds of devices, and how many ranks share one.

use std::fmt;
use std::str::FromStr;

use bonfire_plan::UnknownName;

/// A kind of device to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The first of CUDA, WebGPU and the CPU that this program was built with and that answers on
    /// every rank of this host.
    #[default]
    Auto,
    /// The CPU, shared by all ranks of a host.
    Cpu,
    /// An NVIDIA GPU: the one with the index of the rank on its host.
    Cuda,
    /// A GPU of any maker, through Vulkan.
    Wgpu,
}

impl DeviceKind {
    /// The Cargo feature of `bonfire` that enables it.
    pub(crate) fn feature(self) -> &'static str {
        match self {
            Self::Auto | Self::Cpu => "flex",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        })
    }
}

/// The number of ranks that may share one CUDA device. Ranks always may share the CPU, and graphics adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occupancy {
    /// One rank on each device.
    #[default]
    Exclusive,
    /// As many as needed, where there are fewer devices than ranks on a host: for tests, since they share its speed
    /// and its memory.
    Oversubscribed,
}

impl FromStr for DeviceKind {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UnknownName::find(
            "device kind",
            text,
            &[Self::Auto, Self::Cpu, Self::Cuda, Self::Wgpu],
        )
    }
}
