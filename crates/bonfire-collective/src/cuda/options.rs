//! What a group of GPUs can be told at set-up. All ranks must be told the same.

use std::time::Duration;

/// How an all-reduce is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaAlgorithm {
    /// One kernel between two barriers.
    Direct,
    /// One kernel that waits for its peers; only up to [`CudaOptions::one_shot_bytes_max`].
    OneShot,
    /// Neighbour to neighbour.
    Ring,
}

/// How ranks wait for each other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaSync {
    /// In kernels, which take part of the device while they wait: fastest, but not for processes that
    /// share one device, since they run in turns.
    Kernel,
    /// In the streams, which take nothing of it.
    Stream,
}

/// The way that the data of a group take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaPath {
    /// From device to device: kernels read and write the memory of all ranks.
    Peer,
    /// Through host memory, where the group on the CPU does the operation.
    Host,
}

/// Options of a group of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// How long a rank waits for the device to finish before the operation fails on every rank.
    /// Default 60 s.
    pub timeout: Duration,
    /// The way that data take; `None` takes the devices' own where every pair of them was seen to
    /// exchange data, and the host's where one does not.
    pub path: Option<CudaPath>,
    /// The algorithm of every all-reduce; `None` lets Bonfire choose by size.
    pub algorithm: Option<CudaAlgorithm>,
    /// How ranks wait; `None` takes kernels unless processes share a device.
    pub sync: Option<CudaSync>,
    /// Larger all-reduces are direct. Default 256 KiB; a staging buffer of twice that is set aside.
    pub one_shot_bytes_max: usize,
    /// Streams that a ring runs on beside each other, 1 to 64. Default 4.
    pub ring_channels: u32,
    /// Blocks of a kernel that folds, per multiprocessor. Default 2.
    pub blocks_per_multiprocessor: u32,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            path: None,
            algorithm: None,
            sync: None,
            one_shot_bytes_max: 256 << 10,
            ring_channels: 4,
            blocks_per_multiprocessor: 2,
        }
    }
}

impl CudaOptions {
    /// As text to compare between ranks. The timeout may differ.
    pub(super) fn agreed(&self) -> String {
        format!(
            "path {:?}, algorithm {:?}, sync {:?}, one_shot_bytes_max {}, ring_channels {}",
            self.path, self.algorithm, self.sync, self.one_shot_bytes_max, self.ring_channels
        )
    }
}
