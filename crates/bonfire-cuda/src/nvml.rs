//! NVIDIA's management library, loaded at run time: what connects GPUs, and why they do not reach each
//! other. Only to inform: nothing that moves data depends on it.
//!
//! After NVML's API reference, version 13.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use libloading::Library;

use crate::driver::device::text_of;
use crate::driver::pci::PciAddress;
use crate::error::{CudaError, Result};

const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// More links than any GPU has; the library refuses the first that a GPU lacks.
const LINKS_MAX: c_uint = 36;

/// Longer than any version of a driver.
const VERSION_BYTES: usize = 80;

const SUCCESS: c_int = 0;

type Raw = *mut c_void;

/// Has the layout of `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    text: [c_char; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

type NoArguments = unsafe extern "C" fn() -> c_int;
type GetVersion = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type GetHandle = unsafe extern "C" fn(*const c_char, *mut Raw) -> c_int;
type GetNumber = unsafe extern "C" fn(Raw, *mut c_uint) -> c_int;
type GetOfLink = unsafe extern "C" fn(Raw, c_uint, *mut c_uint) -> c_int;
type GetRemotePci = unsafe extern "C" fn(Raw, c_uint, *mut PciInfo) -> c_int;
type GetOfPair = unsafe extern "C" fn(Raw, Raw, *mut c_uint) -> c_int;
type GetP2p = unsafe extern "C" fn(Raw, Raw, c_uint, *mut c_uint) -> c_int;

#[derive(Debug)]
pub struct Nvml {
    shutdown: NoArguments,
    driver_version: GetVersion,
    handle: GetHandle,
    pcie_generation: GetNumber,
    pcie_width: GetNumber,
    link_state: GetOfLink,
    link_remote_type: GetOfLink,
    link_remote_pci: GetRemotePci,
    common_ancestor: GetOfPair,
    p2p_status: GetP2p,
    _library: Library,
}

#[derive(Clone, Copy, Debug)]
pub struct NvmlDevice<'a> {
    raw: Raw,
    nvml: &'a Nvml,
}

/// The far end of an active NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinkEnd {
    Gpu(PciAddress),
    /// An NVSwitch, through which all GPUs that are on it reach each other.
    Switch,
    Other,
}

/// The PCIe link of a GPU, as it is now: it may be slower while the GPU idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    pub generation: u32,
    pub width: u32,
}

/// What two GPUs have in common, from near to far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommonAncestor {
    Board,
    Switch,
    /// Several PCIe switches, below one host bridge.
    Switches,
    HostBridge,
    /// A NUMA node, with more than one host bridge.
    NumaNode,
    /// Only the system: the way leads from NUMA node to NUMA node.
    System,
}

/// Whether the driver allows a GPU to read another's memory, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum P2pStatus {
    Allowed,
    Chipset,
    /// One of the GPUs cannot do it, or its driver is not licensed to.
    Gpu,
    /// The way between their I/O hubs cannot carry it.
    Topology,
    /// It is turned off in the driver's settings.
    Disabled,
    Unsupported,
    Unknown,
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.width)
    }
}

impl fmt::Display for CommonAncestor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Board => "on one board",
            Self::Switch => "through one PCIe switch",
            Self::Switches => "through several PCIe switches",
            Self::HostBridge => "through a PCIe host bridge",
            Self::NumaNode => "between PCIe host bridges of one NUMA node",
            Self::System => "between NUMA nodes",
        })
    }
}

impl Nvml {
    /// Finds, loads and initialises it; `None` if it is missing or too old.
    ///
    /// # Errors
    /// What it says when it does not start.
    pub fn load() -> Result<Option<Self>> {
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: loading a library runs its initialisers; NVML's are those that every user runs.
            unsafe { Library::new(*name) }.ok()
        });
        let found = library.and_then(|library| {
            let init = symbol::<NoArguments>(&library, "nvmlInit_v2")?;
            Some((init, Self::of(library)?))
        });
        let Some((init, nvml)) = found else {
            return Ok(None);
        };
        // SAFETY: it takes no arguments; the library is held by `nvml`, which is forgotten on failure below.
        if let Err(error) = checked("nvmlInit", unsafe { init() }) {
            // What did not start is not shut down; the library stays loaded.
            std::mem::forget(nvml);
            return Err(error);
        }
        Ok(Some(nvml))
    }

    fn of(library: Library) -> Option<Self> {
        Some(Self {
            shutdown: symbol(&library, "nvmlShutdown")?,
            driver_version: symbol(&library, "nvmlSystemGetDriverVersion")?,
            handle: symbol(&library, "nvmlDeviceGetHandleByPciBusId_v2")?,
            pcie_generation: symbol(&library, "nvmlDeviceGetCurrPcieLinkGeneration")?,
            pcie_width: symbol(&library, "nvmlDeviceGetCurrPcieLinkWidth")?,
            link_state: symbol(&library, "nvmlDeviceGetNvLinkState")?,
            link_remote_type: symbol(&library, "nvmlDeviceGetNvLinkRemoteDeviceType")?,
            link_remote_pci: symbol(&library, "nvmlDeviceGetNvLinkRemotePciInfo_v2")?,
            common_ancestor: symbol(&library, "nvmlDeviceGetTopologyCommonAncestor")?,
            p2p_status: symbol(&library, "nvmlDeviceGetP2PStatus")?,
            _library: library,
        })
    }

    /// The release of the driver, such as 580.65.06.
    pub fn driver_release(&self) -> Result<String> {
        let mut text = [0_u8; VERSION_BYTES];
        // SAFETY: the call writes at most VERSION_BYTES bytes with the NUL; the buffer has that many.
        let result =
            unsafe { (self.driver_version)(text.as_mut_ptr().cast(), VERSION_BYTES as c_uint) };
        checked("nvmlSystemGetDriverVersion", result)?;
        Ok(text_of(&text))
    }

    /// The GPU at this address.
    ///
    /// # Errors
    /// NVML's error if no GPU has this address.
    pub fn device(&self, address: PciAddress) -> Result<NvmlDevice<'_>> {
        let text = CString::new(address.to_string()).expect("an address has no NUL");
        let mut raw = ptr::null_mut();
        // SAFETY: the text ends in NUL; `raw` is a live pointer that the call writes.
        let result = unsafe { (self.handle)(text.as_ptr(), &mut raw) };
        checked("nvmlDeviceGetHandleByPciBusId", result)?;
        Ok(NvmlDevice { raw, nvml: self })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was initialised once, and every device borrows `self`, so none is left.
        let _ = unsafe { (self.shutdown)() };
    }
}

