//! The way of gradients that stay on their devices.
//!
//! [`DeviceBuckets`] decides what is done to which bucket and when; an [`Engine`] does it. What is to be
//! done is data, an [`Action`], so that everything here runs without a device: the tests' engine does the
//! same to host memory, and must give the bits of the way through the host.

mod buckets;
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
pub(crate) mod double;
mod engine;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bonfire_plan::DType;

pub(crate) use buckets::DeviceBuckets;
pub(crate) use choice::{Chosen, Ways, choose};
pub(crate) use engine::{Action, Engine, Move, Room, Timing};

/// A tensor's elements where the device has them, in row-major order, as its engine knows them.
pub(crate) struct DeviceTensor {
    pub(crate) dtype: DType,
    pub(crate) elems: usize,
    /// Of the engine.
    pub(crate) memory: Arc<dyn Any + Send + Sync>,
    /// Keeps others from writing to the memory.
    pub(crate) reader: Option<Reader>,
}

/// While it lives nobody writes to a tensor's memory in place.
pub(crate) type Reader = Box<dyn Any + Send + Sync>;

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} x {})", self.dtype, self.elems)
    }
}
