//! The gradients of several parameters in one piece of memory, which is sent as one message.
//!
//! Where parameters are cut into rows, the memory is as many equal blocks as there are ranks, each with the rows of
//! one rank of all parameters: so a block is a rank's part of the mean, and its contribution when parameters are
//! gathered. The blocks of ranks with fewer rows are padded at the end.
//!
//! If one rank has all of each parameter, the bucket is sent to it, and comes from it.

use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use bonfire_plan::{DType, Division, Sharding};
use burn::tensor::TensorData;

use crate::compression::{Carrier, Compressor, Presence, Sent};
use crate::parameters::shards::Shards;
use crate::reducer::pool::Pool;
use crate::values::{BucketBuffer, BufferWork, CollectiveOp, HostSlice, Scale};
use bonfire_plan::buckets::Assignment;

/// A bucket. Its memory is used again in every step, unless tensors still have it.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// The group with the bucket's name.
    group: ProcessGroup,
    dtype: DType,
    slots: Vec<Slot>,
    elems: usize,
    /// Elements behind those: each is a flag that is set if any rank has set it.
    flags: usize,
    division: Division,
    /// The ranks that have the same block as this one, if the block is copied.
    copies: Option<ProcessGroup>,
    /// Number of parameters whose gradient has not arrived.
    waiting: usize,
    state: State,
    /// The pool of memory that is only kept while it is needed.
    pool: Option<Pool>,
    carrier: Carrier,
}

#[derive(Clone, Debug)]
struct Slot {
    parameter: usize,
    pieces: Vec<Piece>,
    /// The index of this rank's piece, if any.
    own: Option<usize>,
    /// True if earlier micro-batches have left a sum here.
    accumulated: bool,
}

#[derive(Clone, Debug)]
struct Piece {
    /// The elements in the bucket.
    place: Range<usize>,
    /// The elements in the parameter.
    elems: Range<usize>,
}

#[derive(Debug)]
enum State {
    /// Has no memory: the first gradient of a step brings it.
    Empty,
    /// Has this rank's block of the result, and no other memory.
    Own(Arc<BucketBuffer>),
    /// Takes gradients, or holds the result.
    Here(Arc<BucketBuffer>),
    /// Passed to the group's operation.
    Away(BufferWork),
    /// The carrier is in the group's operation.
    Carried(BucketBuffer),
    Lost,
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
        let (slots, elems) = arranged(&assignment.parameters, shards);
        let is_sharded = shards.layout().placement().gradients == Sharding::Sharded;
        let is_cut = assignment.division != Division::Whole;
        let pool = (is_cut && is_sharded).then(|| pool.clone());
        // Only complete gradients are compressed.
        let places: Vec<_> = slots
            .iter()
            .map(|slot| (slot.parameter, slot.pieces[0].place.clone()))
            .collect();
        // Only where all ranks get the mean of all, as it is.
        let flags = if is_cut || compressor.compresses() {
            0
        } else {
            flags
        };
        let state = match &pool {
            Some(pool) => {
                pool.join(assignment.dtype, elems);
                State::Empty
            }
            None => {
                let values = BucketBuffer::shared(&group, assignment.dtype, elems + flags);
                State::Here(Arc::new(values))
            }
        };
        Self {
            dtype: assignment.dtype,
            carrier: Carrier::new(compressor, assignment.dtype, &places, &group),
            flags,
            waiting: slots.len(),
            slots,
            elems,
            division: assignment.division,
            copies: shards.groups().copies().filter(|_| is_cut).cloned(),
            state,
            pool,
            group,
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn reopen(&mut self) {
        self.waiting = self.slots.len();
    }

    /// Takes the gradient of a slot, on top of what earlier micro-batches left.
    pub(crate) fn put(&mut self, slot: usize, gradient: HostSlice<'_>, scale: Scale) {
        self.count_down();
        self.enter(slot, gradient, scale);
    }

    /// Marks a slot without a gradient of this micro-batch. Returns true if an earlier one left one.
    pub(crate) fn put_none(&mut self, slot: usize) -> bool {
        self.count_down();
        let Slot {
            pieces,
            accumulated,
            ..
        } = self.slots[slot].clone();
        if !accumulated {
            let values = self.here();
            pieces
                .into_iter()
                .for_each(|piece| values.clear(piece.place));
        }
        accumulated
    }

    fn count_down(&mut self) {
        assert!(self.waiting > 0, "every slot of the bucket is full");
        self.waiting -= 1;
    }

    /// Adds the gradient of a micro-batch that is not synchronised by itself.
    pub(crate) fn accumulate(&mut self, slot: usize, gradient: HostSlice<'_>, scale: Scale) {
        self.enter(slot, gradient, scale);
        self.slots[slot].accumulated = true;
    }

    /// Copies a gradient to its place, or adds it to what earlier micro-batches left there.
    fn enter(&mut self, slot: usize, gradient: HostSlice<'_>, scale: Scale) {
        let Slot {
            pieces,
            accumulated,
            ..
        } = self.slots[slot].clone();
        let values = self.here();
        for Piece { place, elems } in pieces {
            if accumulated {
                values.add(place, gradient.slice(elems), scale)
            } else {
                values.set(place, gradient.slice(elems), scale)
            }
        }
    }

    pub(crate) fn end_accumulation(&mut self) {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.accumulated = false);
    }

