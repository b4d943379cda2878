//! The gradients of several parameters in one piece of memory, which is sent as one message.

pub(super) mod layout;

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use bonfire_plan::buckets::Assignment;
use bonfire_plan::{Division, Sharding};
use burn::tensor::TensorData;

use crate::compression::{Codec, Compressor, Message, Presence};
use crate::parameters::shards::Shards;
use crate::reducer::pool::Pool;
use crate::values::{BucketBuffer, BufferWork, CollectiveOp, HostSlice, Scale};
use layout::{BucketLayout, Piece};

/// A bucket. Its memory is used again in every step, unless tensors still have it.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(super) group: ProcessGroup,
    pub(super) layout: BucketLayout,
    /// Elements behind those of parameters: each is a flag that is set if any rank has set it.
    flags: usize,
    /// The ranks that have the same block as this one, if the block is copied.
    copies: Option<ProcessGroup>,
    /// For each slot, true if earlier micro-batches have left a sum there.
    accumulated: Vec<bool>,
    phase: Phase,
    /// The pool of memory that is only kept while it is needed.
    pool: Option<Pool>,
    codec: Codec,
}

#[derive(Debug, Default)]
enum Phase {
    /// Has no memory: the first gradient brings it.
    #[default]
    Empty,
    Filling(BucketBuffer),
    InFlight(BufferWork),
    /// A message of the codec is in flight in place of the values.
    Compressed(BucketBuffer, Message),
    /// Has the averages; with a pool, this rank's block of them. Tensors may share them.
    Ready(Arc<BucketBuffer>),
}

impl Bucket {
    /// An empty bucket, with `flags` flags, in memory of the group if possible.
    pub(crate) fn new(
        assignment: &Assignment,
        flags: usize,
        shards: &Shards,
        pool: &Pool,
        compressor: &Compressor,
        group: ProcessGroup,
    ) -> Self {
        let layout = BucketLayout::new(assignment, shards);
        let (dtype, elems) = (layout.dtype, layout.elems);
        let is_sharded = shards.layout().placement().gradients == Sharding::Sharded;
        let is_cut = layout.division != Division::Whole;
        let pool = (is_cut && is_sharded).then(|| pool.clone());
        // Only complete gradients are compressed.
        let places = layout.slots.iter();
        let places: Vec<_> =
            places.map(|slot| (slot.parameter, slot.pieces[0].place.clone())).collect();
        // Only where all ranks get the mean of all, as it is.
        let flags = if is_cut || compressor.compresses() { 0 } else { flags };
        let phase = match &pool {
            Some(pool) => {
                pool.join(dtype, elems);
                Phase::Empty
            }
            None => Phase::Filling(BucketBuffer::shared(&group, dtype, elems + flags)),
        };
        Self {
            codec: Codec::new(compressor, dtype, &places, &group),
            flags,
            accumulated: vec![false; layout.slots.len()],
            layout,
            copies: shards.groups().copies().filter(|_| is_cut).cloned(),
            phase,
            pool,
            group,
        }
    }

    /// Marks a slot without a gradient of this micro-batch. Returns true if an earlier one left one.
    pub(crate) fn put_none(&mut self, slot: usize) -> bool {
        let accumulated = self.accumulated[slot];
        if !accumulated {
            let mut buffer = self.take_buffer();
            let pieces = self.layout.slots[slot].pieces.iter();
            pieces.for_each(|piece| buffer.clear(piece.place.clone()));
            self.phase = Phase::Filling(buffer);
        }
        accumulated
    }

    /// Adds the gradient of a micro-batch that is not synchronised by itself.
    pub(crate) fn accumulate(&mut self, slot: usize, gradient: HostSlice<'_>, scale: Scale) {
        self.put(slot, gradient, scale);
        self.accumulated[slot] = true;
    }

    /// Copies a gradient to its place, or adds it to what earlier micro-batches left there.
    pub(crate) fn put(&mut self, slot: usize, gradient: HostSlice<'_>, scale: Scale) {
        let mut buffer = self.take_buffer();
        for Piece { place, elems } in &self.layout.slots[slot].pieces {
            let (place, gradient) = (place.clone(), gradient.slice(elems.clone()));
            if self.accumulated[slot] {
                buffer.add(place, gradient, scale);
            } else {
                buffer.set(place, gradient, scale);
            }
        }
        self.phase = Phase::Filling(buffer);
    }

    pub(crate) fn end_accumulation(&mut self) {
        self.accumulated.fill(false);
    }

    pub(crate) fn has_flags(&self) -> bool {
        self.flags > 0
    }

    pub(crate) fn flags(&self) -> Vec<bool> {
        let elems = self.layout.elems;
        self.averages().flags(elems..elems + self.flags)
    }

