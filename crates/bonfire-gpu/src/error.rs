//! What can go wrong with a group of GPUs.

use bonfire_cuda::CudaError;
use bonfire_kernels::launch::flags::RANKS_MAX;
use bonfire_plan::{DType, PlanError, Rank, ReduceOp};

use bonfire_collective::CollectiveError;

/// An operation of a group of GPUs failed.
///
/// All but [`Usage`](Self::Usage), [`TooSmall`](Self::TooSmall), [`NotAValue`](Self::NotAValue) and
/// [`NotInNccl`](Self::NotInNccl) end the group on every rank.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaGroupError {
    /// The group below it failed, or a peer did.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// This rank's device or driver refused something.
    #[error("rank {rank}: {source}")]
    Device {
        /// The rank that returns this error.
        rank: Rank,
        /// The error of the CUDA driver or of NCCL.
        source: CudaError,
    },
    /// The device did not finish in time.
    #[error(
        "rank {rank} waited {elapsed_ms} ms for {}: {} never got there, or is slower than the timeout \
         (CudaOptions::timeout)",
        operation,
        ranks(waited_for)
    )]
    Timeout {
        /// The rank whose time ran out.
        rank: Rank,
        /// The ranks that had not arrived; empty if all had, and a device is merely slow.
        waited_for: Vec<Rank>,
        /// The last operation that was queued.
        operation: String,
        /// The time that it waited, in milliseconds.
        elapsed_ms: u64,
    },
    /// A rank cannot set up.
    #[error("rank {rank} cannot take part: {reason}")]
    SetUp {
        /// The rank that refused, or that has left the group.
        rank: Rank,
        /// The obstacle on that rank, as text.
        reason: String,
    },
    /// More ranks than a kernel takes.
    #[error("{world_size} ranks, but a group of GPUs has at most {RANKS_MAX}: split the group")]
    TooManyRanks {
        /// The number of ranks in the group.
        world_size: usize,
    },
    /// The elements are not all in the buffer.
    #[error(
        "elements {start}..{end} of {dtype_bytes} bytes each are not in a buffer of {bytes} bytes"
    )]
    TooSmall {
        /// The index of the first element in the buffer.
        start: usize,
        /// One past the last element.
        end: usize,
        /// The size of one element in bytes.
        dtype_bytes: usize,
        /// The size of the buffer in bytes.
        bytes: usize,
    },
    /// NCCL has no such reduction. The group continues.
    #[error("NCCL has no {reduce} of {dtype}: cast before, or use a CudaGroup, which has it")]
    NotInNccl {
        /// The type of the elements that were to be reduced.
        dtype: DType,
        /// The reduction, which may exist for other types.
        reduce: ReduceOp,
    },
    /// The memory holds something else than was read from it.
    #[error("element {index} is not a value of its type: what was written there?")]
    NotAValue {
        /// The index of the element, from the first that was read.
        index: usize,
    },
    /// The caller asked for something that no rank can do. The group continues.
    #[error(transparent)]
    Usage(#[from] PlanError),
}

/// The result of an operation of a group of GPUs.
pub type Result<T, E = CudaGroupError> = std::result::Result<T, E>;

pub(crate) fn ranks(ranks: &[Rank]) -> String {
    if ranks.is_empty() {
        return "the device".to_owned();
    }
    let numbers: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    numbers.join(", ")
}
