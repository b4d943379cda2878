//! Steps of a rank that has nobody to average with.

use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;

use super::{Ddp, counts};
use crate::TrainError;
use crate::loss::{IntoLoss, Weight};
use crate::reducer::harvest::own;
use crate::reducer::hooks::Listener;

impl<M: Module> Ddp<M> {
    /// Whether the gradients of the next batch are the averages: there is no other rank, and no earlier
    /// micro-batch to add to them.
    pub(super) fn is_alone(&self) -> bool {
        self.group.world_size().get() == 1 && self.micro_batches.is_empty()
    }

    /// A step whose gradients stay where they are: nothing is copied, and the device is not waited for.
    pub(super) fn step_alone<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
        start: Instant,
    ) -> Result<GradientsParams, TrainError> {
        let loss = self.loss(forward, &Listener::Nobody)?;
        if loss.weight == Weight::Samples(0) {
            return Err(TrainError::NoSamples);
        }
        let gradients = counts(&loss).then(|| loss.tensor.backward());
        self.norm_groups.end_step()?;
        let own = own(self.module(), &self.table, gradients);
        self.forward_backward += start.elapsed();
        Ok(own)
    }
}
