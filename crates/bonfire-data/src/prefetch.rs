//! Batches made ready by threads, ahead of the training that uses them.

mod ahead;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::{DataError, EpochBatches, SamplerState};

pub(crate) use ahead::Ahead;

/// Options of preparing batches ahead: threads, depth and timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Prefetch {
    /// Threads that prepare them, at least one.
    pub workers: usize,
    /// Batches that are ready or being prepared at any time, at least one per worker.
    pub depth: usize,
    /// The timeout of one batch; a longer wait is an error.
    pub timeout: Duration,
}

impl Prefetch {
    /// Sets the number of threads; each prepares two batches ahead.
    #[must_use]
    pub fn with_workers(mut self, workers: usize) -> Self {
        (self.workers, self.depth) = (workers, 2 * workers);
        self
    }

    /// Sets the number of batches that are ready or being prepared.
    #[must_use]
    pub fn with_depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the timeout of one batch.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.depth.max(self.workers).max(1)
    }
}

impl Default for Prefetch {
    fn default() -> Self {
        Self { workers: 2, depth: 4, timeout: Duration::from_secs(300) }
    }
}

/// A batch that a worker has prepared.
#[derive(Clone, Debug)]
pub struct Prepared<B> {
    /// The batch that `prepare` made of the samples.
    pub batch: B,
    /// The indices of the samples.
    pub indices: Vec<usize>,
    /// The progress of all ranks once each has used this batch, for a checkpoint.
    pub state: SamplerState,
}

/// The batches of an epoch in their order, prepared by threads. Once it is dropped, they end with the
/// batch that each has in hand.
#[derive(Debug)]
pub struct Prefetched<B> {
    batches: EpochBatches,
    ahead: Ahead<(Vec<usize>, SamplerState), B>,
}

impl EpochBatches {
    /// Prepares batches on threads: `prepare` makes one of the indices of its samples, wherever they come from, and
    /// may put it on the rank's device. The order of the batches does not depend on which worker is faster.
    ///
    /// # Errors
    /// [`DataError::Batch`] if a thread cannot be spawned.
    pub fn prefetch<B, E>(
        self,
        config: Prefetch,
        prepare: impl Fn(&[usize]) -> Result<B, E> + Send + Sync + 'static,
    ) -> Result<Prefetched<B>, DataError>
    where
        B: Send + 'static,
        E: Into<BoxError>,
    {
        let prepare = move |indices: &[usize]| prepare(indices).map_err(Into::into);
        let mut prefetched = Prefetched {
            batches: self,
            ahead: Ahead::start(config, prepare).map_err(|error| DataError::Batch(error.into()))?,
        };
        for _ in 0..config.in_flight() {
            prefetched.order_one();
        }
        Ok(prefetched)
    }
}

impl<B> Prefetched<B> {
    fn order_one(&mut self) {
        match self.batches.next() {
            Some(indices) => {
                let about = (indices.clone(), self.batches.state());
                self.ahead.order(indices, about);
            }
            None => self.ahead.close(),
        }
    }
}

impl<B> Iterator for Prefetched<B> {
    type Item = Result<Prepared<B>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let ordered = self.ahead.pop()?;
        self.order_one();
        let ((indices, state), batch) = self.ahead.wait(ordered);
        let batch = batch.map_err(DataError::Batch);
        Some(batch.map(|batch| Prepared { batch, indices, state }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.ahead.len() + self.batches.len();
        (left, Some(left))
    }
}

impl<B> ExactSizeIterator for Prefetched<B> {}

#[cfg(test)]
mod tests;
