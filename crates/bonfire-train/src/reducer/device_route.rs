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

pub(crate) use buckets::DeviceBuckets;
pub(crate) use choice::{Chosen, Ways, choose};
pub(crate) use engine::{Action, Engine, Move, Room, Timing};
