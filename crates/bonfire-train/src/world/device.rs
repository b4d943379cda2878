//! Finds the device of a rank. Never panics because of a missing driver.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bonfire_collective::panic_message;
use bonfire_launch::sees_own_devices;
use burn::tensor::{Device, Tensor};

use crate::config::{DeviceKind, Occupancy};
use crate::{LocalRank, TrainError};

pub(crate) fn first_that_answers(
    occupancy: Occupancy,
    local: LocalRank,
) -> Result<(DeviceKind, Device, String), TrainError> {
    let mut reasons = Vec::new();
    for kind in [DeviceKind::Cuda, DeviceKind::Wgpu] {
        // A kind that the build lacks is not worth a warning.
        let Ok(devices) = devices(kind) else { continue };
        let opened = match kind.lacks(&devices, local, occupancy) {
            Some(lack) => Err(lack),
            None => open(kind, occupancy, local).map_err(|error| error.to_string()),
        };
        match opened {
            Ok((device, name)) => return Ok((kind, device, name)),
            Err(reason) => reasons.push(reason),
        }
    }
    if !reasons.is_empty() && local.local_rank == 0 {
        tracing::warn!(
            "training on the CPU, though this program was built for GPUs: {}",
            reasons.join("; ")
        );
    }
    let (device, name) = open(DeviceKind::Cpu, occupancy, local)?;
    Ok((DeviceKind::Cpu, device, name))
}

pub(crate) fn open(
    kind: DeviceKind,
    occupancy: Occupancy,
    local: LocalRank,
) -> Result<(Device, String), TrainError> {
    let devices = devices(kind)?;
    let index = kind.index_of(local.local_rank, devices.len(), occupancy);
    let Some(device) = devices.get(index) else {
        return Err(TrainError::NoSuchDevice {
            kind,
            local_rank: local.local_rank,
            available: devices.len(),
        });
    };
    let name = match kind {
        DeviceKind::Cpu => kind.to_string(),
        _ => format!("{kind}:{index}"),
    };
    kind.require_toolkit(index)?;
    prove(device, &name)?;
    if let Some(unused) = kind.unused(devices.len(), local) {
        tracing::warn!("{unused}");
    }
    Ok((device.clone(), name))
}

/// Checks that a host has the devices for `local_world_size` ranks, before any of them is started: one error in place
/// of one from each rank. Only CUDA devices are counted.
///
/// # Errors
/// [`TrainError::DeviceNotCompiled`], [`TrainError::NoCuda`] with what is missing, or [`TrainError::TooManyRanks`].
pub fn require_devices(
    kind: DeviceKind,
    local_world_size: u32,
    occupancy: Occupancy,
) -> Result<(), TrainError> {
    if kind != DeviceKind::Cuda {
        return Ok(());
    }
    let available = devices(kind)?.len();
    if available == 0 {
        let reason = list::why_no_cuda();
        return Err(TrainError::NoCuda { reason });
    }
    if available < local_world_size as usize && occupancy == Occupancy::Exclusive {
        return Err(TrainError::TooManyRanks { ranks: local_world_size, available });
    }
    kind.require_toolkit(0)
}

impl DeviceKind {
    /// Checks that Burn's kernels for the device can be compiled. Burn itself finds out in the middle of a step, and
    /// panics.
    fn require_toolkit(self, index: usize) -> Result<(), TrainError> {
        let missing = (self == Self::Cuda).then(|| list::why_no_kernels(index as u32));
        match missing.flatten() {
            None => Ok(()),
            Some(reason) => Err(TrainError::NoCuda { reason }),
        }
    }

    /// The index of a rank's device among `devices`; there may be none with that number.
    fn index_of(self, local_rank: u32, devices: usize, occupancy: Occupancy) -> usize {
        match (self, occupancy) {
            // A rank that is shown one device has it, whatever its number: a launcher binds ranks so.
            (Self::Cuda, Occupancy::Exclusive) if devices != 1 => local_rank as usize,
            _ => local_rank as usize % devices.max(1),
        }
    }

    /// The message of a host's first rank if there are more CUDA devices than ranks.
    fn unused(self, devices: usize, local: LocalRank) -> Option<String> {
        let ranks = local.local_world_size;
        let is_said = self == Self::Cuda && local.local_rank == 0;
        (is_said && devices > ranks as usize && !sees_own_devices()).then(|| {
            format!(
                "{ranks} of {devices} CUDA devices of this host are used, one for each rank: start one rank \
                 per device (--nproc gpu), or choose devices with CUDA_VISIBLE_DEVICES"
            )
        })
    }