    pub(crate) fn has_flags(&self) -> bool {
        self.flags > 0
    }

    pub(crate) fn flags(&self) -> Vec<bool> {
        self.values().flags(self.elems..self.elems + self.flags)
    }

    /// Starts the average over the ranks in the group; with these flags, if it has some.
    #[track_caller]
    pub(crate) fn send(&mut self, factor: f64, flags: &[bool], compressor: &mut Compressor) {
        assert!(self.is_complete(), "a bucket is sent when it is complete");
        let State::Here(values) = std::mem::replace(&mut self.state, State::Lost) else {
            panic!("a bucket is sent once per step");
        };
        let mut values = unseen(values);
        if factor != 1.0 {
            values.scale(factor);
        }
        values.set_flags(self.elems, &flags[..self.flags]);
        self.state = match self.carrier.send(&mut values, &self.group, compressor) {
            Sent::Nothing => {
                let operation = match self.division {
                    Division::Whole => CollectiveOp::AllReduce(ReduceOp::Mean),
                    Division::Rows => CollectiveOp::MeanScatter,
                    Division::Owned(owner) => CollectiveOp::MeanTo(owner),
                };
                // The mean over the ranks of a copy, then over the copies, which are equally large.
                let block = self.block();
                let then = self
                    .copies
                    .clone()
                    .filter(|_| !block.is_empty())
                    .map(|copies| (copies, block));
                let elems = self.elems + self.flags;
                State::Away(values.start_then(&self.group, elems, operation, then))
            }
            Sent::Instead => State::Carried(values),
        };
    }

    /// Sends messages that depend on received ones. Every rank must call it for all buckets in their order, after all
    /// are sent.
    #[track_caller]
    pub(crate) fn advance(&mut self, compressor: &mut Compressor) -> Result<(), CollectiveError> {
        match &mut self.state {
            State::Carried(values) => self.carrier.advance(values, &self.group, compressor),
            _ => Ok(()),
        }
    }

    /// Waits for the averages. `presence` returns if any rank had a gradient for a parameter.
    pub(crate) fn receive(
        &mut self,
        compressor: &mut Compressor,
        presence: impl Fn(usize) -> Presence,
    ) -> Result<(), CollectiveError> {
        let values = match std::mem::replace(&mut self.state, State::Lost) {
            State::Away(work) => {
                self.state = self.kept(work.wait()?);
                return Ok(());
            }
            // It had to come back earlier.
            State::Own(values) => {
                self.state = State::Own(values);
                return Ok(());
            }
            State::Carried(mut values) => {
                self.carrier.receive(&mut values, compressor, presence)?;
                values
            }
            State::Empty | State::Here(_) | State::Lost => {
                panic!("only a bucket that is away comes back")
            }
        };
        self.state = State::Here(Arc::new(values));
        Ok(())
    }

    /// The values of a slot as the content of a tensor of this shape, in the bucket's memory; if parameters are cut,
    /// those of this rank's rows.
    pub(crate) fn view(&self, slot: usize, shape: &[usize]) -> TensorData {
        match &self.state {
            State::Own(values) => values.view(self.own_place_in_block(slot), shape),
            _ => self.values().view(self.own_place(slot), shape),
        }
    }

    fn own_place(&self, slot: usize) -> Range<usize> {
        let Slot { pieces, own, .. } = &self.slots[slot];
        own.map_or(0..0, |own| pieces[own].place.clone())
    }

    fn own_place_in_block(&self, slot: usize) -> Range<usize> {
        let (place, block) = (self.own_place(slot), self.block());
        place.start - block.start..place.end - block.start
    }

    /// The state of a bucket whose gradients have been summed over the ranks.
    fn kept(&self, values: BucketBuffer) -> State {
        let Some(pool) = &self.pool else {
            return State::Here(Arc::new(values));
        };
        let own = values.copy(self.block());
        pool.give(values);
        State::Own(Arc::new(own))
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.pool.is_some() && matches!(self.state, State::Away(_))
    }

