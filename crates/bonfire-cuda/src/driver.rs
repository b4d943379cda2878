//! The driver itself: whether it is there, and how old it is.

pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod pci;
pub(crate) mod peer;
#[cfg(test)]
mod tests;

use cudarc::driver::sys::{self, CUresult};

use crate::error::version::CudaVersion;
use crate::error::{CudaError, Result, check, describe};
use device::Device;

/// The oldest driver whose functions are all there (those of the bindings for timing events).
const OLDEST: CudaVersion = CudaVersion { major: 12, minor: 0 };

/// Proof that the driver is loaded and initialised in this process.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: CudaVersion,
}

impl Driver {
    /// Loads and initialises the driver; calling it again costs next to nothing.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] if it is missing or does not start, and [`CudaError::DriverTooOld`].
    pub fn load() -> Result<Self> {
        // SAFETY: loading a library runs its initialisers; libcuda's are those of NVIDIA's driver,
        // which every CUDA program runs, at any time and on any thread.
        if !unsafe { sys::is_culib_present() } {
            let reason = "the library libcuda.so is not found".to_owned();
            return Err(CudaError::NoDriver { reason });
        }
        // SAFETY: cuInit takes no pointers and may be called by any thread, any number of times.
        let result = unsafe { sys::cuInit(0) };
        if result != CUresult::CUDA_SUCCESS {
            let reason = format!("cuInit says {result:?} ({})", describe(result));
            return Err(CudaError::NoDriver { reason });
        }
        let mut number = 0;
        // SAFETY: `number` is a live integer that the call writes before it returns.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut number) })?;
        let version = CudaVersion::from_number(number);
        if version < OLDEST {
            return Err(CudaError::DriverTooOld { found: version, needed: OLDEST });
        }
        Ok(Self { version })
    }

    pub fn version(self) -> CudaVersion {
        self.version
    }

    /// The devices that this process may use, in the order of CUDA_VISIBLE_DEVICES.
    pub fn devices(self) -> Result<Vec<Device>> {
        (0..self.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The device with this number.
    ///
    /// # Errors
    /// [`CudaError::NoDevice`] if no device has it.
    pub fn device(self, ordinal: u32) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        Device::open(ordinal)
    }

    fn device_count(self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: `count` is a live integer that the call writes; the driver is initialised.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}
