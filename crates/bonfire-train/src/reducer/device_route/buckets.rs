//! Buckets of gradients that stay on their devices.

use std::mem;
use std::ops::Range;

use bonfire_collective::ReduceOp;
use bonfire_plan::Division;

use super::{Action, Engine, Move, Operation, Room, Source, Table, Timing};
use crate::TrainError;
use crate::reducer::bucket::layout::BucketLayout;
use crate::reducer::timing::Stopwatch;
use crate::values::Scale;
use crate::values::{DeviceTensor, Reader};

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
    layout: BucketLayout,
    /// The memory that the averages are read from.
    source: Source,
    slots: Vec<Slot>,
    /// The elements of each slot's pieces, in the order of the memory.
    places: Vec<(usize, Range<usize>)>,
}

#[derive(Debug, Default)]
struct Slot {
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

    /// Assigns the parameters, between two steps, and makes memory for all buckets: of those that are cut only for this
    /// rank's block, and once for all, if `keeps_blocks` is true. Every rank calls it alike.
    pub(crate) fn assign(
        &mut self,
        layouts: Vec<BucketLayout>,
        keeps_blocks: bool,
    ) -> Result<(), TrainError> {
        self.rest()?;
        let keeps = |layout: &BucketLayout| keeps_blocks && layout.division != Division::Whole;
        let rooms = layouts.iter().map(|layout| Room {
            dtype: layout.dtype,
            elems: layout.elems,
            pieces: layout.pieces().map(|(_, piece)| piece.place.clone()).collect(),
            block: keeps(layout).then(|| layout.block()),
            uses: uses(layout.division),
        });
        self.engine.open(&rooms.collect::<Vec<_>>())?;
        let bucket = |layout: BucketLayout| {
            let source = if keeps(&layout) { Source::Block } else { Source::Bucket };
            let slots = layout.slots.iter().map(|_| Slot::default()).collect();
            let places = layout.pieces().map(|(slot, piece)| (slot, piece.place.clone()));
            let mut places: Vec<_> = places.filter(|(_, place)| !place.is_empty()).collect();
            places.sort_by_key(|(_, place)| place.start);
            Bucket { source, slots, places, layout }
        };
        self.buckets = layouts.into_iter().map(bucket).collect();
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
        let bucket = &mut self.buckets[index];
        let present = gradient.is_some() || bucket.slots[slot].kept;
        bucket.fill(slot, gradient);
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
        let bucket = &self.buckets[index];
        let (elems, source) = (0..bucket.layout.elems, bucket.source);
        let [(_, operation), ..] = uses(bucket.layout.division)[..] else {
            unreachable!("a bucket of gradients has an operation");
        };
        self.engine.queue(Action::Run { bucket: index, elems, operation })?;
        match source {
            Source::Bucket => Ok(()),
            Source::Block => self.engine.queue(Action::Store { bucket: index }),
        }
    }

