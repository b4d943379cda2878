//! Gathers parameters that are cut, after the optimizer has stepped this rank's rows of them.
//!
//! The parameters of a bucket are gathered by one operation, in the memory of their gradients.

use std::mem;

use bonfire_collective::CollectiveError;
use bonfire_plan::Division;

use crate::TrainError;
use crate::reducer::bucket::Bucket;
use crate::reducer::buckets::Home;
use crate::reducer::readback::Run;
use crate::values::{BucketBuffer, BufferWork, CollectiveOp, HostSlice, Scale};

/// A gather of all parameters that are cut: each rank passes its rows of all of them, in the same order, and then
/// takes the complete parameters.
#[derive(Debug)]
pub(crate) struct ParameterGather<'a> {
    homes: &'a [Home],
    gathers: Vec<BucketGather<'a>>,
}

#[derive(Debug)]
struct BucketGather<'a> {
    bucket: &'a mut Bucket,
    /// Number of parameters whose rows have not arrived, and then of those that have not been released.
    left: usize,
    phase: Phase,
}

#[derive(Debug, Default)]
enum Phase {
    /// Has no memory.
    #[default]
    Empty,
    /// Takes this rank's rows.
    Filling(BucketBuffer),
    InFlight(BufferWork),
    /// Has the rows of all ranks.
    Ready(BucketBuffer),
}

impl<'a> ParameterGather<'a> {
    pub(super) fn new(homes: &'a [Home], buckets: &'a mut [Bucket]) -> Self {
        let gather = |bucket: &'a mut Bucket| BucketGather {
            left: bucket.layout.slots.len(),
            bucket,
            phase: Phase::Empty,
        };
        Self { homes, gathers: buckets.iter_mut().map(gather).collect() }
    }

    /// Takes this rank's rows of a parameter, and starts the gather of its bucket when it has those of all.
    pub(crate) fn put(&mut self, parameter: usize, rows: HostSlice<'_>) {
        let Home { bucket, slot } = self.homes[parameter];
        self.gathers[bucket].put(slot, rows);
    }

    /// A complete parameter, run of elements by run. It waits for those of its bucket.
    pub(crate) fn runs(&mut self, parameter: usize) -> Result<Vec<Run<'_>>, TrainError> {
        let Home { bucket, slot } = self.homes[parameter];
        Ok(self.gathers[bucket].runs(slot)?)
    }

    /// Releases a complete parameter, and the memory of its bucket with the last one.
    pub(crate) fn release(&mut self, parameter: usize) {
        self.gathers[self.homes[parameter].bucket].release();
    }
}

impl BucketGather<'_> {
    fn put(&mut self, slot: usize, rows: HostSlice<'_>) {
        assert!(self.left > 0, "every slot of the bucket is full");
        self.left -= 1;
        let mut buffer = match mem::take(&mut self.phase) {
            Phase::Filling(buffer) => buffer,
            _ => self.bucket.take_kept(),
        };
        buffer.set(self.bucket.kept_place(slot), rows, Scale::One);
        // Memory of the pool is lent bucket by bucket, when a parameter is taken.
        self.phase = if self.left == 0 && !self.bucket.has_pool() {
            let (elems, operation) = (self.bucket.layout.elems, self.operation());
            Phase::InFlight(buffer.start(&self.bucket.group, elems, operation))
        } else {
            Phase::Filling(buffer)
        };
    }

    fn operation(&self) -> CollectiveOp {
        match self.bucket.layout.division {
            Division::Owned(owner) => CollectiveOp::From(owner),
            Division::Whole | Division::Rows => CollectiveOp::AllGather,
        }
    }

    fn runs(&mut self, slot: usize) -> Result<Vec<Run<'_>>, CollectiveError> {
        self.receive()?;
        let Phase::Ready(whole) = &self.phase else {
            panic!("a parameter is taken when its rows have been put");
        };
        let pieces = self.bucket.layout.slots[slot].pieces.iter();
        let runs = pieces.map(|piece| (piece.elems.clone(), whole.slice(piece.place.clone())));
        Ok(runs.collect())
    }

    /// Waits for the rows of all ranks, unless they have arrived.
    fn receive(&mut self) -> Result<(), CollectiveError> {
        let whole = match mem::take(&mut self.phase) {
            Phase::InFlight(work) => work.wait()?,
            Phase::Filling(rows) => {
                let mut whole = self.bucket.take_buffer();
                let layout = &self.bucket.layout;
                whole.set(layout.block(), rows.slice(0..rows.len()), Scale::One);
                whole.run(&self.bucket.group, layout.elems, self.operation())?;
                whole
            }
            other => {
                self.phase = other;
                return Ok(());
            }
        };
        self.left = self.bucket.layout.slots.len();
        self.phase = Phase::Ready(whole);
        Ok(())
    }

    fn release(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0
            && let Phase::Ready(whole) = mem::take(&mut self.phase)
        {
            self.bucket.give_back(whole);
        }
    }
}
