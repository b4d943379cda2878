//! Memory that others may still work with.

use std::thread;
use std::time::Duration;

/// Drops it when some time has passed; at once where no thread is to be had.
pub(crate) fn drop_later<T: Send + 'static>(memory: T, time: Duration) {
    let _ = thread::Builder::new().name("bonfire-cuda-free".to_owned()).spawn(move || {
        thread::sleep(time);
        drop(memory);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Instant;

    use super::*;

    struct Memory(Sender<Instant>);

    impl Drop for Memory {
        fn drop(&mut self) {
            self.0.send(Instant::now()).unwrap();
        }
    }

    #[test]
    fn what_is_kept_is_dropped_when_its_time_has_passed() {
        let time = Duration::from_millis(50);
        let (dropped, when) = channel();
        let begun = Instant::now();
        drop_later(Memory(dropped), time);
        let dropped = when.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(dropped.duration_since(begun) >= time);
    }
}
