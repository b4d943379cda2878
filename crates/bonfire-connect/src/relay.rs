//! A connection whose bytes a thread of its own moves between the kernel and blocks of memory.
//!
//! Sending and receiving cost a core far more than the copy from or to a block. So a rank with several connections to a
//! peer, and cores that nobody uses, gets more through them.
//!
//! [`Relay`] reads and writes as the connection itself would if it did not block: what would wait is `WouldBlock`, and
//! [`Socket`] reports news. A write is done when [`flush`](Write::flush) says that the kernel has all of it.

use std::io::{self, Read, Write};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::platform::clock;
use crate::platform::net::{self, Bell, Socket, SocketRef, Wanted};
use crate::platform::thread::{self, JoinHandle};
use crate::secure::stream::Stream;

/// As long as a piece of a chunk of the default size on four streams.
const BLOCK_BYTES: usize = 64 << 10;
/// Blocks of each direction: one that the thread moves, and some that wait.
const BLOCKS: usize = 4;
/// How long a thread looks for work before it sleeps: to wake it costs as much.
const SPIN: Duration = Duration::from_micros(50);
/// Every wait has a deadline; bells end sleeps.
const NAP_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Block {
    bytes: Box<[u8]>,
    /// Those that are still to be moved.
    rest: Range<usize>,
}

impl Block {
    fn new() -> Self {
        Self { bytes: vec![0; BLOCK_BYTES].into_boxed_slice(), rest: 0..0 }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.rest.clone()]
    }
}

#[derive(Debug)]
struct Shared {
    /// Rings when something has come, or the kernel has taken something.
    news: Bell,
    work: Bell,
    is_asleep: AtomicBool,
    is_closing: AtomicBool,
    /// Blocks of which the kernel has not taken all.
    unsent: AtomicUsize,
    fault: OnceLock<(io::ErrorKind, String)>,
}

impl Shared {
    fn wake(&self) {
        // Either the thread sees what was handed over before it sleeps, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.work.ring();
        }
    }

    /// Why the thread takes nothing any more.
    fn ended(&self) -> io::Error {
        let end = io::Error::from(io::ErrorKind::BrokenPipe);
        self.check().err().unwrap_or(end)
    }

    fn check(&self) -> io::Result<()> {
        match self.fault.get() {
            Some((kind, cause)) => Err(io::Error::new(*kind, cause.clone())),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    filled: Receiver<Block>,
    current: Option<Block>,
    emptied: SyncSender<Block>,
    outgoing: SyncSender<Block>,
    sent: Receiver<Block>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start(stream: Stream) -> io::Result<Self> {
        stream.set_nonblocking()?;
        let shared = Arc::new(Shared {
            news: Bell::new()?,
            work: Bell::new()?,
            is_asleep: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            unsent: AtomicUsize::new(0),
            fault: OnceLock::new(),
        });
        let (fill, filled) = sync_channel(BLOCKS);
        let (empty, emptied) = sync_channel(BLOCKS);
        let (outgoing, to_send) = sync_channel(BLOCKS);
        let (done, sent) = sync_channel(BLOCKS);
        for _ in 0..BLOCKS {
            for blocks in [&empty, &done] {
                blocks.try_send(Block::new()).expect("there is room");
            }
        }
        let mover = Mover {
            stream,
            filled: Some(fill),
            emptied,
            free: None,
            outgoing: to_send,
            sent: done,
            leaving: None,
            shared: LastNews(Arc::clone(&shared)),
        };
        Ok(Self {
            shared,
            filled,
            current: None,
            emptied: empty,
            outgoing,
            sent,
            thread: Some(thread::spawn("bonfire stream", || mover.run())?),
        })
    }
}

impl Socket for Relay {
    fn socket(&self) -> SocketRef<'_> {
        self.shared.news.socket()
    }
}