impl NvmlDevice<'_> {
    /// Its active NVLinks; none where it has no NVLink.
    pub fn nv_links(self) -> Vec<NvLinkEnd> {
        const GPU: c_uint = 0;
        const SWITCH: c_uint = 2;
        let mut ends = Vec::new();
        for link in 0..LINKS_MAX {
            let Some(state) = self.of_link(self.nvml.link_state, link) else {
                break;
            };
            if state == 0 {
                continue;
            }
            ends.push(match self.of_link(self.nvml.link_remote_type, link) {
                Some(SWITCH) => NvLinkEnd::Switch,
                Some(GPU) => self.remote(link).map_or(NvLinkEnd::Other, NvLinkEnd::Gpu),
                _ => NvLinkEnd::Other,
            });
        }
        ends
    }

    fn of_link(self, function: GetOfLink, link: c_uint) -> Option<c_uint> {
        let mut value = 0;
        // SAFETY: the handle is valid while the library is initialised, which the borrow sees to; `value`
        // is a live integer that the call writes. A link that the GPU lacks is an error.
        let result = unsafe { function(self.raw, link, &mut value) };
        (result == SUCCESS).then_some(value)
    }

    fn remote(self, link: c_uint) -> Option<PciAddress> {
        let mut info = PciInfo {
            legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            device_id: 0,
            subsystem_id: 0,
            text: [0; 32],
        };
        // SAFETY: as in `of_link`; `info` is a live struct of the layout that nvml.h states.
        let result = unsafe { (self.nvml.link_remote_pci)(self.raw, link, &mut info) };
        (result == SUCCESS).then_some(PciAddress {
            domain: info.domain,
            bus: info.bus,
            device: info.device,
        })
    }

    /// Its PCIe link; `None` where it has none.
    pub fn pcie(self) -> Option<PcieLink> {
        let number = |function: GetNumber| {
            let mut value = 0;
            // SAFETY: as in `of_link`.
            let result = unsafe { function(self.raw, &mut value) };
            (result == SUCCESS).then_some(value)
        };
        Some(PcieLink {
            generation: number(self.nvml.pcie_generation)?,
            width: number(self.nvml.pcie_width)?,
        })
    }

    /// What it has in common with another GPU; `None` where that is unknown, as in some virtual machines.
    pub fn common_ancestor(self, other: Self) -> Option<CommonAncestor> {
        let mut level = 0;
        // SAFETY: both handles are valid, as in `of_link`; `level` is a live integer that the call writes.
        let result = unsafe { (self.nvml.common_ancestor)(self.raw, other.raw, &mut level) };
        match level {
            _ if result != SUCCESS => None,
            0 => Some(CommonAncestor::Board),
            10 => Some(CommonAncestor::Switch),
            20 => Some(CommonAncestor::Switches),
            30 => Some(CommonAncestor::HostBridge),
            40 => Some(CommonAncestor::NumaNode),
            50 => Some(CommonAncestor::System),
            _ => None,
        }
    }

    /// Whether it may read the memory of another GPU.
    pub fn p2p_status(self, other: Self) -> Result<P2pStatus> {
        const READ: c_uint = 0;
        let mut status = 0;
        // SAFETY: both handles are valid, as in `of_link`; `status` is a live integer that the call writes.
        let result = unsafe { (self.nvml.p2p_status)(self.raw, other.raw, READ, &mut status) };
        checked("nvmlDeviceGetP2PStatus", result)?;
        Ok(match status {
            0 => P2pStatus::Allowed,
            1 => P2pStatus::Chipset,
            2 => P2pStatus::Gpu,
            3 => P2pStatus::Topology,
            4 => P2pStatus::Disabled,
            5 => P2pStatus::Unsupported,
            _ => P2pStatus::Unknown,
        })
    }
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: every use names a function of nvml.h with its type there.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.ok().map(|function| *function)
}

fn checked(call: &'static str, result: c_int) -> Result<()> {
    if result == SUCCESS {
        return Ok(());
    }
    let description = match result {
        9 => "the kernel module of the driver is not loaded: run nvidia-smi",
        18 => {
            "library and kernel module are of different releases: restart the machine after an update"
        }
        _ => "nvmlReturn_t in NVIDIA's reference says what it means",
    };
    Err(CudaError::Call {
        call,
        name: format!("nvmlReturn {result}"),
        description: description.to_owned(),
        code: u32::try_from(result).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_absence_is_no_error() {
        match Nvml::load() {
            Ok(None) => {}
            Ok(Some(nvml)) => println!("skipped: driver {:?} is there", nvml.driver_release()),
            Err(error) => println!("skipped: it is there and does not start: {error}"),
        }
    }
}
