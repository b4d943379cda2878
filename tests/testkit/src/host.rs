//! Parts of a host that a test makes for itself, where its user may.

mod disk;
mod network;

pub use disk::SmallDisk;
pub use network::{Network, Shape, Unavailable};
