//! A split of the data, step by step through all ranks.

use burn::data::dataloader::Progress;

use crate::local_batches::LocalBatches;
use crate::local_batches::batches::{Batch, Batches};
use crate::local_batches::step_agreement::StepAgreement;

/// The remaining batches of this rank, and the progress of all ranks.
pub(crate) struct Split<'a, O> {
    pub(crate) batches: Batches<'a, O>,
    /// Samples of all ranks, done and to do.
    processed: usize,
    total: usize,
    /// Steps done by all ranks together.
    iteration: usize,
}

pub(crate) struct Turn<O> {
    /// This rank's batch, if it has one left.
    pub(crate) batch: Option<Batch<O>>,
    pub(crate) agreement: StepAgreement,
}

impl<'a, O> Split<'a, O> {
    pub(crate) fn of(local: &'a LocalBatches<O>) -> Self {
        Self {
            batches: Batches::of(local),
            processed: 0,
            total: local.total,
            iteration: 0,
        }
    }

    pub(crate) fn advance(&mut self, samples: usize) {
        self.processed += samples;
        self.iteration += 1;
    }

    pub(crate) fn iteration(&self) -> usize {
        self.iteration
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress::new(self.processed, self.total, Some("items".to_owned()))
    }
}
