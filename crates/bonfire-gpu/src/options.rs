//! Options of a group of GPUs. All ranks must give the same.

use std::time::Duration;

use bonfire_kernels::launch::flags::FlagPage;

/// How an all-reduce is done.
///
/// Direct, one-shot, two-shot and chain add in the order of the ranks. For everything but sums, means and products of
/// 16-bit floats they give the same bits; of those, a chain rounds each addition. A ring starts each shard at
/// another rank, and so has bits of its own wherever the order of additions shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaAlgorithm {
    /// One kernel between two barriers: every rank folds its shard of all buffers.
    Direct,
    /// One kernel in which every rank sends all it has to every other; only up to [`CudaOptions::one_shot_bytes_max`].
    OneShot,
    /// Direct in one kernel of few blocks, each of which waits for the same one of its peers; only up to
    /// [`CudaOptions::two_shot_bytes_max`].
    TwoShot,
    /// Neighbour to neighbour, round and round: least bytes on each link.
    Ring,
    /// Neighbour to neighbour, up through the ranks and down again: a third more bytes through a rank than
    /// in a ring of four, but in the order of the ranks.
    Chain,
}

/// How ranks wait for each other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaSync {
    /// In kernels, which take part of the device while they wait: fastest, but not for processes that
    /// share one device, since they run in turns, nor where the driver limits the time of a kernel.
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
#[non_exhaustive]
pub struct CudaOptions {
    /// How long what is queued on a device may wait there for other ranks before it fails on every rank,
    /// whether or not the rank waits for its device. Default 600 s; after 60 s a warning names the missing ranks.
    pub timeout: Duration,
    /// The way that data take; `None` takes the devices' own where every pair of them was seen to
    /// exchange data, and the host's where one does not.
    pub path: Option<CudaPath>,
    /// The algorithm of every all-reduce. With `None`, the default, the ranks measure how fast each of
    /// them reads every other's memory when the group is formed, and choose by that, by size, and by what
    /// [`GroupOptions::order`](bonfire_collective::GroupOptions::order) of the group below allows: one-shot for small
    /// buffers, two-shot for those of middle size, direct for others, and where only neighbours are fast a chain or,
    /// if additions may be done in any order, a ring for large ones.
    /// [`CudaGroup::choice`](crate::CudaGroup::choice) has the figures and the sizes.
    pub algorithm: Option<CudaAlgorithm>,
    /// How ranks wait; `None` takes kernels unless processes share a device, or the driver ends kernels that
    /// take long on the device of any rank, as it does where a display is attached.
    pub sync: Option<CudaSync>,
    /// Larger all-reduces are not one-shots. Default 256 KiB; each rank sets aside four times that for each rank.
    pub one_shot_bytes_max: usize,
    /// Larger all-reduces are not two-shots. Default 8 MiB.
    pub two_shot_bytes_max: usize,
    /// Streams that a ring or a chain runs on beside each other, 1 to 64; fewer where the driver has not as many
    /// queues ([`CudaGroup::ring_channels`](crate::CudaGroup::ring_channels)). Default 4.
    pub ring_channels: u32,
    /// Blocks of a kernel that folds, per multiprocessor. Default 2.
    pub blocks_per_multiprocessor: u32,
}

/// Methods that return the options with one field replaced.
macro_rules! with {
    ($($with:ident: $field:ident: $type:ty,)+) => {
        impl CudaOptions {
            $(
                #[doc = concat!("The same with another [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $with(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

with! {
    with_timeout: timeout: Duration,
    with_path: path: Option<CudaPath>,
    with_algorithm: algorithm: Option<CudaAlgorithm>,
    with_sync: sync: Option<CudaSync>,
    with_one_shot_bytes_max: one_shot_bytes_max: usize,
    with_two_shot_bytes_max: two_shot_bytes_max: usize,
    with_ring_channels: ring_channels: u32,
    with_blocks_per_multiprocessor: blocks_per_multiprocessor: u32,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            path: None,
            algorithm: None,
            sync: None,
            one_shot_bytes_max: 256 << 10,
            two_shot_bytes_max: 8 << 20,
            ring_channels: 4,
            blocks_per_multiprocessor: 2,
        }
    }
}

impl CudaOptions {
    pub(crate) fn lanes(&self) -> u32 {
        // One channel is the main stream's, and one that of two ranks alone.
        self.ring_channels.clamp(1, FlagPage::CHANNELS_MAX - 2)
    }

    /// As text to compare between ranks. The timeout may differ.
    pub(crate) fn agreed(&self) -> String {
        let Self { path, algorithm, sync, ring_channels, .. } = self;
        let (one_shot, two_shot) = (self.one_shot_bytes_max, self.two_shot_bytes_max);
        format!(
            "path {path:?}, algorithm {algorithm:?}, sync {sync:?}, one_shot_bytes_max {one_shot}, \
             two_shot_bytes_max {two_shot}, ring_channels {ring_channels}"
        )
    }
}
