//! Actions on buckets of a device.

use std::fmt;
use std::ops::Range;

use bonfire_collective::ProcessGroup;
use bonfire_plan::DType;

use crate::TrainError;
use crate::values::DeviceTensor;

/// Performs actions on buckets, in the order in which they are queued. Each bucket has its own memory, and as much
/// again for sums of earlier micro-batches once something is kept there.
pub(crate) trait Engine: Send + fmt::Debug {
    fn timing(&self) -> Timing;

    /// Makes memory for buckets, in place of the earlier ones. Every rank calls it alike; it waits for all.
    fn open(&mut self, rooms: &[Room]) -> Result<(), TrainError>;

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) dtype: DType,
    /// The elements of each slot, in their order. Slots begin at multiples of 16 bytes; the gaps between them are
    /// zero.
    pub(crate) slots: Vec<Range<usize>>,
}

impl Room {
    pub(crate) fn elems(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.end)
    }
}

#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) tensor: DeviceTensor,
    pub(crate) slot: Range<usize>,
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
    Pack { bucket: usize, moves: Vec<Move> },
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
    /// Replaces all elements by their mean over the ranks.
    Average { bucket: usize },
    /// Copies elements to tensors, in one launch.
    Unpack { bucket: usize, moves: Vec<Move> },
}
