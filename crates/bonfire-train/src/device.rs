//! Finding the device of a rank. Never panics because a driver is missing.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use burn::tensor::{Device, Tensor};

use crate::panic::panic_message;
use crate::{Placement, TrainError};

/// What to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The first of CUDA, WebGPU and the CPU that this program was built with and that answers on
    /// every rank of this host.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU: the one with the index of the rank on its host.
    Cuda,
    /// A GPU of any maker, through Vulkan, Metal or DirectX 12.
    Wgpu,
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

/// No device kind has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no device kind `{0}`; choose auto, cpu, cuda or wgpu")]
pub struct UnknownDeviceKind(String);

impl FromStr for DeviceKind {
    type Err = UnknownDeviceKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Cpu, Self::Cuda, Self::Wgpu]
            .into_iter()
            .find(|kind| kind.to_string() == name)
            .ok_or_else(|| UnknownDeviceKind(name.to_owned()))
    }
}

/// Decides as every rank of the host does: by what there is for all of them.
pub(crate) fn first_that_answers(placement: Placement) -> Result<(Device, String), TrainError> {
    for kind in [DeviceKind::Cuda, DeviceKind::Wgpu] {
        let enough = match devices(kind) {
            Ok(devices) => kind.suffices(&devices, placement),
            Err(_) => false,
        };
        if enough {
            match open(kind, placement) {
                Ok(opened) => return Ok(opened),
                Err(error) => tracing::warn!(%error, "not training on {kind}"),
            }
        }
    }
    open(DeviceKind::Cpu, placement)
}

/// A device and its name, seen to work.
pub(crate) fn open(kind: DeviceKind, placement: Placement) -> Result<(Device, String), TrainError> {
    let devices = devices(kind)?;
    let index = match kind {
        DeviceKind::Cuda => placement.local_rank as usize,
        // Ranks may share the CPU, and graphics adapters.
        _ => placement.local_rank as usize % devices.len().max(1),
    };
    let Some(device) = devices.get(index) else {
        return Err(TrainError::NoSuchDevice {
            kind,
            local_rank: placement.local_rank,
            available: devices.len(),
        });
    };
    let name = match kind {
        DeviceKind::Cpu => kind.to_string(),
        _ => format!("{kind}:{index}"),
    };
    prove(device, &name)?;
    Ok((device.clone(), name))
}

impl DeviceKind {
    /// Whether the devices of this kind are worth choosing unasked: a GPU for each rank with CUDA,
    /// and no graphics driver that only computes on the CPU.
    fn suffices(self, devices: &[Device], placement: Placement) -> bool {
        match self {
            Self::Cuda => devices.len() >= placement.local_world_size as usize,
            _ => devices
                .first()
                .is_some_and(|device| !list::is_software(device)),
        }
    }
}

/// Does a sum on a device: drivers are found to be missing or broken when they are first used, and
/// backends panic then.
fn prove(device: &Device, name: &str) -> Result<(), TrainError> {
    let sum = catch_unwind(AssertUnwindSafe(|| {
        let two = Tensor::<1>::ones([2], device).sum().try_into_data();
        two.map_err(|cause| format!("{cause:?}"))
    }));
    let broken = |cause: String| TrainError::BrokenDevice {
        device: name.to_owned(),
        cause,
    };
    match sum {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(cause)) => Err(broken(cause)),
        Err(panic) => Err(broken(panic_message(&*panic).to_owned())),
    }
}

/// The devices of a kind that there are.
fn devices(kind: DeviceKind) -> Result<Vec<Device>, TrainError> {
    let listed = catch_unwind(|| match kind {
        DeviceKind::Auto | DeviceKind::Cpu => list::cpu(),
        DeviceKind::Cuda => list::cuda(),
        DeviceKind::Wgpu => list::wgpu(),
    });
    match listed {
        Ok(devices) => devices.ok_or(TrainError::DeviceNotCompiled { kind }),
        // A driver that cannot even be asked has no devices.
        Err(_) => Ok(Vec::new()),
    }
}

/// What each backend finds; nothing if it is not part of the build.
mod list {
    use burn::tensor::Device;

    #[cfg(feature = "flex")]
    pub(super) fn cpu() -> Option<Vec<Device>> {
        Some(vec![Device::flex()])
    }

    #[cfg(not(feature = "flex"))]
    pub(super) fn cpu() -> Option<Vec<Device>> {
        None
    }

    #[cfg(feature = "cuda")]
    pub(super) fn cuda() -> Option<Vec<Device>> {
        use burn::tensor::DeviceType;
        Some(Device::enumerate(DeviceType::Cuda).into_iter().collect())
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn cuda() -> Option<Vec<Device>> {
        None
    }

    #[cfg(feature = "wgpu")]
    pub(super) fn wgpu() -> Option<Vec<Device>> {
        use burn::tensor::DeviceType;
        // GPUs first; drivers that compute on the CPU only where there is no GPU.
        let all = Device::enumerate(DeviceType::Wgpu).into_iter();
        let (software, gpus): (Vec<_>, Vec<_>) = all.partition(is_software);
        Some(if gpus.is_empty() { software } else { gpus })
    }

    #[cfg(feature = "wgpu")]
    pub(super) fn is_software(device: &Device) -> bool {
        use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};
        matches!(
            device.as_dispatch(),
            DispatchDevice::Cube(CubeDevice::Wgpu(device)) if device.kind == WgpuDeviceKind::Cpu
        )
    }

    #[cfg(not(feature = "wgpu"))]
    pub(super) fn is_software(_device: &Device) -> bool {
        true
    }

    #[cfg(not(feature = "wgpu"))]
    pub(super) fn wgpu() -> Option<Vec<Device>> {
        None
    }
}
