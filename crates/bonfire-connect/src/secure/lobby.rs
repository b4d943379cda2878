//! Connections that have proved nothing yet: how many there may be, and for how long.
//!
//! A stranger who connects again and again, or says nothing, or says it slowly, costs a place here
//! and keeps nobody out: the one who has waited longest makes room for the next. A rank of the job
//! needs its place while two messages are in flight, and tries again when it has lost it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use crate::platform::clock;
use crate::platform::net::{Handle, Socket, TcpStream};
use crate::platform::sync::Mutex;

/// Connections that may be about to prove themselves at one time: more than the ranks of a large job
/// that come in one moment need, few enough that their threads and descriptors cost little.
pub(crate) const UNPROVEN_MAX: usize = 128;

#[derive(Debug, Default)]
pub struct Lobby {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// In the order in which they came.
    connections: BTreeMap<u64, Handle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a place is taken until it is left"]
pub struct Place(u64);

impl Lobby {
    /// Takes a place, if need be that of the connection that has waited longest, which is ended.
    pub fn enter(&self, stream: &impl Socket) -> io::Result<Place> {
        let handle = Handle::of(stream)?;
        let mut waiting = self.waiting.lock();
        if waiting.connections.len() >= UNPROVEN_MAX
            && let Some((_, oldest)) = waiting.connections.pop_first()
        {
            oldest.hang_up();
        }
        let place = waiting.next;
        waiting.next += 1;
        waiting.connections.insert(place, handle);
        Ok(Place(place))
    }

    pub fn leave(&self, place: Place) {
        self.waiting.lock().connections.remove(&place.0);
    }

    pub fn clear(&self) {
        for connection in self.waiting.lock().connections.values() {
            connection.hang_up();
        }
    }
}

/// A connection whose waits can be limited.
pub trait Limited: Read + Write {
    fn limit(&self, timeout: Duration) -> io::Result<()>;
}

/// A connection on which everything must be over at a set time, however little comes at once.
#[derive(Debug)]
pub struct Hurried<'a, S> {
    stream: &'a mut S,
    end: Instant,
}

impl<'a, S: Limited> Hurried<'a, S> {
    /// Gives all that follows so much time together.
    pub fn new(stream: &'a mut S, timeout: Duration) -> Self {
        let end = clock::now() + timeout;
        Self { stream, end }
    }

    fn limit(&self) -> io::Result<()> {
        let left = self.end.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.limit(left)
    }
}

impl<S: Limited> Read for Hurried<'_, S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        self.stream.read(bytes)
    }
}

impl<S: Limited> Write for Hurried<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Limited for TcpStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::net::UnixStream;

    impl Limited for UnixStream {
        fn limit(&self, timeout: Duration) -> io::Result<()> {
            self.set_read_timeout(Some(timeout))
        }
    }

    #[test]
    fn who_has_waited_longest_makes_room() {
        let lobby = Lobby::default();
        let mut pairs: Vec<_> = (0..=UNPROVEN_MAX).map(|_| UnixStream::pair().unwrap()).collect();
        let places: Vec<Place> = pairs.iter().map(|(near, _)| lobby.enter(near).unwrap()).collect();
        let mut byte = [0];
        assert_eq!(pairs[0].1.read(&mut byte).unwrap(), 0, "the first was ended");
        pairs[1].0.write_all(b"x").unwrap();
        assert_eq!(pairs[1].1.read(&mut byte).unwrap(), 1, "the second was not");
        // Who has left is not ended any more.
        lobby.leave(places[1]);
        lobby.clear();
        pairs[1].0.write_all(b"y").unwrap();
        assert_eq!(pairs[1].1.read(&mut byte).unwrap(), 1);
        assert_eq!(pairs[2].1.read(&mut byte).unwrap(), 0, "all others were ended");
    }

    #[test]
    fn a_slow_talker_gets_no_more_time_than_a_silent_one() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let talker = std::thread::spawn(move || {
            // A byte well within the limit of one read, until the other end is gone.
            while far.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut all = [0; 1 << 20];
        let error =
            Hurried::new(&mut near, Duration::from_millis(150)).read_exact(&mut all).unwrap_err();
        assert!(
            matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
            "{error}"
        );
        drop(near);
        talker.join().unwrap();
    }
}