    fn pack(&mut self, index: usize, scale: Scale) -> Result<(), TrainError> {
        let mut moves = Vec::new();
        let Bucket { slots, layout, .. } = &mut self.buckets[index];
        for (slot, layout) in slots.iter_mut().zip(&layout.slots) {
            if let Some(mut tensor) = slot.gradient.take() {
                self.readers.extend(tensor.reader.take());
                let pieces = layout.pieces.iter().filter(|piece| !piece.place.is_empty());
                moves.extend(pieces.map(|piece| Move {
                    tensor: tensor.shared(),
                    elems: piece.elems.clone(),
                    place: piece.place.clone(),
                }));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        let bucket = index;
        self.engine.queue(Action::Pack { bucket, moves, table: Table::Gradients })?;
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
        self.buckets[index].fill(slot, Some(gradient));
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

    /// Gathers parameters that are cut, of which each rank brings its rows, to tensors: for each its bucket and its slot.
    /// Later operations of this thread see them. Every rank calls it, between two passes.
    pub(crate) fn gather(
        &mut self,
        rows: Vec<(usize, usize, DeviceTensor)>,
        wholes: Vec<(usize, usize, DeviceTensor)>,
    ) -> Result<(), TrainError> {
        let table = Table::Parameters;
        let timing = self.engine.timing();
        if timing == Timing::Apart {
            self.engine.queue(Action::Computed)?;
            self.engine.queue(Action::Meet)?;
        } else {
            self.engine.queue(Action::Behind)?;
        }
        self.busy = true;
        let mut moves: Vec<[Vec<Move>; 2]> =
            self.buckets.iter().map(|_| Default::default()).collect();
        for (bucket, slot, mut tensor) in rows {
            self.readers.extend(tensor.reader.take());
            let (elems, place) = (0..tensor.elems, self.buckets[bucket].layout.own_place(slot));
            moves[bucket][0].push(Move { tensor, elems, place });
        }
        for (bucket, slot, tensor) in wholes {
            let pieces = self.buckets[bucket].layout.slots[slot].pieces.iter();
            let pieces = pieces.filter(|piece| !piece.place.is_empty());
            moves[bucket][1].extend(pieces.map(|piece| Move {
                tensor: tensor.shared(),
                elems: piece.elems.clone(),
                place: piece.place.clone(),
            }));
        }
        for (bucket, [rows, wholes]) in moves.into_iter().enumerate() {
            let Bucket { layout, .. } = &self.buckets[bucket];
            let Some((_, operation)) =
                uses(layout.division).into_iter().find(|(use_of, _)| *use_of == table)
            else {
                continue;
            };
            let elems = 0..layout.elems;
            if !rows.is_empty() {
                self.engine.queue(Action::Pack { bucket, moves: rows, table })?;
            }
            self.engine.queue(Action::Run { bucket, elems, operation })?;
            let (source, moves) = (Source::Bucket, wholes);
            self.engine.queue(Action::Unpack { bucket, source, moves, table })?;
        }
        if timing == Timing::Ordered { self.leave() } else { self.rest() }
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
            let (elems, place) = (0..tensor.elems, self.buckets[bucket].layout.own_place(slot));
            moves[bucket].push(Move { tensor, elems, place });
        }
        self.busy = true;
        for (index, factor) in mem::take(&mut self.held) {
            self.average(index, scale, factor)?;
        }
        for (bucket, moves) in moves.into_iter().enumerate() {
            if !moves.is_empty() {
                let (source, table) = (self.buckets[bucket].source, Table::Gradients);
                self.engine.queue(Action::Unpack { bucket, source, moves, table })?;
            }
        }
        Ok(())
    }
}

impl Bucket {
    fn fill(&mut self, slot: usize, gradient: Option<DeviceTensor>) {
        if let Some(gradient) = &gradient {
            let elems: usize = self.layout.slots[slot].pieces.iter().map(|p| p.place.len()).sum();
            assert_eq!(elems, gradient.elems, "a gradient must fill its slot");
        }
        self.slots[slot].gradient = gradient;
    }

    /// The repairs of ranges of elements, by each slot's gradient and kept sum; equal neighbours are one.
    fn mends(&self, mend: impl Fn(bool, bool) -> Option<Mend>) -> Vec<(Mend, Range<usize>)> {
        let mut mends: Vec<(Mend, Range<usize>)> = Vec::new();
        let mut open = false;
        for (slot, place) in &self.places {
            let slot = &self.slots[*slot];
            let this = mend(slot.gradient.is_some(), slot.kept);
            match (this, mends.last_mut()) {
                (Some(this), Some((last, range))) if open && this == *last => {
                    range.end = place.end;
                }
                (Some(this), _) => mends.push((this, place.clone())),
                (None, _) => {}
            }
            open = this.is_some();
        }
        mends
    }
}

/// The operation for gradients, and that for parameters.
fn uses(division: Division) -> Vec<(Table, Operation)> {
    let mean = ReduceOp::Mean;
    match division {
        Division::Whole => vec![(Table::Gradients, Operation::AllReduce(mean))],
        Division::Rows => vec![
            (Table::Gradients, Operation::ReduceScatter(mean)),
            (Table::Parameters, Operation::AllGather),
        ],
        Division::Owned(owner) => vec![
            (Table::Gradients, Operation::Reduce(mean, owner)),
            (Table::Parameters, Operation::Broadcast(owner)),
        ],
    }
}
