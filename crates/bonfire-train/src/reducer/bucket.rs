//! The gradients of several parameters in one piece of memory, which travels as one.

use std::ops::Range;

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use bonfire_plan::DType;

use crate::compression::{Carrier, Compressor, Presence, Sent};
use crate::memory::host::{Entering, HostSlice, Values, ValuesWork};
use crate::parameters::assignment::{Assignment, Extent};

/// A bucket. Its memory is used again in every step.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// With the bucket's name.
    group: ProcessGroup,
    dtype: DType,
    slots: Vec<Slot>,
    /// Parameters whose gradient is not there yet.
    waiting: usize,
    state: State,
    /// What travels instead, where gradients are compressed.
    carrier: Carrier,
    /// The sum of earlier micro-batches; made when the first one is accumulated.
    accumulated: Option<Values>,
}

/// The place of a parameter.
#[derive(Clone, Debug)]
struct Slot {
    parameter: usize,
    range: Range<usize>,
    /// Whether `accumulated` has something for it.
    accumulated: bool,
}

#[derive(Debug)]
enum State {
    /// Takes gradients, or holds the result.
    Here(Values),
    /// Handed to the group.
    Away(ValuesWork),
    /// The carrier is handed to the group.
    Carried(Values),
    /// Lost with a failed operation.
    Lost,
}

impl Bucket {
    /// An empty bucket, in memory of the group.
    pub(crate) fn new(
        assignment: &Assignment,
        extents: &[Extent],
        compressor: &Compressor,
        group: ProcessGroup,
    ) -> Self {
        let mut start = 0;
        let mut slots = Vec::with_capacity(assignment.parameters.len());
        for &parameter in &assignment.parameters {
            assert_eq!(extents[parameter].dtype, assignment.dtype);
            let range = start..start + extents[parameter].elems;
            start = range.end;
            slots.push(Slot {
                parameter,
                range,
                accumulated: false,
            });
        }
        let places: Vec<_> = slots
            .iter()
            .map(|slot| (slot.parameter, slot.range.clone()))
            .collect();
        Self {
            dtype: assignment.dtype,
            carrier: Carrier::new(compressor, assignment.dtype, &places, &group),
            waiting: slots.len(),
            slots,
            state: State::Here(Values::shared(&group, assignment.dtype, start)),
            accumulated: None,
            group,
        }
    }

    pub(crate) fn elems(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.range.end)
    }

    /// Whether all its gradients are there.
    pub(crate) fn is_complete(&self) -> bool {
        self.waiting == 0
    }

    /// Expects all gradients again, for another step or to repeat this one.
    pub(crate) fn reopen(&mut self) {
        self.waiting = self.slots.len();
    }

    /// Takes the gradient of a slot, on top of what earlier micro-batches left.
    pub(crate) fn put(&mut self, slot: usize, gradient: HostSlice<'_>, entering: Entering) {
        self.put_accumulated(slot);
        let Slot {
            range, accumulated, ..
        } = self.slots[slot].clone();
        let values = self.here();
        if accumulated {
            values.add(range, gradient, entering);
        } else {
            values.set(range, gradient, entering);
        }
    }

    /// Does without a gradient of this micro-batch. Returns whether an earlier one left something.
    pub(crate) fn put_none(&mut self, slot: usize) -> bool {
        self.put_accumulated(slot);
        let Slot {
            range, accumulated, ..
        } = self.slots[slot].clone();
        if !accumulated {
            self.here().clear(range);
        }
        accumulated
    }

    /// Counts the slot down and starts from what earlier micro-batches left.
    fn put_accumulated(&mut self, slot: usize) {
        assert!(self.waiting > 0, "every slot of the bucket is full");
        self.waiting -= 1;
        let range = self.slots[slot].range.clone();
        let State::Here(values) = &mut self.state else {
            panic!("a bucket that is away takes no gradients");
        };
        if self.slots[slot].accumulated
            && let Some(accumulated) = &self.accumulated
        {
            values.set(range.clone(), accumulated.slice(range), Entering::Plain);
        }
    }

    /// Adds the gradient of a micro-batch that is not synchronised by itself.
    pub(crate) fn accumulate(&mut self, slot: usize, gradient: HostSlice<'_>, entering: Entering) {
        let (dtype, elems) = (self.dtype, self.elems());
        let accumulated = self
            .accumulated
            .get_or_insert_with(|| Values::zeros(dtype, elems));
        let Slot {
            range,
            accumulated: more,
            ..
        } = &mut self.slots[slot];
        if *more {
            accumulated.add(range.clone(), gradient, entering);
        } else {
            accumulated.set(range.clone(), gradient, entering);
        }
        *more = true;
    }

    /// Forgets what was accumulated; the memory stays.
    pub(crate) fn end_accumulation(&mut self) {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.accumulated = false);
    }

    /// Hands the bucket to the group, which averages it over the ranks.
    #[track_caller]
    pub(crate) fn send(&mut self, factor: f64, compressor: &mut Compressor) {
        assert!(self.is_complete(), "a bucket travels when it is complete");
        let State::Here(mut values) = std::mem::replace(&mut self.state, State::Lost) else {
            panic!("a bucket travels once per step");
        };
        if factor != 1.0 {
            values.scale(factor);
        }
        self.state = match self.carrier.send(&mut values, &self.group, compressor) {
            Sent::Nothing => State::Away(values.reduce_async(&self.group, ReduceOp::Mean)),
            Sent::Instead => State::Carried(values),
        };
    }

    /// Sends what can only be sent when something else has come. Every rank must call it for all
    /// buckets in their order, after all are sent.
    #[track_caller]
    pub(crate) fn advance(&mut self, compressor: &mut Compressor) -> Result<(), CollectiveError> {
        match &mut self.state {
            State::Carried(values) => self.carrier.advance(values, &self.group, compressor),
            _ => Ok(()),
        }
    }

    /// Waits for the averages. `presence` says of a parameter whether any rank had a gradient.
    pub(crate) fn receive(
        &mut self,
        compressor: &mut Compressor,
        presence: impl Fn(usize) -> Presence,
    ) -> Result<(), CollectiveError> {
        let values = match std::mem::replace(&mut self.state, State::Lost) {
            State::Away(work) => work.wait()?,
            State::Carried(mut values) => {
                self.carrier.receive(&mut values, compressor, presence)?;
                values
            }
            State::Here(_) | State::Lost => panic!("only a bucket that is away comes back"),
        };
        self.state = State::Here(values);
        Ok(())
    }

    /// The values of a slot.
    pub(crate) fn slot(&self, slot: usize) -> HostSlice<'_> {
        let State::Here(values) = &self.state else {
            panic!("a bucket that is away cannot be read");
        };
        values.slice(self.slots[slot].range.clone())
    }

    fn here(&mut self) -> &mut Values {
        match &mut self.state {
            State::Here(values) => values,
            _ => panic!("a bucket that is away takes no gradients"),
        }
    }
}
