//! The route of gradients that stay on their devices.
//!
//! [`DeviceBuckets`] decides on actions for buckets; an [`Engine`] performs them. An [`Action`] is data, so that
//! everything here runs without a device: the tests' engine acts on host memory, and must have the bits of the route
//! through the host.

mod buckets;
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod engine;
#[cfg(test)]
mod tests;
pub(crate) mod transfer;

pub(crate) use buckets::DeviceBuckets;
pub(crate) use choice::{Chosen, Fate, Ways, choose, over_devices};
pub(crate) use engine::{Action, Engine, Move, Operation, Room, Source, Table, Timing};
#[cfg(test)]
pub(crate) use tests::double;