    /// Why the devices of this kind are not worth choosing unasked, if they are not: there must be a GPU
    /// for each rank with CUDA, and no graphics driver that only computes on the CPU.
    fn lacks(self, devices: &[Device], local: LocalRank, occupancy: Occupancy) -> Option<String> {
        let ranks = local.local_world_size as usize;
        let may_be_fewer = occupancy == Occupancy::Oversubscribed || sees_own_devices();
        match (self, devices) {
            (Self::Cuda, []) => Some(list::why_no_cuda()),
            (Self::Cuda, devices) if devices.len() < ranks && !may_be_fewer => {
                Some(format!("{ranks} ranks on this host, but {} CUDA devices", devices.len()))
            }
            (Self::Cuda, _) => None,
            (_, [first, ..]) if !list::is_software(first) => None,
            _ => Some("no graphics adapter".to_owned()),
        }
    }
}

/// Computes a sum on a device: drivers turn out to be missing or broken on first use, and backends panic then.
fn prove(device: &Device, name: &str) -> Result<(), TrainError> {
    let sum = catch_unwind(AssertUnwindSafe(|| {
        let two = Tensor::<1>::ones([2], device).sum().try_into_data();
        two.map_err(|cause| format!("{cause:?}"))
    }));
    let broken = |cause: String| TrainError::BrokenDevice { device: name.to_owned(), cause };
    match sum {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(cause)) => Err(broken(cause)),
        Err(panic) => Err(broken(panic_message(&*panic).to_owned())),
    }
}

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

/// The devices of each backend; none if it is not part of the build.
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

    #[cfg(feature = "cuda")]
    pub(super) fn why_no_cuda() -> String {
        use bonfire_gpu::Driver;
        let device = Driver::load().and_then(|driver| driver.device(0));
        match device {
            Err(error) => error.to_string(),
            Ok(device) => format!("Burn does not find {}", device.name()),
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn why_no_cuda() -> String {
        unreachable!("a build without CUDA has failed before")
    }

    /// The reason why Burn's kernels cannot be compiled, where they are through CUDA C++.
    #[cfg(feature = "cuda-cpp")]
    pub(super) fn why_no_kernels(ordinal: u32) -> Option<String> {
        use bonfire_gpu::{CudaError, Driver, Nvrtc, Toolkit};
        let check = || -> Result<(), CudaError> {
            let device = Driver::load()?.device(ordinal)?;
            Toolkit::find()?.check(Nvrtc::load()?, device.capability())
        };
        check().err().map(|error| error.to_string())
    }

    #[cfg(not(feature = "cuda-cpp"))]
    pub(super) fn why_no_kernels(_ordinal: u32) -> Option<String> {
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
    use super::*;

    #[test]
    fn ranks_share_cuda_devices_only_where_that_is_asked_for() {
        let of = |kind: DeviceKind, occupancy| {
            (0..5).map(move |rank| kind.index_of(rank, 2, occupancy)).collect::<Vec<_>>()
        };
        assert_eq!(of(DeviceKind::Cuda, Occupancy::Exclusive), [0, 1, 2, 3, 4]);
        assert_eq!(of(DeviceKind::Cuda, Occupancy::Oversubscribed), [0, 1, 0, 1, 0]);
        assert_eq!(of(DeviceKind::Wgpu, Occupancy::Exclusive), [0, 1, 0, 1, 0]);
        let only = |rank| DeviceKind::Cuda.index_of(rank, 1, Occupancy::Exclusive);
        assert_eq!([only(0), only(3)], [0, 0], "bound to its rank");
        let nowhere = DeviceKind::Cuda.index_of(3, 0, Occupancy::Oversubscribed);
        assert_eq!(nowhere, 0, "none has that number");
    }

    #[test]
    fn devices_that_no_rank_uses_are_said_once_per_host() {
        let said = |local_rank, local_world_size, kind: DeviceKind| {
            let local = LocalRank { local_rank, local_world_size };
            kind.unused(4, local)
        };
        let text = said(0, 1, DeviceKind::Cuda).unwrap();
        assert!(text.starts_with("1 of 4 CUDA devices"), "{text}");
        assert_eq!(said(1, 2, DeviceKind::Cuda), None);
        assert_eq!(said(0, 4, DeviceKind::Cuda), None);
        assert_eq!(said(0, 1, DeviceKind::Wgpu), None);
    }

    #[test]
    fn only_cuda_devices_are_counted() {
        for kind in [DeviceKind::Auto, DeviceKind::Cpu, DeviceKind::Wgpu] {
            require_devices(kind, 1000, Occupancy::Exclusive).unwrap();
        }
        let error = require_devices(DeviceKind::Cuda, u32::MAX, Occupancy::Exclusive).unwrap_err();
        match error {
            TrainError::DeviceNotCompiled { kind } => {
                assert_eq!((kind, cfg!(feature = "cuda")), (DeviceKind::Cuda, false));
                let cpu = TrainError::DeviceNotCompiled { kind: DeviceKind::Cpu }.to_string();
                assert!(cpu.contains("the feature `flex`"), "{cpu}");
            }
            TrainError::NoCuda { reason } => assert!(!reason.contains('\n'), "{reason}"),
            TrainError::TooManyRanks { available, .. } => assert!(available > 0),
            other => panic!("{other}"),
        }
    }
}
