//! Actions on buckets of a device.

use std::fmt;
use std::ops::Range;

use bonfire_collective::{ProcessGroup, Rank, ReduceOp};
use bonfire_plan::DType;

use crate::TrainError;
use crate::values::DeviceTensor;

/// Performs actions on buckets, in the order in which they are queued. Each bucket has its own memory, and as much
/// again for sums of earlier micro-batches once something is kept there.
pub(crate) trait Engine: Send + fmt::Debug {
    fn timing(&self) -> Timing;

    /// Makes memory for buckets, in place of the earlier ones. Every rank calls it alike; it waits for all.
    fn open(&mut self, rooms: &[Room]) -> Result<(), TrainError>;

    /// Makes memory for one more bucket, or in place of that of an earlier one, which waits for all work. Every rank
    /// calls it alike.
    fn open_one(&mut self, bucket: usize, room: &Room) -> Result<(), TrainError>;

    /// Queues an action. Returns before it is done, but for [`Action::Computed`] and [`Action::Meet`].
    fn queue(&mut self, action: Action) -> Result<(), TrainError>;

    /// Waits until everything queued is done, with a deadline.
    fn settle(&mut self) -> Result<(), TrainError>;

    /// Returns the group whose failure ends all waiting operations, on all ranks. It may be detached from others.
    fn group(&self) -> &ProcessGroup;
}

/// The time at which buckets may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// While the backward pass runs. Later work of the backend waits for them on the device, with [`Action::Ahead`].
    Ordered,
    /// While the backward pass runs; then the host waits for them.
    Overlapped,
    /// When all ranks have computed.
    Apart,
}

/// The memory of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) dtype: DType,
    pub(crate) elems: usize,
    /// The elements of each move, at most.
    pub(crate) pieces: Vec<Range<usize>>,
    /// The elements that are [kept](Action::Store) when other buckets have the memory.
    pub(crate) block: Option<Range<usize>>,
    /// What is packed and unpacked, with the operation between.
    pub(crate) uses: Vec<(Table, Operation)>,
}

/// Elements of a tensor, and as many of a bucket.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) tensor: DeviceTensor,
    pub(crate) elems: Range<usize>,
    pub(crate) place: Range<usize>,
}

/// What a launch is for. The list of its moves is written by the host, which waits for the last launch for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Table {
    Gradients,
    Parameters,
}

/// The memory that elements of a bucket are copied from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Bucket,
    /// What was [stored](Action::Store) last; its first element is that of the block.
    Block,
}

/// An operation of ranks on elements of a bucket. Blocks are equally large, one for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Replaces all elements by their reduction over the ranks.
    AllReduce(ReduceOp),
    /// Replaces this rank's block by its reduction over the ranks; the others are undefined.
    ReduceScatter(ReduceOp),
    /// Replaces one rank's elements by their reduction over the ranks; those of the others are undefined.
    Reduce(ReduceOp, Rank),
    /// Gives every rank the elements of one.
    Broadcast(Rank),
    /// Gives every rank the block of each.
    AllGather,
    /// Gives rank r the block r of each: what rank s has for this one is block s of the bucket `output`.
    AllToAll { output: usize },
    /// Sends the elements to a rank, which calls [`Recv`](Self::Recv).
    Send(Rank),
    /// Replaces the elements by what a rank sends.
    Recv(Rank),
    /// Exchanges halves with a rank: the lower one has the first, and both end with both.
    Exchange(Rank),
}

/// An action on a bucket. Ranges count elements of the bucket.
#[derive(Debug)]
pub(crate) enum Action {
    /// Orders later actions behind everything that the model's backend has queued.
    Behind,
    /// Orders everything that the model's backend queues later behind earlier actions.
    Ahead,
    /// Returns when this rank's backend has done all queued work; other ranks are not waited for.
    Computed,
    /// Returns when all ranks have arrived here, with all their computation done.
    Meet,
    /// Copies tensors to a bucket, in one launch.
    Pack { bucket: usize, moves: Vec<Move>, table: Table },
    /// Copies elements to a bucket.
    CopyIn { bucket: usize, from: Move },
    /// Copies elements of a bucket to a tensor.
    CopyOut { bucket: usize, to: Move },
    /// Keeps the bucket's block.
    Store { bucket: usize },
    /// Sets elements to zero.
    Clear { bucket: usize, range: Range<usize> },
    /// Multiplies all elements.
    Scale { bucket: usize, factor: f64 },
    /// Copies elements to the sums of earlier micro-batches.
    Keep { bucket: usize, range: Range<usize> },
    /// Adds elements to those sums.
    KeepMore { bucket: usize, range: Range<usize> },
    /// Copies those sums to the elements.
    Restore { bucket: usize, range: Range<usize> },
    /// Adds those sums to the elements.
    Add { bucket: usize, range: Range<usize> },
    /// Does an operation of all ranks on elements, which are the same on all.
    Run { bucket: usize, elems: Range<usize>, operation: Operation },
    /// Copies elements to tensors, in one launch.
    Unpack { bucket: usize, source: Source, moves: Vec<Move>, table: Table },
}
