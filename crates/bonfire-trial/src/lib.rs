//! Trials of training on the devices of a machine: whether several ranks learn what one does, and what
//! their synchronisation adds to a step. `bonfire selftest` shows them.
//!
//! Nothing here is random, so that two machines try the same.

#![forbid(unsafe_code)]

mod error;
mod network;
mod pace;
mod parity;
mod place;

pub use bonfire_train::{DeviceKind, GradientRoute, World};
pub use error::TrialError;
pub use network::Size;
pub use pace::{Pace, pace};
pub use parity::{Learnt, Parity, TOLERANCE, compare, learn};
pub use place::{Place, on_threads};
