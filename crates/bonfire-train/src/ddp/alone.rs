//! Steps of a rank that trains alone.

use std::time::Instant;

use burn::module::Module;

use super::Ddp;
use super::pass::Start;
use crate::loss::Weight;
use crate::reducer::collect::own;
use crate::{Gradients, TrainError};

impl<M: Module> Ddp<M> {
    /// Returns true if the gradients of the next batch are the averages: there is no other rank, no earlier
    /// micro-batch to add to them, and no parameter elsewhere than its gradient.
    pub(super) fn is_alone(&self) -> bool {
        let is_one = self.group.world_size().get() == 1;
        is_one && self.micro_batches.is_empty() && !self.shards.are_offloaded()
    }

    /// Gradients that stay where they are: without a copy, and without waiting for the device.
    pub(super) fn step_alone(
        &mut self,
        start: Start,
        begin: Instant,
    ) -> Result<Gradients, TrainError> {
        if start.weight == Weight::Samples(0) {
            return Err(TrainError::NoSamples);
        }
        let gradients = start.backward(self.module())?;
        self.norm_groups.end_step()?;
        let own = own(self.module(), &self.table, gradients);
        self.forward_backward += begin.elapsed();
        Ok(own)
    }
}