    /// Takes this rank's rows of a parameter, and starts the gather when it has those of all.
    pub(crate) fn put_rows(&mut self, slot: usize, rows: HostSlice<'_>) {
        assert!(self.waiting > 0, "every slot of the bucket is full");
        self.waiting -= 1;
        if self.pool.is_some() {
            let place = self.own_place_in_block(slot);
            let mut own = match std::mem::replace(&mut self.state, State::Lost) {
                State::Own(values) => Arc::into_inner(values),
                _ => None,
            }
            .unwrap_or_else(|| BucketBuffer::zeros(self.dtype, self.block().len()));
            own.set(place, rows, Scale::One);
            self.state = State::Own(Arc::new(own));
            return;
        }
        let place = self.own_place(slot);
        self.here().set(place, rows, Scale::One);
        if self.is_complete()
            && let State::Here(values) = std::mem::replace(&mut self.state, State::Lost)
        {
            let values = unseen(values);
            self.state = State::Away(values.start(&self.group, self.elems, self.gathering()));
        }
    }

    pub(crate) fn gathered(&mut self) -> Result<(), CollectiveError> {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Away(work) => State::Here(Arc::new(work.wait()?)),
            // Memory for all blocks is lent bucket by bucket.
            State::Own(own) => {
                let (block, gathering) = (self.block(), self.gathering());
                let (elems, group) = (self.elems, self.group.clone());
                let values = self.here();
                values.set(block, own.slice(0..own.len()), Scale::One);
                values.run(&group, elems, gathering)?;
                self.waiting = self.slots.len();
                return Ok(());
            }
            other => other,
        };
        Ok(())
    }

    /// Releases a gathered parameter, and the memory with the last one.
    pub(crate) fn release(&mut self) {
        let Some(pool) = &self.pool else {
            return;
        };
        self.waiting -= 1;
        if self.waiting == 0
            && let State::Here(values) = std::mem::replace(&mut self.state, State::Empty)
        {
            pool.give(unseen(values));
        }
    }

    fn gathering(&self) -> CollectiveOp {
        match self.division {
            Division::Owned(owner) => CollectiveOp::From(owner),
            Division::Whole | Division::Rows => CollectiveOp::AllGather,
        }
    }

    fn block(&self) -> Range<usize> {
        let Some((pieces, own)) = self
            .slots
            .first()
            .and_then(|slot| Some((slot.pieces.len(), slot.own?)))
        else {
            return 0..0;
        };
        let elems = self.elems / pieces;
        own * elems..(own + 1) * elems
    }

    pub(crate) fn runs(&self, slot: usize) -> impl Iterator<Item = (Range<usize>, HostSlice<'_>)> {
        let values = self.values();
        let pieces = self.slots[slot].pieces.iter();
        pieces.map(|piece| (piece.elems.clone(), values.slice(piece.place.clone())))
    }

    fn values(&self) -> &Arc<BucketBuffer> {
        match &self.state {
            State::Here(values) => values,
            _ => panic!("a bucket that is away cannot be read"),
        }
    }

    fn here(&mut self) -> &mut BucketBuffer {
        if let (State::Empty | State::Own(_) | State::Lost, Some(pool)) = (&self.state, &self.pool)
        {
            let values = pool.take(&self.group, self.dtype, self.elems);
            self.state = State::Here(Arc::new(values));
        }
        let State::Here(values) = &mut self.state else {
            panic!("a bucket that is away takes no gradients");
        };
        // Tensors of an earlier step that are still there keep its memory.
        if Arc::get_mut(values).is_none() {
            let elems = self.elems + self.flags;
            *values = Arc::new(BucketBuffer::shared(&self.group, self.dtype, elems));
        }
        Arc::get_mut(values).expect("it is not shared")
    }
}

/// Values that have been written to since they were shared with tensors.
fn unseen(values: Arc<BucketBuffer>) -> BucketBuffer {
    Arc::into_inner(values).expect("values are written unshared")
}

/// The places of parameters in a bucket, and its number of elements.
fn arranged(parameters: &[usize], shards: &Shards) -> (Vec<Slot>, usize) {
    let pieces: Vec<_> = parameters.iter().map(|&p| shards.pieces(p)).collect();
    let (block_elems, blocks) = shards.layout().blocks(parameters);
    let mut ends: Vec<usize> = (0..blocks).map(|block| block * block_elems).collect();
    let slots = parameters.iter().zip(&pieces).map(|(&parameter, pieces)| {
        let pieces = pieces.iter().zip(&mut ends).map(|(elems, end)| {
            let place = *end..*end + elems.len();
            *end = place.end;
            let elems = elems.clone();
            Piece { place, elems }
        });
        Slot {
            parameter,
            pieces: pieces.collect(),
            own: shards.own_piece(parameter),
            accumulated: false,
        }
    });
    (slots.collect(), blocks * block_elems)
}
