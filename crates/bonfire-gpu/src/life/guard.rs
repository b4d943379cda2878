//! Who looks after a rank's device when the rank itself cannot.
//!
//! A rank that has queued an operation continues, and may come to a call of the driver that waits
//! for its device: to load a kernel, to free memory. The device waits for other ranks. If one of
//! those has failed, nothing would end the wait: this thread looks, and ends it as the rank would.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Between two looks: how long a failure may go unnoticed.
const LOOK: Duration = Duration::from_millis(20);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    pub(crate) fn start(mut look: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().name("bonfire-cuda-guard".to_owned()).spawn(move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                look();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_guard_looks_until_it_is_dropped() {
        let looks = Arc::new(AtomicU32::new(0));
        let guard = Guard::start({
            let looks = Arc::clone(&looks);
            move || {
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        let guard = guard.unwrap();
        while looks.load(Ordering::Relaxed) < 3 {
            thread::sleep(LOOK);
        }
        drop(guard);
        assert_eq!(Arc::strong_count(&looks), 1, "its thread has ended");
    }
}
