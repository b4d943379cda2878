//! Asks the driver, and the management library where it is found.

use std::fs;

use bonfire_gpu::nccl::Nccl;
use bonfire_gpu::nvml::{CommonAncestor, NvLinkEnd, Nvml, NvmlDevice, P2pStatus};
use bonfire_gpu::{
    ComputeCapability, Context, CudaError, CudaVersion, Device, Driver, Nvrtc, PciAddress,
    PeerAccess, Toolkit, peer_access,
};

use super::{Access, Found, Gpu, Gpus, Library, Memory, Pair, Refusal, Route, Version};

pub(crate) fn gpus() -> Gpus {
    match found() {
        Ok(found) => Gpus::Found(Box::new(found)),
        Err(error) => Gpus::Missing { reason: error.to_string() },
    }
}

fn found() -> Result<Found, CudaError> {
    let driver = Driver::load()?;
    // Names the first device that there should be, if there is none.
    driver.device(0)?;
    let devices = driver.devices()?;
    let (nvml, nvml_state) = match Nvml::load() {
        Ok(Some(nvml)) => (Some(nvml), None),
        Ok(None) => (None, Some("libnvidia-ml.so.1 is not in the library path".to_owned())),
        Err(error) => (None, Some(error.to_string())),
    };
    let release = nvml.as_ref().and_then(|nvml| nvml.driver_release().ok());
    let handles: Vec<Option<NvmlDevice<'_>>> =
        devices.iter().map(|device| nvml.as_ref()?.device(address(device)?).ok()).collect();
    let gpus = devices.iter().zip(&handles).map(|(d, h)| gpu(d, *h)).collect();
    let mut pairs = Vec::new();
    for from in devices.iter().zip(&handles) {
        for to in devices.iter().zip(&handles).filter(|to| to.0 != from.0) {
            pairs.push(pair(from.0, *from.1, to.0, *to.1)?);
        }
    }
    Ok(Found {
        cuda: version(driver.version()),
        nvml: match nvml_state {
            Some(reason) => Library::Missing(reason),
            None => Library::Version(release.clone().unwrap_or_default()),
        },
        driver_release: release,
        nvrtc: match Nvrtc::load() {
            Ok(nvrtc) => Library::Version(nvrtc.version().to_string()),
            Err(error) => Library::Missing(error.to_string()),
        },
        toolkit: toolkit(&devices),
        nccl: nccl(),
        gpus,
        pairs,
    })
}

fn version(version: CudaVersion) -> Version {
    Version { major: version.major, minor: version.minor }
}

/// Whether Burn's kernels find the headers that they include, for every device.
fn toolkit(devices: &[Device]) -> Library {
    let check = || -> Result<Toolkit, CudaError> {
        let toolkit = Toolkit::find()?;
        let nvrtc = Nvrtc::load()?;
        let mut kinds: Vec<ComputeCapability> = devices.iter().map(Device::capability).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for capability in kinds {
            toolkit.check(nvrtc, capability)?;
        }
        Ok(toolkit)
    };
    match check() {
        Ok(toolkit) => Library::Version(toolkit.root().display().to_string()),
        Err(error) => Library::Missing(error.to_string()),
    }
}

