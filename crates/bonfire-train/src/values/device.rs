//! The values of gradients where a device has them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bonfire_plan::DType;

/// A tensor's elements on the device, in row-major order, in a form that its engine knows.
pub(crate) struct DeviceTensor {
    pub dtype: DType,
    pub elems: usize,
    #[cfg_attr(
        not(feature = "cuda"),
        allow(dead_code, reason = "nothing of this build reads it")
    )]
    pub memory: Arc<dyn Any + Send + Sync>,
    /// Keeps others from writing to the memory.
    pub reader: Option<Reader>,
}

/// A guard during whose life a tensor's memory is not written in place.
pub(crate) type Reader = Box<dyn Any + Send + Sync>;

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} x {})", self.dtype, self.elems)
    }
}
