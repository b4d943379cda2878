//! One GPU: what it is and what it can do.

use std::env;
use std::ffi::CStr;
use std::fmt;

use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as DESCRIPTORS,
    CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT as TIMEOUT,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as MAPPINGS,
};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use crate::error::{Result, check};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    raw: CUdevice,
    ordinal: u32,
    name: String,
    uuid: [u8; 16],
    pci: String,
    memory_bytes: usize,
    capability: ComputeCapability,
    multiprocessors: u32,
    limits_kernel_time: bool,
    gives_descriptors: bool,
    connections: u32,
}

/// Longer than any name or PCI address.
const TEXT_BYTES: usize = 256;

/// The variable that says how many queues there are: read by the driver when it is loaded.
pub const CONNECTIONS_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The queues that there are for a value of [`CONNECTIONS_VARIABLE`], after the CUDA C++ Programming Guide: 1 to 32, and 8
/// where it says nothing.
fn connections(value: Option<&str>) -> u32 {
    const DEFAULT: u32 = 8;
    const MAX: u32 = 32;
    let value = value.and_then(|value| value.trim().parse().ok());
    value.unwrap_or(DEFAULT).clamp(1, MAX)
}

impl Device {
    /// The device must exist: `ordinal` is below the count that the driver gave.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: `raw` is a live integer that the call writes; the driver is initialised.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut raw, ordinal.cast_signed()) })?;
        let mut memory_bytes = 0;
        // SAFETY: `memory_bytes` is a live integer that the call writes; `raw` is a device.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory_bytes, raw) })?;
        let capability =
            ComputeCapability { major: attribute(raw, MAJOR)?, minor: attribute(raw, MINOR)? };
        Ok(Self {
            raw,
            ordinal,
            name: name(raw)?,
            uuid: uuid(raw)?,
            pci: pci(raw)?,
            memory_bytes,
            capability,
            multiprocessors: attribute(raw, MULTIPROCESSORS)?,
            limits_kernel_time: attribute(raw, TIMEOUT)? != 0,
            gives_descriptors: attribute(raw, MAPPINGS)? != 0 && attribute(raw, DESCRIPTORS)? != 0,
            connections: connections(env::var(CONNECTIONS_VARIABLE).ok().as_deref()),
        })
    }

    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which device it is, on any machine and in every process.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The UUID as nvidia-smi prints it.
    pub fn uuid_text(&self) -> String {
        let mut text = String::from("GPU-");
        for (index, byte) in self.uuid.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }

    pub fn pci(&self) -> &str {
        &self.pci
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub fn capability(&self) -> ComputeCapability {
        self.capability
    }

    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Whether the driver ends kernels that take long, after some seconds, and the context with them: as it
    /// does where the device drives a display.
    pub fn limits_kernel_time(&self) -> bool {
        self.limits_kernel_time
    }

    /// The queues that the streams of this process have on the device. Streams that share one wait for each
    /// other's work, whatever the program says.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Whether its memory can be given to other processes by a descriptor of an open file.
    pub fn gives_descriptors(&self) -> bool {
        self.gives_descriptors
    }

    pub(crate) fn raw(&self) -> CUdevice {
        self.raw
    }
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` is a live integer that the call writes; `device` came from cuDeviceGet.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&mut value, attribute, device)
    })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn name(device: CUdevice) -> Result<String> {
    let mut text = [0; TEXT_BYTES];
    // SAFETY: the call writes at most TEXT_BYTES bytes with the NUL; the buffer has that many.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(text.as_mut_ptr().cast(), TEXT_BYTES as i32, device)
    })?;
    Ok(text_of(&text))
}

fn pci(device: CUdevice) -> Result<String> {
    let mut text = [0; TEXT_BYTES];
    // SAFETY: the call writes at most TEXT_BYTES bytes with the NUL; the buffer has that many.
    check("cuDeviceGetPCIBusId", unsafe {
        sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), TEXT_BYTES as i32, device)
    })?;
    Ok(text_of(&text))
}

fn uuid(device: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` is a live struct of 16 bytes that the call writes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) })?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

pub(crate) fn text_of(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::connections;

    #[test]
    fn there_are_as_many_queues_as_the_driver_makes_of_the_variable() {
        for (value, queues) in [
            (None, 8),
            (Some("many"), 8),
            (Some("-1"), 8),
            (Some("0"), 1),
            (Some(" 12 "), 12),
            (Some("32"), 32),
            (Some("100"), 32),
        ] {
            assert_eq!(connections(value), queues, "{value:?}");
        }
    }
}