    /// Starts the average over the ranks in the group, when all slots have been put; with these flags, if it has some.
    #[track_caller]
    pub(crate) fn send(&mut self, factor: f64, flags: &[bool], compressor: &mut Compressor) {
        let mut buffer = self.take_buffer();
        if factor != 1.0 {
            buffer.scale(factor);
        }
        let elems = self.layout.elems;
        buffer.set_flags(elems, &flags[..self.flags]);
        self.phase = match self.codec.send(&mut buffer, &self.group, compressor) {
            Some(message) => Phase::Compressed(buffer, message),
            None => {
                let operation = match self.layout.division {
                    Division::Whole => CollectiveOp::AllReduce(ReduceOp::Mean),
                    Division::Rows => CollectiveOp::ReduceScatter(ReduceOp::Mean),
                    Division::Owned(owner) => CollectiveOp::MeanTo(owner),
                };
                // The mean over the ranks of a copy, then over the copies, which are equally large.
                let block = self.layout.block();
                let then =
                    self.copies.clone().filter(|_| !block.is_empty()).map(|copies| (copies, block));
                let elems = elems + self.flags;
                Phase::InFlight(buffer.start_then(&self.group, elems, operation, then))
            }
        };
    }

    /// Sends messages that depend on received ones. Every rank must call it for all buckets in their order, after all
    /// are sent.
    #[track_caller]
    pub(crate) fn advance(&mut self, compressor: &mut Compressor) -> Result<(), CollectiveError> {
        self.phase = match mem::take(&mut self.phase) {
            Phase::Compressed(mut buffer, message) => {
                let group = &self.group;
                let message = self.codec.advance(message, &mut buffer, group, compressor)?;
                Phase::Compressed(buffer, message)
            }
            other => other,
        };
        Ok(())
    }

    /// Waits for the averages, unless they have arrived. `presence` returns if any rank had a gradient for a
    /// parameter.
    pub(crate) fn receive(
        &mut self,
        compressor: &mut Compressor,
        presence: impl Fn(usize) -> Presence,
    ) -> Result<(), CollectiveError> {
        self.phase = match mem::take(&mut self.phase) {
            Phase::InFlight(work) => {
                let buffer = work.wait()?;
                let kept = match &self.pool {
                    Some(pool) => {
                        let block = buffer.copy(self.layout.block());
                        pool.give(buffer);
                        block
                    }
                    None => buffer,
                };
                Phase::Ready(Arc::new(kept))
            }
            Phase::Compressed(mut buffer, message) => {
                let codec = &mut self.codec;
                codec.receive(message, &mut buffer, compressor, presence)?;
                Phase::Ready(Arc::new(buffer))
            }
            other => other,
        };
        Ok(())
    }

    /// The values of a slot as the content of a tensor of this shape, in the bucket's memory; if parameters are cut,
    /// those of this rank's rows.
    pub(crate) fn view(&self, slot: usize, shape: &[usize]) -> TensorData {
        self.averages().view(self.kept_place(slot), shape)
    }

    fn averages(&self) -> &Arc<BucketBuffer> {
        match &self.phase {
            Phase::Ready(averages) => averages,
            other => panic!("a bucket is read when it has averages: {other:?}"),
        }
    }

    /// The elements of this rank's piece of a parameter in the memory that stays between two steps.
    pub(super) fn kept_place(&self, slot: usize) -> Range<usize> {
        match self.pool {
            Some(_) => self.layout.own_place_in_block(slot),
            None => self.layout.own_place(slot),
        }
    }

    /// Returns true if the bucket is in flight in memory of the pool.
    pub(crate) fn is_lent(&self) -> bool {
        self.has_pool() && matches!(self.phase, Phase::InFlight(_))
    }

    pub(super) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Takes memory for all values: that of the last step, unless tensors still have it.
    pub(super) fn take_buffer(&mut self) -> BucketBuffer {
        let unshared = match mem::take(&mut self.phase) {
            Phase::Filling(buffer) => Some(buffer),
            Phase::Ready(averages) if self.pool.is_none() => Arc::into_inner(averages),
            Phase::Ready(_) | Phase::Empty => None,
            Phase::InFlight(_) | Phase::Compressed(..) => {
                panic!("a bucket in flight takes no gradients")
            }
        };
        let BucketLayout { dtype, elems, .. } = self.layout;
        unshared.unwrap_or_else(|| match &self.pool {
            Some(pool) => pool.take(&self.group, dtype, elems),
            None => BucketBuffer::shared(&self.group, dtype, elems + self.flags),
        })
    }

    /// Takes memory that stays between two steps: with a pool, for this rank's block alone.
    pub(super) fn take_kept(&mut self) -> BucketBuffer {
        if !self.has_pool() {
            return self.take_buffer();
        }
        let unshared = match mem::take(&mut self.phase) {
            Phase::Ready(averages) => Arc::into_inner(averages),
            _ => None,
        };
        let (dtype, elems) = (self.layout.dtype, self.layout.block().len());
        unshared.unwrap_or_else(|| BucketBuffer::zeros(dtype, elems))
    }

    pub(super) fn give_back(&mut self, buffer: BucketBuffer) {
        match &self.pool {
            Some(pool) => pool.give(buffer),
            None => self.phase = Phase::Filling(buffer),
        }
    }
}
