//! Whether one device can reach the memory of another.

use std::fmt;

use cudarc::driver::sys::{self, CUdevice_P2PAttribute, CUresult};

use crate::driver::context::Context;
use crate::driver::device::Device;
use crate::error::{Result, check};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    Same,
    /// Directly; the lower the rank, the faster the link, as the driver sees it.
    Direct {
        performance_rank: u32,
        /// Whether atomics work across it, as over NVLink.
        native_atomics: bool,
    },
    /// Not at all: only through host memory.
    None,
}

impl fmt::Display for PeerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same device"),
            Self::Direct { native_atomics: true, .. } => {
                f.write_str("direct, with atomics (NVLink)")
            }
            Self::Direct { .. } => f.write_str("direct (PCIe)"),
            Self::None => f.write_str(
                "none: not below one PCIe root, or forbidden by the IOMMU or the virtual machine",
            ),
        }
    }
}

/// How `from` reaches the memory of `to`, according to the driver. Believe it only after data went
/// that way and arrived.
pub fn peer_access(from: &Device, to: &Device) -> Result<PeerAccess> {
    if from.raw() == to.raw() {
        return Ok(PeerAccess::Same);
    }
    let mut reachable = 0;
    // SAFETY: `reachable` is a live integer that the call writes; both devices are the driver's.
    check("cuDeviceCanAccessPeer", unsafe {
        sys::cuDeviceCanAccessPeer(&mut reachable, from.raw(), to.raw())
    })?;
    if reachable == 0 {
        return Ok(PeerAccess::None);
    }
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `value` is a live integer that the call writes; both devices are the driver's.
        let result =
            unsafe { sys::cuDeviceGetP2PAttribute(&mut value, attribute, from.raw(), to.raw()) };
        check("cuDeviceGetP2PAttribute", result).map(|()| value)
    };
    let rank = attribute(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?;
    let atomics =
        attribute(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)?;
    Ok(PeerAccess::Direct {
        performance_rank: u32::try_from(rank).unwrap_or(0),
        native_atomics: atomics != 0,
    })
}

impl Context {
    /// Lets work of this context touch memory that was allocated in `peer`.
    ///
    /// # Errors
    /// What the driver says if the devices cannot reach each other.
    pub fn enable_peer(&self, peer: &Self) -> Result<()> {
        if self.is_same(peer) {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both contexts are retained; one is current.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.raw(), 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => check("cuCtxEnablePeerAccess", result),
        }
    }
}