impl Read for Relay {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut came = 0;
        while came < bytes.len() {
            let mut block = match self.current.take() {
                Some(block) => block,
                None => match self.filled.try_recv() {
                    Ok(block) => block,
                    Err(_) if came > 0 => break,
                    Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                    // What came before the end was read.
                    Err(TryRecvError::Disconnected) => return self.shared.check().map(|()| 0),
                },
            };
            let count = block.rest.len().min(bytes.len() - came);
            bytes[came..came + count].copy_from_slice(&block.rest()[..count]);
            came += count;
            block.rest.start += count;
            if block.rest.is_empty() {
                // The thread may have ended.
                let _ = self.emptied.try_send(block);
                self.shared.wake();
            } else {
                self.current = Some(block)
            }
        }
        Ok(came)
    }
}

impl Write for Relay {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.check()?;
        let mut went = 0;
        while went < bytes.len() {
            let mut block = match self.sent.try_recv() {
                Ok(block) => block,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(self.shared.ended()),
            };
            let count = BLOCK_BYTES.min(bytes.len() - went);
            block.bytes[..count].copy_from_slice(&bytes[went..went + count]);
            block.rest = 0..count;
            self.shared.unsent.fetch_add(1, Ordering::Relaxed);
            if self.outgoing.try_send(block).is_err() {
                return Err(self.shared.ended());
            }
            went += count;
        }
        if went == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.shared.wake();
        Ok(went)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.shared.unsent.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.shared.check()?;
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.work.ring();
        if let Some(thread) = self.thread.take() {
            // It never waits for the peer. Whatever went wrong in it, the connection has ended.
            let _ = thread.join();
        }
    }
}

struct Mover {
    stream: Stream,
    /// Nothing after the end of the stream.
    filled: Option<SyncSender<Block>>,
    emptied: Receiver<Block>,
    free: Option<Block>,
    outgoing: Receiver<Block>,
    sent: SyncSender<Block>,
    leaving: Option<Block>,
    /// Dropped last, however the thread ends: a reader of the news finds that nothing more comes.
    shared: LastNews,
}

/// What both sides see, and news when the thread has ended.
struct LastNews(Arc<Shared>);

impl Deref for LastNews {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for LastNews {
    fn drop(&mut self) {
        self.0.news.ring();
    }
}

impl Mover {
    fn run(mut self) {
        let mut idle_since = None;
        while !self.shared.is_closing.load(Ordering::Acquire) {
            match self.turn() {
                Ok(true) => idle_since = None,
                Ok(false) => {
                    let since = *idle_since.get_or_insert_with(clock::now);
                    if clock::since(since) < SPIN { thread::yield_now() } else { self.sleep() }
                }
                Err(error) => {
                    let fault = (error.kind(), error.to_string());
                    self.shared.fault.get_or_init(|| fault);
                    break;
                }
            }
        }
    }

    /// Moves what can be moved without waiting; whether that was anything.
    fn turn(&mut self) -> io::Result<bool> {
        self.take();
        Ok(self.send()? | self.receive()?)
    }

    /// Takes blocks that were handed over; whether there were any.
    fn take(&mut self) -> bool {
        let mut took = false;
        for (place, blocks) in
            [(&mut self.leaving, &self.outgoing), (&mut self.free, &self.emptied)]
        {
            if place.is_none() {
                *place = blocks.try_recv().ok();
                took |= place.is_some();
            }
        }
        took
    }

    fn send(&mut self) -> io::Result<bool> {
        let Some(block) = &mut self.leaving else {
            return Ok(false);
        };
        let mut moved = false;
        if !block.rest.is_empty() {
            let Some(count) = ready(self.stream.write(block.rest()))? else {
                return Ok(false);
            };
            block.rest.start += count;
            moved = true;
        }
        // An encrypted stream may hold the end of it back.
        if block.rest.is_empty() && ready(self.stream.flush())?.is_some() {
            if let Some(block) = self.leaving.take() {
                let _ = self.sent.try_send(block);
            }
            self.shared.unsent.fetch_sub(1, Ordering::Release);
            self.shared.news.ring();
            moved = true;
        }
        Ok(moved)
    }

    fn receive(&mut self) -> io::Result<bool> {
        let (Some(filled), Some(block)) = (&self.filled, &mut self.free) else {
            return Ok(false);
        };
        let Some(count) = ready(self.stream.read(&mut block.bytes))? else {
            return Ok(false);
        };
        block.rest = 0..count;
        match self.free.take() {
            Some(block) if count > 0 => {
                let _ = filled.try_send(block);
            }
            _ => self.filled = None,
        }
        self.shared.news.ring();
        Ok(true)
    }

