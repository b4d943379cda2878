//! Buckets of gradients that stay on their devices.

use std::mem;
use std::ops::Range;

use bonfire_plan::buckets::{Assignment, Extent};

use super::{Action, Engine, Move, Room, Timing};
use crate::TrainError;
use crate::reducer::timing::Stopwatch;
use crate::values::Scale;
use crate::values::{DeviceTensor, Reader};

const ALIGN_BYTES: usize = 16;

/// The buckets of a model, in the memory of an engine.
#[derive(Debug)]
pub(crate) struct DeviceBuckets {
    engine: Box<dyn Engine>,
    buckets: Vec<Bucket>,
    /// Complete buckets that are sent when the backward pass is over; with their factors.
    held: Vec<(usize, f64)>,
    readers: Vec<Reader>,
    /// True if operations may still run on the device.
    busy: bool,
    /// True if these are all operations of a pass, which every rank queues.
    is_complete: bool,
}

#[derive(Debug)]
struct Bucket {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    range: Range<usize>,
    gradient: Option<DeviceTensor>,
    /// True if earlier micro-batches have left a sum for it.
    kept: bool,
}

/// The treatment of a slot that is not filled from a tensor alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mend {
    Clear,
    Restore,
    Add,
    Keep,
    KeepMore,
}

impl DeviceBuckets {
    /// Makes no buckets yet: parameters are [assigned](Self::assign) next.
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        Self {
            engine,
            buckets: Vec::new(),
            held: Vec::new(),
            readers: Vec::new(),
            busy: false,
            is_complete: false,
        }
    }

    /// Assigns the parameters, between two steps, and makes memory for all buckets. Every rank calls it alike.
    pub(crate) fn assign(
        &mut self,
        assignments: &[Assignment],
        extents: &[Extent],
    ) -> Result<(), TrainError> {
        self.rest()?;
        let rooms: Vec<Room> = assignments.iter().map(|a| room(a, extents)).collect();
        self.engine.open(&rooms)?;
        self.buckets = rooms
            .into_iter()
            .map(|room| Bucket {
                slots: room
                    .slots
                    .into_iter()
                    .map(|range| Slot { range, gradient: None, kept: false })
                    .collect(),
            })
            .collect();
        Ok(())
    }

    pub(crate) fn reopen(&mut self) -> Result<(), TrainError> {
        self.rest()?;
        self.is_complete = false;
        self.held.clear();
        let slots = self.buckets.iter_mut().flat_map(|bucket| &mut bucket.slots);
        slots.for_each(|slot| slot.gradient = None);
        Ok(())
    }

    /// Waits for a pass that only the device waits for; for nothing if a pass is not complete.
    pub(crate) fn wait(&mut self) -> Result<(), TrainError> {
        if self.is_complete { self.rest() } else { Ok(()) }
    }

    /// Waits for work of an earlier pass on the device: its memory is used again.
    fn rest(&mut self) -> Result<(), TrainError> {
        if self.busy {
            self.engine.settle()?;
            self.busy = false;
        }
        self.readers.clear();
        Ok(())
    }

    /// Takes the gradient of a slot, or marks it as missing. Returns true if there is one, from this or an earlier
    /// micro-batch.
    pub(crate) fn put(
        &mut self,
        index: usize,
        slot: usize,
        gradient: Option<DeviceTensor>,
    ) -> bool {
        let slot = &mut self.buckets[index].slots[slot];
        let present = gradient.is_some() || slot.kept;
        slot.fill(gradient);
        present
    }

    /// Sends a bucket whose slots have all been put.
    pub(crate) fn send(
        &mut self,
        index: usize,
        scale: Scale,
        factor: f64,
    ) -> Result<(), TrainError> {
        if self.engine.timing() == Timing::Apart {
            self.held.push((index, factor));
            return Ok(());
        }
        self.busy = true;
        self.engine.queue(Action::Behind)?;
        self.average(index, scale, factor)
    }

    /// Queues the average of a bucket, behind everything that its memory waits for.
    fn average(&mut self, index: usize, scale: Scale, factor: f64) -> Result<(), TrainError> {
        let mends = self.buckets[index].mends(|present, kept| match (present, kept) {
            (true, false) => None,
            (true, true) => Some(Mend::Add),
            (false, true) => Some(Mend::Restore),
            (false, false) => Some(Mend::Clear),
        });
        self.pack(index, scale)?;
        self.mend(index, mends)?;
        if factor != 1.0 {
            let bucket = index;
            self.engine.queue(Action::Scale { bucket, factor })?;
        }
        self.engine.queue(Action::Average { bucket: index })
    }

    fn pack(&mut self, index: usize, scale: Scale) -> Result<(), TrainError> {
        let mut moves = Vec::new();
        for slot in &mut self.buckets[index].slots {
            if let Some(mut tensor) = slot.gradient.take() {
                self.readers.extend(tensor.reader.take());
                let slot = slot.range.clone();
                moves.push(Move { tensor, slot });
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        let bucket = index;
        self.engine.queue(Action::Pack { bucket, moves })?;
        match scale {
            Scale::One => Ok(()),
            Scale::By(factor) => self.engine.queue(Action::Scale { bucket, factor }),
        }
    }

    fn mend(&mut self, bucket: usize, mends: Vec<(Mend, Range<usize>)>) -> Result<(), TrainError> {
        for (mend, range) in mends {
            self.engine.queue(match mend {
                Mend::Clear => Action::Clear { bucket, range },
                Mend::Restore => Action::Restore { bucket, range },
                Mend::Add => Action::Add { bucket, range },
                Mend::Keep => Action::Keep { bucket, range },
                Mend::KeepMore => Action::KeepMore { bucket, range },
            })?;
        }
        Ok(())
    }

    pub(crate) fn accumulate(&mut self, index: usize, slot: usize, gradient: DeviceTensor) {
        self.buckets[index].slots[slot].fill(Some(gradient));
    }

    /// Adds the gradients of [`accumulate`](Self::accumulate) to the sums of earlier micro-batches.
    pub(crate) fn keep(&mut self, scale: Scale) -> Result<(), TrainError> {
        self.rest()?;
        self.busy = true;
        self.engine.queue(Action::Behind)?;
        for index in 0..self.buckets.len() {
            let mends = self.buckets[index].mends(|present, kept| match (present, kept) {
                (true, false) => Some(Mend::Keep),
                (true, true) => Some(Mend::KeepMore),
                (false, _) => None,
            });
            self.buckets[index].slots.iter_mut().for_each(|slot| {
                slot.kept |= slot.gradient.is_some();
            });
            self.pack(index, scale)?;
            self.mend(index, mends)?;
        }
        // The gradients' memory is needed for the next micro-batch.
        if self.engine.timing() == Timing::Ordered { self.leave() } else { self.rest() }
    }

    /// Resets the accumulated sums; the memory stays.
    pub(crate) fn end_accumulation(&mut self) {
        let slots = self.buckets.iter_mut().flat_map(|bucket| &mut bucket.slots);
        slots.for_each(|slot| slot.kept = false);
    }

    /// Allows writes to the gradients that were packed: the backward pass is over, and the remaining tensors are not
    /// shared.
    pub(crate) fn release(&mut self) {
        self.readers.clear();
    }

    /// Copies the averages to tensors: for each its bucket and its slot. Later operations of this thread, on the device
    /// too, see them.
    ///
    /// If it has to wait, the host runs ahead of the device: first it waits for this rank's own computation, which is
    /// not communication, and then for the rest.
    pub(crate) fn deliver(
        &mut self,
        scale: Scale,
        targets: Vec<(usize, usize, DeviceTensor)>,
        computing: &mut Stopwatch,
        waiting: &mut Stopwatch,
    ) -> Result<(), TrainError> {
        match self.engine.timing() {
            Timing::Ordered => {
                self.engine.queue(Action::Behind)?;
                self.hand_out(scale, targets)?;
                self.leave()
            }
            Timing::Overlapped => {
                // What was in the targets' memory before may still be read by the backend.
                self.engine.queue(Action::Behind)?;
                self.hand_out(scale, targets)?;
                computing.time(|| self.engine.queue(Action::Computed))?;
                waiting.time(|| self.rest())
            }
            Timing::Apart => {
                computing.time(|| self.engine.queue(Action::Computed))?;
                waiting.time(|| {
                    self.engine.queue(Action::Meet)?;
                    self.hand_out(scale, targets)?;
                    self.rest()
                })
            }
        }
    }

    /// Leaves the wait for all operations of a pass to the device.
    fn leave(&mut self) -> Result<(), TrainError> {
        self.release();
        self.is_complete = true;
        self.engine.queue(Action::Ahead)
    }

    /// Queues the operations of held buckets, and the copies of all averages to tensors.
    fn hand_out(
        &mut self,
        scale: Scale,
        targets: Vec<(usize, usize, DeviceTensor)>,
    ) -> Result<(), TrainError> {
        let mut moves: Vec<Vec<Move>> = self.buckets.iter().map(|_| Vec::new()).collect();
        for (bucket, slot, tensor) in targets {
            let slot = self.buckets[bucket].slots[slot].range.clone();
            moves[bucket].push(Move { tensor, slot });
        }
        self.busy = true;
        for (index, factor) in mem::take(&mut self.held) {
            self.average(index, scale, factor)?;
        }
        for (bucket, moves) in moves.into_iter().enumerate() {
            if !moves.is_empty() {
                self.engine.queue(Action::Unpack { bucket, moves })?;
            }
        }
        Ok(())
    }
}

impl Slot {
    fn fill(&mut self, gradient: Option<DeviceTensor>) {
        if let Some(gradient) = &gradient {
            assert_eq!(self.range.len(), gradient.elems, "a gradient must fill its slot");
        }
        self.gradient = gradient;
    }
}

impl Bucket {
    /// The repairs of ranges of elements, by each slot's gradient and kept sum; equal neighbours are one.
    fn mends(&self, mend: impl Fn(bool, bool) -> Option<Mend>) -> Vec<(Mend, Range<usize>)> {
        let mut mends: Vec<(Mend, Range<usize>)> = Vec::new();
        let mut open = false;
        for slot in &self.slots {
            let this = mend(slot.gradient.is_some(), slot.kept);
            match (this, mends.last_mut()) {
                (Some(this), Some((last, range))) if open && this == *last => {
                    range.end = slot.range.end;
                }
                (Some(this), _) => mends.push((this, slot.range.clone())),
                (None, _) => {}
            }
            open = this.is_some();
        }
        mends
    }
}

fn room(assignment: &Assignment, extents: &[Extent]) -> Room {
    let align = ALIGN_BYTES / assignment.dtype.size_bytes();
    let mut end = 0_usize;
    let slots = assignment
        .parameters
        .iter()
        .map(|&parameter| {
            assert_eq!(extents[parameter].dtype, assignment.dtype);
            let start = end.next_multiple_of(align);
            end = start + extents[parameter].elems;
            start..end
        })
        .collect();
    Room { dtype: assignment.dtype, slots }
}
