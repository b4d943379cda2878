//! A rank's batches of an epoch with their numbers of samples, one ahead; and all ranks' progress in a split of data.

use std::collections::VecDeque;

use burn::data::dataloader::{DataLoaderIterator, Progress};

use crate::error::LearnerError;
use crate::local_batches::LocalBatches;
use crate::local_batches::step_agreement::StepAgreement;

pub(crate) struct Batch<O> {
    pub(crate) item: O,
    pub(crate) samples: usize,
}

/// The batches that are left. Looks one ahead, so that it is known before a step if another follows.
pub(crate) struct Batches<'a, O> {
    /// `None` once it has ended.
    iterator: Option<Box<dyn DataLoaderIterator<O> + 'a>>,
    ahead: VecDeque<Batch<O>>,
    /// Number of items that the iterator reports so far.
    counted: usize,
}

impl<'a, O> Batches<'a, O> {
    pub(crate) fn of(local: &'a LocalBatches<O>) -> Self {
        Self {
            iterator: local.loader.as_ref().map(|loader| loader.iter()),
            ahead: VecDeque::with_capacity(2),
            counted: 0,
        }
    }

    /// The next batch, if there is one, and whether another follows.
    pub(crate) fn next(&mut self) -> Result<(Option<Batch<O>>, bool), LearnerError> {
        while self.ahead.len() < 2
            && let Some(batch) = self.fetch()?
        {
            self.ahead.push_back(batch);
        }
        let batch = self.ahead.pop_front();
        Ok((batch, !self.ahead.is_empty()))
    }

    fn fetch(&mut self) -> Result<Option<Batch<O>>, LearnerError> {
        let Some(iterator) = &mut self.iterator else {
            return Ok(None);
        };
        let Some(item) = iterator.next() else {
            self.iterator = None;
            return Ok(None);
        };
        let item = item.map_err(LearnerError::Dataset)?;
        let counted = iterator.progress().items_processed;
        let samples = counted.saturating_sub(self.counted);
        if samples == 0 {
            return Err(LearnerError::Uncounted);
        }
        self.counted = counted;
        Ok(Some(Batch { item, samples }))
    }
}

/// The remaining batches of this rank, and the progress of all ranks.
pub(crate) struct Split<'a, O> {
    pub(crate) batches: Batches<'a, O>,
    /// Samples of all ranks, done and to do.
    processed: usize,
    total: usize,
    /// Steps done by all ranks together.
    pub(crate) iteration: usize,
}

pub(crate) struct Turn<O> {
    /// This rank's batch, if it has one left.
    pub(crate) batch: Option<Batch<O>>,
    pub(crate) agreement: StepAgreement,
}

impl<'a, O> Split<'a, O> {
    pub(crate) fn of(local: &'a LocalBatches<O>) -> Self {
        Self { batches: Batches::of(local), processed: 0, total: local.total, iteration: 0 }
    }

    pub(crate) fn advance(&mut self, samples: usize) {
        self.processed += samples;
        self.iteration += 1;
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress::new(self.processed, self.total, Some("items".to_owned()))
    }
}
