//! Collects gradients into buckets, and sends the buckets to the other ranks.

use std::sync::Arc;

use bonfire_plan::buckets::LENT_MAX;

use super::Reducer;
use super::collect::{Gradient, checked};
use super::readback::read_together;
use super::step::Step;
use crate::TrainError;
use crate::compression::Presence;
use crate::values::HostSlice;

impl Reducer {
    pub(crate) fn take_early(
        &mut self,
        parameter: usize,
        gradient: Result<Gradient<'_>, TrainError>,
    ) {
        if self.step.error.is_some() {
            return;
        }
        self.clock += 1;
        self.parameters[parameter].ready = self.clock;
        let taken = gradient.and_then(|gradient| self.put(parameter, Some(gradient)));
        if let Err(error) = taken {
            self.step.error = Some(error);
        }
    }

    /// Returns true if the gradient of a parameter has not been taken.
    pub(super) fn wants(&self, parameter: usize) -> bool {
        !self.parameters[parameter].taken
    }

    pub(super) fn put(
        &mut self,
        parameter: usize,
        gradient: Option<Gradient<'_>>,
    ) -> Result<(), TrainError> {
        let progress = &mut self.parameters[parameter];
        assert!(!progress.taken, "a gradient is taken once");
        progress.taken = true;
        match gradient {
            Some(Gradient::Unread(_, tensor)) => self.unread.push((parameter, *tensor)),
            gradient => self.enter(parameter, gradient),
        }
        let bucket = self.homes[parameter].bucket;
        if self.is_complete(bucket) {
            self.read(bucket)?;
        }
        if self.step.is_accumulating {
            return Ok(());
        }
        self.trace.taken(parameter);
        // A backward pass must not wait for ranks that may be waiting for it, in a layer that
        // exchanges something. What stays here leaves with the next gradient, or in the end.
        if !self.step.is_held && self.step.normalizer.is_ready() {
            self.send_complete()?;
        }
        Ok(())
    }

    /// Returns true if all gradients of a bucket have been taken; false without such a bucket.
    fn is_complete(&self, bucket: usize) -> bool {
        self.assignments.get(bucket).is_some_and(|assignment| {
            // The last one first: mostly it is the last to come.
            let mut parameters = assignment.parameters.iter().rev();
            parameters.all(|&parameter| self.parameters[parameter].taken)
        })
    }

    /// Reads the gradients of a bucket that are on a device, all in one go.
    pub(super) fn read(&mut self, bucket: usize) -> Result<(), TrainError> {
        let is_its = |(parameter, _): &mut (usize, _)| self.homes[*parameter].bucket == bucket;
        let (parameters, tensors): (Vec<_>, Vec<_>) = self.unread.extract_if(.., is_its).unzip();
        if tensors.is_empty() {
            return Ok(());
        }
        self.trace.read(bucket);
        let data = read_together(tensors).map_err(|cause| TrainError::UnreadableTensor {
            what: format!("a gradient of {}", self.name_of(bucket, &self.assignments[bucket])),
            cause,
        })?;
        let table = Arc::clone(&self.table);
        for (parameter, data) in parameters.into_iter().zip(&data) {
            let values = HostSlice::of(data).map(Gradient::Host);
            self.enter(parameter, Some(checked(&table, parameter, values)?));
        }
        Ok(())
    }

    /// Passes a gradient to its bucket, or marks it as missing.
    fn enter(&mut self, parameter: usize, gradient: Option<Gradient<'_>>) {
        let (home, scale) = (self.homes[parameter], self.step.scale);
        if !self.step.is_accumulating {
            self.parameters[parameter].present = self.buckets.put(home, gradient, scale);
        } else if let Some(gradient) = gradient {
            self.buckets.accumulate(home, gradient, scale);
        }
    }

    pub(super) fn send_complete(&mut self) -> Result<(), TrainError> {
        while self.is_complete(self.next) {
            let Step { normalizer, waited, scale, .. } = &mut self.step;
            let factor = waited.time(|| normalizer.factor())?;
            let scale = *scale;
            // With the last bucket all others are complete: it is known which parameters have a gradient.
            let flags = if self.next + 1 == self.assignments.len() {
                self.step_flags().flags()
            } else {
                Vec::new()
            };
            let compressor = &mut self.compressor;
            self.buckets.send(self.next, scale, factor, &flags, compressor)?;
            self.trace.sent(self.next);
            self.next += 1;
            self.fetch_lent()?;
        }
        Ok(())
    }

    /// Waits for the buckets that were sent first if more than [`LENT_MAX`] are in operations with memory that the
    /// next ones need. Not if layers exchange something: a rank there may wait for this one.
    fn fetch_lent(&mut self) -> Result<(), TrainError> {
        if self.step.exchanges {
            return Ok(());
        }
        let Step { waited, .. } = &mut self.step;
        let host = self.buckets.on_host();
        let sent = host.len().min(self.next);
        let sent = &mut host[..sent];
        let lent = sent.iter().filter(|bucket| bucket.is_lent()).count();
        let first = sent.iter_mut().filter(|bucket| bucket.is_lent());
        for bucket in first.take(lent.saturating_sub(LENT_MAX)) {
            let nowhere = |_| Presence::Nowhere;
            waited.time(|| bucket.receive(&mut self.compressor, nowhere))?;
        }
        Ok(())
    }
}
