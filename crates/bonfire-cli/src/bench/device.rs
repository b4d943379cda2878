//! What ranks compute on while they are measured.

use clap::ValueEnum;

/// Where buffers are and who reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceKind {
    /// The cores of the host
    Cpu,
    /// NVIDIA GPUs, one for each rank
    Cuda,
}
