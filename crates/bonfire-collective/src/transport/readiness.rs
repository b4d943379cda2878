//! Sleeping until one of many sockets has news, without a list made for every sleep.
//!
//! The kernel keeps the list (epoll). It tells of changes only (edge-triggered), once each, so a
//! socket whose bytes this rank has no room for does not end every sleep.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bonfire_plan::Rank;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stream::Stream;

/// Sockets that one look at the kernel's list can name; what is beyond comes at the next look.
const EVENTS_MAX: usize = 64;

/// The sockets of one rank.
#[derive(Debug)]
pub(super) struct Readiness {
    epoll: OwnedFd,
}

/// From whom something has come.
pub(super) struct News {
    events: [Event; EVENTS_MAX],
    count: usize,
}

impl Readiness {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        })
    }

    /// From now on, what comes from `peer` is news.
    pub(super) fn add(&self, peer: Rank, stream: &Stream) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(u64::from(peer.get()));
        Ok(epoll::add(&self.epoll, stream, data, flags)?)
    }

    /// Sleeps until there is news or `nap` is over.
    pub(super) fn sleep(&self, nap: Duration) -> News {
        let none = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [none; EVENTS_MAX];
        // A failed wait (a signal) is an empty one: the caller's loop looks again.
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&timespec(nap))).unwrap_or(0);
        News { events, count }
    }

    /// Sleeps until there is news, `writer` takes more bytes, or `nap` is over.
    pub(super) fn sleep_for_room(&self, writer: &Stream, nap: Duration) -> News {
        let mut interests = [
            PollFd::from_borrowed_fd(writer.as_fd(), PollFlags::OUT),
            PollFd::new(&self.epoll, PollFlags::IN),
        ];
        let _ = poll(&mut interests, Some(&timespec(nap)));
        self.sleep(Duration::ZERO)
    }
}

impl News {
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        let events = self.events[..self.count].iter();
        events.map(|event| Rank::new(event.data.u64() as u32))
    }
}

fn timespec(nap: Duration) -> Timespec {
    assert!(nap < Duration::from_secs(1), "a nap is short, got {nap:?}");
    Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(nap.subsec_nanos()),
    }
}
