//! The GPUs, and how each reaches the memory of the others.

#[cfg(feature = "cuda")]
pub(super) mod look;
/// A program that was built without CUDA knows of no GPU.
#[cfg(not(feature = "cuda"))]
pub(super) mod look {
    pub(crate) fn gpus() -> super::Gpus {
        let reason = "this program was built without CUDA: build it with `--features cuda`";
        super::Gpus::Missing { reason: reason.to_owned() }
    }
}

use std::fmt;

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum Gpus {
    Missing { reason: String },
    Found(Box<Found>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Found {
    pub(super) cuda: Version,
    /// The driver's own release, as far as NVML reports it.
    pub(super) driver_release: Option<String>,
    pub(super) nvrtc: Library,
    /// The folder of CUDA's headers, with which Burn's kernels are compiled.
    pub(super) toolkit: Library,
    pub(super) nvml: Library,
    pub(super) nccl: Library,
    pub(super) gpus: Vec<Gpu>,
    /// Every ordered pair of different GPUs.
    pub(super) pairs: Vec<Pair>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Library {
    /// It is there: in this version, or here.
    Version(String),
    /// It is not, or does not start.
    Missing(String),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Gpu {
    pub(super) ordinal: u32,
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) pci: String,
    pub(super) compute_capability: Version,
    pub(super) multiprocessors: u32,
    pub(super) memory_bytes: usize,
    pub(super) memory: Memory,
    /// The PCIe link as it is now, which may be slower while the GPU idles.
    pub(super) pcie: Option<String>,
    pub(super) nv_links: Option<usize>,
    pub(super) numa_node: Option<u32>,
    /// The driver ends kernels that take long, as where a display is attached.
    pub(super) limits_kernel_time: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Memory {
    FreeBytes(usize),
    Unusable(String),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) link: Route,
    pub(super) access: Access,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Route {
    /// That many NVLinks from one to the other, if the number is known.
    NvLink(Option<usize>),
    /// NVSwitches, to which the first has that many NVLinks.
    NvSwitch(usize),
    /// PCIe, by this way if it is known.
    Pcie(Option<String>),
    /// Nothing that GPUs use by themselves: data go through the memory of the host.
    Host(Option<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Access {
    Direct,
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Refusal {
    Chipset,
    Gpu,
    Topology,
    Disabled,
    Unsupported,
    Unknown,
    /// The management library, which knows reasons, is not there.
    NobodyToAsk,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => f.write_str(version),
            Self::Missing(_) => f.write_str("not found"),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink(None) => f.write_str("NVLink"),
            Self::NvLink(Some(links)) => write!(f, "NVLink x{links}"),
            Self::NvSwitch(links) => write!(f, "NVLink x{links} to NVSwitch"),
            Self::Pcie(None) => f.write_str("PCIe"),
            Self::Pcie(Some(way)) => write!(f, "PCIe, {way}"),
            Self::Host(None) => f.write_str("through the host"),
            Self::Host(Some(way)) => write!(f, "through the host, {way}"),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("P2P"),
            Self::Refused(refusal) => write!(f, "no P2P: {refusal}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chipset => "the chipset does not support it",
            Self::Gpu => "one of the GPUs, or its licence, does not support it",
            Self::Topology => "the way between the I/O hubs does not support it",
            Self::Disabled => "it is disabled in the settings of the driver",
            Self::Unsupported => "the driver does not support it here",
            Self::Unknown => "the driver gives no reason",
            Self::NobodyToAsk => "NVML, which knows the reason, is not found",
        })
    }
}

impl Refusal {
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Chipset | Self::Topology => {
                "use GPUs below one PCIe root for one job (CUDA_VISIBLE_DEVICES)"
            }
            Self::Gpu => {
                "consumer GPUs have no P2P over PCIe since the RTX 40 series, and MIG slices have none"
            }
            Self::Disabled => {
                "remove RMForceP2PType and PeerMappingOverride from the options of the module nvidia in \
                 /etc/modprobe.d"
            }
            Self::Unsupported | Self::Unknown => {
                "on bare metal turn the IOMMU or ACS off (BIOS, or iommu=pt on the kernel's command line); in \
                 a virtual machine pass GPUs through with their switch"
            }
            Self::NobodyToAsk => {
                "make libnvidia-ml.so.1 visible: in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            }
        }
    }
}
