//! Sleeping until one of many sockets has news, without a list made for every sleep.
//!
//! The kernel keeps the list (epoll). It reports changes only (edge-triggered), once each, so a
//! socket whose bytes this rank has no room for does not end every sleep.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use smallvec::SmallVec;

use super::{Socket, timespec};

/// Sockets that one look at the kernel's list can name; what is beyond comes at the next look.
const EVENTS_MAX: usize = 64;
/// Sockets that are waited for at one time to take more bytes; more would take memory from the allocator.
const WRITERS_MAX: usize = 16;

#[derive(Debug)]
pub struct Edges {
    epoll: OwnedFd,
}

pub struct News {
    events: [Event; EVENTS_MAX],
    count: usize,
}

impl Edges {
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// From now on, what comes on `socket` is news of `number`.
    pub fn add(&self, number: u64, socket: &impl Socket) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, socket.socket(), data, flags)?)
    }

    pub fn sleep(&self, nap: Duration) -> News {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; EVENTS_MAX];
        // A failed wait (a signal) is an empty one: the caller's loop looks again.
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&timespec(nap))).unwrap_or(0);
        News { events, count }
    }

    /// Sleeps until there is news, one of `writers` takes more bytes, or `nap` is over.
    pub fn sleep_for_room<'a, S: Socket + 'a>(
        &'a self,
        writers: impl Iterator<Item = &'a S>,
        nap: Duration,
    ) -> News {
        let mut interests: SmallVec<[PollFd<'a>; WRITERS_MAX + 1]> = SmallVec::new();
        interests.push(PollFd::new(&self.epoll, PollFlags::IN));
        interests.extend(
            writers.map(|writer| PollFd::from_borrowed_fd(writer.socket(), PollFlags::OUT)),
        );
        let _ = poll(&mut interests, Some(&timespec(nap)));
        self.sleep(Duration::ZERO)
    }
}

impl News {
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        let events = self.events[..self.count].iter();
        events.map(|event| event.data.u64())
    }
}
