//! A rank's place in a job: its group and its device.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use bonfire_collective::{ProcessGroup, Rank, WorldSize};
use burn::tensor::{Device, Tensor};

use crate::TrainError;

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

/// Where a rank is on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The rank's index among those of its host; selects its GPU.
    pub local_rank: u32,
    /// How many ranks its host has.
    pub local_world_size: u32,
}

/// A rank's place in a job. Clones are the same place.
#[derive(Clone, Debug)]
pub struct World {
    group: ProcessGroup,
    placement: Placement,
    device: Device,
    device_name: String,
}

impl World {
    /// A rank with a device of a kind.
    ///
    /// # Errors
    /// [`TrainError::DeviceNotCompiled`], [`TrainError::NoSuchDevice`] or
    /// [`TrainError::BrokenDevice`] if there is no such device.
    pub fn new(
        group: ProcessGroup,
        placement: Placement,
        kind: DeviceKind,
    ) -> Result<Self, TrainError> {
        let (device, device_name) = match kind {
            DeviceKind::Auto => first_that_answers(placement)?,
            kind => open(kind, placement)?,
        };
        tracing::info!(
            rank = group.rank().get(),
            device = device_name,
            "device chosen"
        );
        Ok(Self {
            group,
            placement,
            device,
            device_name,
        })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// The number of ranks of the job.
    pub fn world_size(&self) -> WorldSize {
        self.group.world_size()
    }

    /// This rank's index among those of its host.
    pub fn local_rank(&self) -> u32 {
        self.placement.local_rank
    }

    /// How many ranks this host has.
    pub fn local_world_size(&self) -> u32 {
        self.placement.local_world_size
    }

    /// Whether this is rank 0, which prints and saves.
    pub fn is_main(&self) -> bool {
        self.rank() == Rank::new(0)
    }

    /// This rank's device, without autodiff.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// The device's name, such as `cuda:1`.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// The group of all ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }
}

/// Decides as every rank of the host does: by what there is for all of them.
fn first_that_answers(placement: Placement) -> Result<(Device, String), TrainError> {
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
fn open(kind: DeviceKind, placement: Placement) -> Result<(Device, String), TrainError> {
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
        Err(panic) => Err(broken(crate::ddp::panic_message(&*panic).to_owned())),
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

#[cfg(test)]
mod tests {
    use bonfire_collective::GroupOptions;

    use super::*;

    fn lone_group() -> ProcessGroup {
        let one = WorldSize::new(1).unwrap();
        let mut groups = ProcessGroup::local(one, GroupOptions::default()).unwrap();
        groups.pop().unwrap()
    }

    const PLACEMENT: Placement = Placement {
        local_rank: 0,
        local_world_size: 1,
    };

    #[test]
    fn names_of_kinds_are_read_back() {
        for kind in [
            DeviceKind::Auto,
            DeviceKind::Cpu,
            DeviceKind::Cuda,
            DeviceKind::Wgpu,
        ] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "gpu".parse::<DeviceKind>().unwrap_err();
        assert!(error.to_string().contains("auto, cpu, cuda or wgpu"));
    }

    #[cfg(feature = "flex")]
    #[test]
    fn any_number_of_ranks_shares_the_cpu() {
        let placement = Placement {
            local_rank: 7,
            local_world_size: 8,
        };
        let world = World::new(lone_group(), placement, DeviceKind::Cpu).unwrap();
        assert_eq!(world.device_name(), "cpu");
        assert!(!world.device().is_autodiff());
        assert!(world.is_main());
    }

    #[test]
    fn some_device_is_always_found() {
        let world = World::new(lone_group(), PLACEMENT, DeviceKind::Auto).unwrap();
        assert!(!world.device_name().is_empty());
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_kind_that_is_not_compiled_says_how_to_get_it() {
        let error = World::new(lone_group(), PLACEMENT, DeviceKind::Cuda).unwrap_err();
        assert!(error.to_string().contains("--features cuda"), "{error}");
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_missing_gpu_is_an_error_and_no_panic() {
        let placement = Placement {
            local_rank: 1000,
            local_world_size: 1001,
        };
        let error = World::new(lone_group(), placement, DeviceKind::Cuda).unwrap_err();
        assert!(matches!(error, TrainError::NoSuchDevice { .. }), "{error}");
    }
}
