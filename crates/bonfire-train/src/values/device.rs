//! The values of gradients where a device has them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bonfire_plan::DType;

/// A tensor's elements where the device has them, in row-major order, as its engine knows them.
pub(crate) struct DeviceTensor {
    /// The type of the elements.
    pub dtype: DType,
    /// How many there are.
    pub elems: usize,
    /// Of the engine.
    #[cfg_attr(
        not(feature = "cuda"),
        allow(dead_code, reason = "nothing of this build reads it")
    )]
    pub memory: Arc<dyn Any + Send + Sync>,
    /// Keeps others from writing to the memory.
    pub reader: Option<Reader>,
}

/// While it lives nobody writes to a tensor's memory in place.
pub(crate) type Reader = Box<dyn Any + Send + Sync>;

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} x {})", self.dtype, self.elems)
    }
}
