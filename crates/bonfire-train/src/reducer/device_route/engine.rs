//! What is done to buckets on a device.

use std::fmt;
use std::ops::Range;

use bonfire_plan::DType;

use crate::TrainError;
use crate::values::DeviceTensor;

/// Does things to buckets, in the order in which they are queued. Each bucket has memory of its own, and
/// as much again for sums of earlier micro-batches once something is kept there.
pub(crate) trait Engine: Send + fmt::Debug {
    /// When buckets may travel.
    fn timing(&self) -> Timing;

    /// Makes memory for buckets, in place of those before. Every rank calls it alike; it waits for all.
    fn open(&mut self, rooms: &[Room]) -> Result<(), TrainError>;

    /// Queues something. Returns before it is done, but for [`Action::Computed`] and [`Action::Meet`].
    fn queue(&mut self, action: Action) -> Result<(), TrainError>;

    /// Waits until everything queued is done, with a deadline.
    fn settle(&mut self) -> Result<(), TrainError>;

    /// Ends it on all ranks, whatever waits there.
    fn abort(&self, cause: &str);
}

/// When buckets may travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// While the backward pass runs.
    Overlapped,
    /// When the backward passes of all ranks are over.
    Apart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) dtype: DType,
    /// The elements of each slot, in their order. Slots begin at multiples of 16 bytes; what is between
    /// them is zero.
    pub(crate) slots: Vec<Range<usize>>,
}

impl Room {
    pub(crate) fn elems(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.end)
    }
}

/// A tensor's elements and their place in a bucket.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) tensor: DeviceTensor,
    pub(crate) slot: Range<usize>,
}

/// Something to do. Ranges count elements of the bucket.
#[derive(Debug)]
pub(crate) enum Action {
    /// Orders what follows behind everything that the model's backend has queued.
    Behind,
    /// Returns when everything is done that this rank's backend has queued; other ranks are not waited for.
    Computed,
    /// Returns when all ranks have come here, with all that they computed done.
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
