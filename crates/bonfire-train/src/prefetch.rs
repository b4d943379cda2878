//! Batches made ready by threads, ahead of the training that uses them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::BoxError;
use crate::panic::panic_message;
use crate::{EpochBatches, SamplerState, TrainError};

/// How batches are prepared ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// Threads that prepare them, at least one.
    pub workers: usize,
    /// Batches that are ready or being prepared at any time, at least one per worker.
    pub depth: usize,
    /// How long one batch may take before it is an error.
    pub timeout: Duration,
}

impl Default for Prefetch {
    /// Two workers, two batches each, and five minutes.
    fn default() -> Self {
        Self {
            workers: 2,
            depth: 4,
            timeout: Duration::from_secs(300),
        }
    }
}

/// A batch that a worker has prepared.
#[derive(Clone, Debug)]
pub struct Prepared<B> {
    /// What was made of the samples.
    pub batch: B,
    /// Which samples.
    pub indices: Vec<usize>,
    /// How far all ranks are once each has used this batch, for a checkpoint.
    pub state: SamplerState,
}

/// The batches of an epoch in their order, prepared by threads. Once it is dropped, they end with the
/// batch that each has in hand.
#[derive(Debug)]
pub struct Prefetched<B> {
    batches: EpochBatches,
    pending: VecDeque<Pending<B>>,
    /// Gone once nothing more is to be prepared.
    jobs: Option<Sender<Job<B>>>,
    /// Set when nobody wants the rest.
    dropped: Arc<AtomicBool>,
    timeout: Duration,
}

#[derive(Debug)]
struct Pending<B> {
    indices: Vec<usize>,
    state: SamplerState,
    answer: Receiver<Result<B, BoxError>>,
}

struct Job<B> {
    indices: Vec<usize>,
    answer: SyncSender<Result<B, BoxError>>,
}

impl EpochBatches {
    /// Prepares batches on threads: `prepare` makes one of the indices of its samples, wherever they
    /// come from, and may put it on the rank's device. The order of the batches does not depend on
    /// which worker is faster.
    ///
    /// # Errors
    /// [`TrainError::Data`] if the system starts no thread.
    pub fn prefetch<B, E>(
        self,
        config: Prefetch,
        prepare: impl Fn(&[usize]) -> Result<B, E> + Send + Sync + 'static,
    ) -> Result<Prefetched<B>, TrainError>
    where
        B: Send + 'static,
        E: Into<BoxError>,
    {
        let workers = config.workers.max(1);
        let (jobs, queue) = channel::<Job<B>>();
        let queue = Arc::new(Mutex::new(queue));
        let prepare = Arc::new(prepare);
        let mut prefetched = Prefetched {
            batches: self,
            pending: VecDeque::new(),
            jobs: Some(jobs),
            dropped: Arc::new(AtomicBool::new(false)),
            timeout: config.timeout,
        };
        for worker in 0..workers {
            let (queue, prepare) = (Arc::clone(&queue), Arc::clone(&prepare));
            let dropped = Arc::clone(&prefetched.dropped);
            let prepare = move |indices: &[usize]| match dropped.load(Ordering::Relaxed) {
                true => Err("nobody wants it any more".into()),
                false => prepare(indices).map_err(Into::into),
            };
            // Not joined: a batch that hangs must not hang whoever drops the rest.
            thread::Builder::new()
                .name(format!("bonfire-data-{worker}"))
                .spawn(move || work(&queue, prepare))
                .map_err(|source| TrainError::Data(source.into()))?;
        }
        for _ in 0..config.depth.max(workers) {
            prefetched.order_one();
        }
        Ok(prefetched)
    }
}

impl<B> Prefetched<B> {
    /// Asks for one more batch, if there is one.
    fn order_one(&mut self) {
        let Some(indices) = self.batches.next() else {
            self.jobs = None;
            return;
        };
        let Some(jobs) = &self.jobs else {
            return;
        };
        let (reply, answer) = sync_channel(1);
        self.pending.push_back(Pending {
            indices: indices.clone(),
            state: self.batches.state(),
            answer,
        });
        // Workers end only when this sender is gone.
        let _ = jobs.send(Job {
            indices,
            answer: reply,
        });
    }
}

impl<B> Iterator for Prefetched<B> {
    type Item = Result<Prepared<B>, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Pending {
            indices,
            state,
            answer,
        } = self.pending.pop_front()?;
        self.order_one();
        let batch = match answer.recv_timeout(self.timeout) {
            Ok(Ok(batch)) => batch,
            Ok(Err(error)) => return Some(Err(TrainError::Data(error))),
            Err(RecvTimeoutError::Timeout) => {
                let timeout = self.timeout;
                let error = format!("a batch took longer than {timeout:?}");
                return Some(Err(TrainError::Data(error.into())));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err(TrainError::Data("a worker has ended".into())));
            }
        };
        Some(Ok(Prepared {
            batch,
            indices,
            state,
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.pending.len() + self.batches.len();
        (left, Some(left))
    }
}

impl<B> ExactSizeIterator for Prefetched<B> {}

impl<B> Drop for Prefetched<B> {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

/// Prepares batches until there are no more. An answer that nobody waits for any more is dropped.
fn work<B>(queue: &Mutex<Receiver<Job<B>>>, prepare: impl Fn(&[usize]) -> Result<B, BoxError>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { indices, answer }) = job else {
            return;
        };
        let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&indices)));
        let _ = answer.send(prepared.unwrap_or_else(|panic| {
            Err(format!("preparing a batch panicked: {}", panic_message(&*panic)).into())
        }));
    }
}

#[cfg(test)]
mod tests;