    fn sleep(&mut self) {
        self.shared.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // What was handed over since the last look is looked at first: an encrypted stream may have read more than it gave.
        if !self.take() {
            let wanted = Wanted {
                reads: self.filled.is_some() && self.free.is_some(),
                writes: self.leaving.is_some(),
            };
            net::await_turn(&self.stream, wanted, &self.shared.work, NAP_MAX);
        }
        self.shared.is_asleep.store(false, Ordering::Relaxed);
    }
}

/// Nothing where the call would have to wait.
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::platform::net::{Edges, UnixStream};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn ends() -> (Relay, Relay) {
        let (one, other) = UnixStream::pair().unwrap();
        let [one, other] = [one, other].map(|end| Relay::start(Stream::Unix(end)).unwrap());
        (one, other)
    }

    /// Moves bytes until all are there, sleeping until either end has news where nothing moves.
    fn exchange(one: &mut Relay, other: &mut Relay, bytes: &[u8], part: usize) -> Vec<u8> {
        let started = Instant::now();
        let (mut went, mut came) = (0, Vec::new());
        let mut buffer = vec![0; 100_000];
        let edges = Edges::new().unwrap();
        edges.add(0, one).unwrap();
        edges.add(1, other).unwrap();
        while came.len() < bytes.len() {
            assert!(started.elapsed() < LIMIT, "{went} went, {} came", came.len());
            let end = bytes.len().min(went + part);
            went += ready(one.write(&bytes[went..end])).unwrap().unwrap_or(0);
            match ready(other.read(&mut buffer)).unwrap() {
                Some(0) => panic!("the end after {}", came.len()),
                Some(count) => came.extend_from_slice(&buffer[..count]),
                None => {
                    // Longer than a test may take, were there no news.
                    edges.sleep(2 * LIMIT);
                }
            }
        }
        while ready(one.flush()).unwrap().is_none() {
            assert!(started.elapsed() < LIMIT, "never flushed");
        }
        came
    }

    #[test]
    fn bytes_come_in_order_both_ways() {
        let (mut one, mut other) = ends();
        let bytes: Vec<u8> =
            (0..3_000_000_u32).map(|index| (index.wrapping_mul(7919) >> 8) as u8).collect();
        for part in [1, 1000, BLOCK_BYTES, 1_000_000] {
            let few = &bytes[..bytes.len().min(part * 1000)];
            assert!(exchange(&mut one, &mut other, few, part) == few, "{part}");
            assert!(exchange(&mut other, &mut one, few, part) == few, "{part}");
            // The threads sleep meanwhile.
            std::thread::sleep(SPIN * 20);
        }
    }

    #[test]
    fn what_came_before_the_end_is_read() {
        let (mut one, mut other) = ends();
        assert_eq!(one.write(b"the last").unwrap(), 8);
        while ready(one.flush()).unwrap().is_none() {}
        drop(one);
        let (mut came, mut buffer) = (Vec::new(), [0; 3]);
        loop {
            match ready(other.read(&mut buffer)).unwrap() {
                Some(0) => break,
                Some(count) => came.extend_from_slice(&buffer[..count]),
                None => thread::yield_now(),
            }
        }
        assert_eq!(came, b"the last");
    }

    #[test]
    fn a_write_to_nobody_is_an_error() {
        let (mut one, other) = ends();
        drop(other);
        let started = Instant::now();
        let error = loop {
            assert!(started.elapsed() < LIMIT, "no error");
            match one.write(&[1; 1000]) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => break error,
                _ => thread::yield_now(),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    /// A peer that reads nothing does not keep the thread.
    #[test]
    fn the_thread_ends_with_bytes_under_way() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut one = Relay::start(Stream::Unix(one)).unwrap();
        let started = Instant::now();
        // Until the kernel has no room, and the thread waits for it.
        while one.write(&[1; BLOCK_BYTES]).is_ok() || !one.shared.is_asleep.load(Ordering::Relaxed)
        {
            assert!(started.elapsed() < LIMIT, "there is always room");
        }
        assert!(ready(one.flush()).unwrap().is_none());
        drop(one);
        drop(other);
    }
}
