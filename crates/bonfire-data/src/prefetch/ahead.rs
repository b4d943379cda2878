//! Batches that threads prepare in the order in which they are asked for.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use bonfire_collective::{Mutex, panic_message};

use super::Prefetch;
use crate::error::BoxError;

/// Batches in preparation, each with its caller's data. Once it is dropped, the threads end with the batch that each
/// has in hand.
#[derive(Debug)]
pub(crate) struct Ahead<A, B> {
    pending: VecDeque<Ordered<A, B>>,
    /// `None` once no more batches are needed.
    jobs: Option<Sender<Job<B>>>,
    /// Set when the rest is not needed any more.
    dropped: Arc<AtomicBool>,
    timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Ordered<A, B> {
    about: A,
    answer: Receiver<Result<B, BoxError>>,
}

struct Job<B> {
    indices: Vec<usize>,
    answer: SyncSender<Result<B, BoxError>>,
}

impl<A, B: Send + 'static> Ahead<A, B> {
    /// Starts the threads. `prepare` makes a batch of the indices of its samples.
    pub(crate) fn start(
        config: Prefetch,
        prepare: impl Fn(&[usize]) -> Result<B, BoxError> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job<B>>();
        let queue = Arc::new(Mutex::new(queue));
        let prepare = Arc::new(prepare);
        let ahead = Self {
            pending: VecDeque::new(),
            jobs: Some(jobs),
            dropped: Arc::new(AtomicBool::new(false)),
            timeout: config.timeout,
        };
        for worker in 0..config.workers.max(1) {
            let (queue, prepare) = (Arc::clone(&queue), Arc::clone(&prepare));
            let dropped = Arc::clone(&ahead.dropped);
            let prepare = move |indices: &[usize]| {
                if dropped.load(Ordering::Relaxed) {
                    Err("the receiver has gone".into())
                } else {
                    prepare(indices)
                }
            };
            // Not joined: a batch that hangs must not block the drop of the rest.
            thread::Builder::new()
                .name(format!("bonfire-data-{worker}"))
                .spawn(move || work(&queue, prepare))?;
        }
        Ok(ahead)
    }
}

impl<A, B> Ahead<A, B> {
    /// Requests one more batch. Nothing comes after [`close`](Self::close).
    pub(crate) fn order(&mut self, indices: Vec<usize>, about: A) {
        let Some(jobs) = &self.jobs else {
            return;
        };
        let (reply, answer) = sync_channel(1);
        self.pending.push_back(Ordered { about, answer });
        // Workers end only when this sender is gone.
        let _ = jobs.send(Job { indices, answer: reply });
    }

    pub(crate) fn close(&mut self) {
        self.jobs = None;
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Takes the batch that was requested first, ready or not.
    pub(crate) fn pop(&mut self) -> Option<Ordered<A, B>> {
        self.pending.pop_front()
    }

    pub(crate) fn wait(&self, ordered: Ordered<A, B>) -> (A, Result<B, BoxError>) {
        let Ordered { about, answer } = ordered;
        let batch = match answer.recv_timeout(self.timeout) {
            Ok(prepared) => prepared,
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("a batch took longer than {:?}", self.timeout).into())
            }
            Err(RecvTimeoutError::Disconnected) => Err("a worker has ended".into()),
        };
        (about, batch)
    }
}

impl<A, B> Drop for Ahead<A, B> {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

/// Prepares batches until there are no more. Drops a result that has no receiver any more.
fn work<B>(queue: &Mutex<Receiver<Job<B>>>, prepare: impl Fn(&[usize]) -> Result<B, BoxError>) {
    loop {
        let job = queue.lock().recv();
        let Ok(Job { indices, answer }) = job else {
            return;
        };
        let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&indices)));
        let _ = answer.send(prepared.unwrap_or_else(|panic| {
            Err(format!("preparing a batch panicked: {}", panic_message(&*panic)).into())
        }));
    }
}