fn nccl() -> Library {
    match Nccl::load().map(|nccl| nccl.version()) {
        // 23007 is 2.30.7.
        Ok(number) => {
            Library::Version(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
        }
        Err(error) => Library::Missing(error.to_string()),
    }
}

fn address(device: &Device) -> Option<PciAddress> {
    device.pci().parse().ok()
}

fn gpu(device: &Device, handle: Option<NvmlDevice<'_>>) -> Gpu {
    let info = Context::retain(device).and_then(|context| context.memory_info());
    let capability = device.capability();
    Gpu {
        ordinal: device.ordinal(),
        name: device.name().to_owned(),
        uuid: device.uuid_text(),
        pci: device.pci().to_owned(),
        compute_capability: Version { major: capability.major, minor: capability.minor },
        multiprocessors: device.multiprocessors(),
        limits_kernel_time: device.limits_kernel_time(),
        memory_bytes: device.memory_bytes(),
        memory: match info {
            Ok(info) => Memory::FreeBytes(info.free),
            Err(error) => Memory::Unusable(error.to_string()),
        },
        pcie: handle.and_then(NvmlDevice::pcie).map(|link| link.to_string()),
        nv_links: handle.map(|handle| handle.nv_links().len()),
        numa_node: address(device).and_then(numa_node),
    }
}

/// The NUMA node that a device is on; `None` where there is only one.
fn numa_node(address: PciAddress) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{address}/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn pair(
    from: &Device,
    from_nvml: Option<NvmlDevice<'_>>,
    to: &Device,
    to_nvml: Option<NvmlDevice<'_>>,
) -> Result<Pair, CudaError> {
    let access = peer_access(from, to)?;
    let handles = from_nvml.zip(to_nvml);
    let wires = handles.map(|(a, b)| Wires {
        from: a.nv_links(),
        to: b.nv_links(),
        to_address: address(to),
        ancestor: a.common_ancestor(b),
    });
    Ok(Pair {
        from: from.ordinal(),
        to: to.ordinal(),
        link: link(wires.as_ref(), access),
        access: match access {
            PeerAccess::Same | PeerAccess::Direct { .. } => Access::Direct,
            PeerAccess::None => Access::Refused(match handles {
                Some((a, b)) => refusal(a.p2p_status(b).unwrap_or(P2pStatus::Unknown)),
                None => Refusal::NobodyToAsk,
            }),
        },
    })
}

/// Why, in the management library's words. "No obstacle known" is not a reason either.
fn refusal(status: P2pStatus) -> Refusal {
    match status {
        P2pStatus::Chipset => Refusal::Chipset,
        P2pStatus::Gpu => Refusal::Gpu,
        P2pStatus::Topology => Refusal::Topology,
        P2pStatus::Disabled => Refusal::Disabled,
        P2pStatus::Unsupported => Refusal::Unsupported,
        P2pStatus::Allowed | P2pStatus::Unknown => Refusal::Unknown,
    }
}

/// What the management library knows of the way between two GPUs.
#[derive(Clone, Debug)]
struct Wires {
    from: Vec<NvLinkEnd>,
    to: Vec<NvLinkEnd>,
    to_address: Option<PciAddress>,
    ancestor: Option<CommonAncestor>,
}

/// The fastest link that both have and the driver lets them use.
fn link(wires: Option<&Wires>, access: PeerAccess) -> Route {
    let way = wires.and_then(|wires| wires.ancestor.map(|ancestor| ancestor.to_string()));
    let PeerAccess::Direct { native_atomics, .. } = access else {
        return Route::Host(way);
    };
    if let Some(wires) = wires {
        let to_it = |end: &&NvLinkEnd| match end {
            NvLinkEnd::Gpu(address) => Some(*address) == wires.to_address,
            NvLinkEnd::Switch | NvLinkEnd::Other => false,
        };
        let direct = wires.from.iter().filter(to_it).count();
        if direct > 0 {
            return Route::NvLink(Some(direct));
        }
        let switched = |ends: &[NvLinkEnd]| {
            let to_switch = ends.iter().filter(|end| **end == NvLinkEnd::Switch);
            to_switch.count()
        };
        let (ours, theirs) = (switched(&wires.from), switched(&wires.to));
        if ours > 0 && theirs > 0 {
            return Route::NvSwitch(ours);
        }
        return Route::Pcie(way);
    }
    // Atomics work across NVLink and not across PCIe; how many links there are is not known.
    if native_atomics {
        return Route::NvLink(None);
    }
    Route::Pcie(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: PciAddress = PciAddress { domain: 0, bus: 1, device: 0 };
    const ELSEWHERE: PciAddress = PciAddress { bus: 2, ..HERE };
    const DIRECT: PeerAccess = PeerAccess::Direct { performance_rank: 0, native_atomics: true };

    fn wires(from: &[NvLinkEnd], to: &[NvLinkEnd]) -> Wires {
        Wires {
            from: from.to_vec(),
            to: to.to_vec(),
            to_address: Some(HERE),
            ancestor: Some(CommonAncestor::HostBridge),
        }
    }

    #[test]
    fn nv_links_count_where_they_lead() {
        use NvLinkEnd::{Gpu, Switch};
        let both = [Gpu(HERE), Gpu(HERE), Gpu(ELSEWHERE)];
        let found = link(Some(&wires(&both, &both)), DIRECT);
        assert_eq!(found, Route::NvLink(Some(2)));
        let switched = wires(&[Switch, Switch], &[Switch, Switch]);
        assert_eq!(link(Some(&switched), DIRECT), Route::NvSwitch(2));
        let half = wires(&[Switch], &[]);
        assert!(matches!(link(Some(&half), DIRECT), Route::Pcie(Some(_))));
    }

    #[test]
    fn without_access_data_go_through_the_host_whatever_the_wires() {
        let wired = wires(&[NvLinkEnd::Gpu(HERE)], &[NvLinkEnd::Gpu(ELSEWHERE)]);
        let found = link(Some(&wired), PeerAccess::None);
        assert!(matches!(found, Route::Host(Some(_))), "{found}");
        assert_eq!(link(None, PeerAccess::None), Route::Host(None));
    }

    #[test]
    fn a_driver_that_is_missing_is_one_line() {
        match gpus() {
            Gpus::Missing { reason } => {
                assert!(!reason.contains('\n'), "{reason}");
                assert!(reason.contains("no CUDA"), "{reason}");
            }
            Gpus::Found(found) => println!("skipped: there are {} GPUs", found.gpus.len()),
        }
    }
}
