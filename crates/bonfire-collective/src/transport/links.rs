//! All links of one rank, and the waits on them.

use std::time::Duration;

use bonfire_plan::wire::HEADER_BYTES;
use bonfire_plan::{Rank, WorldSize};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::memory::MemoryLink;
use super::socket::SocketLink;
use crate::patience::{Interrupt, NAP_MAX, Patience};

/// While a rank naps on shared memory it still moves the bytes of its sockets this often, because a
/// third rank may need them before the second can go on.
const MIXED_NAP: Duration = Duration::from_millis(1);

/// One link failed or a wait on it ended.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// See [`Interrupt`].
    Interrupted(Interrupt),
    /// The peer's end is closed.
    Ended,
    /// The stream is unusable; the text says why.
    Broken(String),
}

impl From<Interrupt> for LinkError {
    fn from(interrupt: Interrupt) -> Self {
        Self::Interrupted(interrupt)
    }
}

#[derive(Debug)]
enum Link {
    Memory(MemoryLink),
    Socket(Box<SocketLink>),
}

/// What a wait on a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A frame from the peer.
    Frame,
    /// Room for a frame to the peer.
    Room,
}

/// The links of one rank to all its peers.
#[derive(Debug)]
pub(crate) struct Links {
    by_rank: Vec<Option<Link>>,
    sockets: Vec<Rank>,
}

impl Links {
    /// No links yet; every peer needs one before the first operation.
    pub(crate) fn new(me: Rank, world_size: WorldSize) -> Self {
        assert!(
            world_size.contains(me),
            "rank {me} in a world of {}",
            world_size.get()
        );
        Self {
            by_rank: world_size.ranks().map(|_| None).collect(),
            sockets: Vec::new(),
        }
    }

    pub(crate) fn add_memory(&mut self, peer: Rank, link: MemoryLink) {
        self.by_rank[peer.index()] = Some(Link::Memory(link));
    }

    pub(crate) fn add_socket(&mut self, peer: Rank, link: SocketLink) {
        self.by_rank[peer.index()] = Some(Link::Socket(Box::new(link)));
        self.sockets.push(peer);
    }

    fn link(&self, peer: Rank) -> &Link {
        self.by_rank[peer.index()]
            .as_ref()
            .expect("set-up made a link to every peer")
    }

    fn link_mut(&mut self, peer: Rank) -> &mut Link {
        self.by_rank[peer.index()]
            .as_mut()
            .expect("set-up made a link to every peer")
    }

    /// Sends a frame to `peer`. When this returns, the payload may be changed; the peer sees the
    /// frame after those put before it, with everything this rank wrote before.
    pub(crate) fn put(
        &mut self,
        peer: Rank,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        patience: &Patience<'_>,
    ) -> Result<(), LinkError> {
        let mut sent = 0;
        let mut looks = 0;
        loop {
            let departed = patience.has_departed(peer);
            let done = match self.link_mut(peer) {
                Link::Memory(link) => link.try_put(header, payload),
                Link::Socket(link) => {
                    sent = link.send(header, payload, sent)?;
                    sent == HEADER_BYTES + payload.len()
                }
            };
            if done {
                return Ok(());
            }
            patience.check(departed)?;
            self.pass_time(peer, Need::Room, &mut looks, patience)?;
        }
    }

    /// Waits until there is a frame from `peer`.
    pub(crate) fn wait(&mut self, peer: Rank, patience: &Patience<'_>) -> Result<(), LinkError> {
        let mut looks = 0;
        loop {
            let departed = patience.has_departed(peer);
            if self.front(peer).is_some() {
                return Ok(());
            }
            if let Link::Socket(link) = self.link_mut(peer) {
                link.receive()?;
                if link.front().is_some() {
                    return Ok(());
                }
                if link.has_ended() {
                    return Err(LinkError::Ended);
                }
            }
            patience.check(departed)?;
            self.pass_time(peer, Need::Frame, &mut looks, patience)?;
        }
    }

    /// The oldest frame from `peer`: header and payload.
    pub(crate) fn front(&self, peer: Rank) -> Option<&[u8]> {
        match self.link(peer) {
            Link::Memory(link) => link.inbox.front(),
            Link::Socket(link) => link.front(),
        }
    }

    /// Gives the slot of the oldest frame from `peer` back.
    pub(crate) fn release(&mut self, peer: Rank) {
        match self.link_mut(peer) {
            Link::Memory(link) => link.inbox.release(),
            Link::Socket(link) => link.release(),
        }
    }

    /// Spins at first if the caller is eager, then sleeps until something may have happened.
    fn pass_time(
        &mut self,
        peer: Rank,
        need: Need,
        looks: &mut u32,
        patience: &Patience<'_>,
    ) -> Result<(), LinkError> {
        *looks = looks.saturating_add(1);
        let spinning = *looks <= patience.spins();
        match (self.link(peer), need) {
            (Link::Memory(_), _) if spinning => {
                std::hint::spin_loop();
                Ok(())
            }
            (Link::Memory(link), need) => {
                let nap = if self.sockets.is_empty() {
                    NAP_MAX
                } else {
                    MIXED_NAP
                };
                match need {
                    Need::Frame => link.inbox.sleep(nap),
                    Need::Room => link.outbox.sleep(nap),
                }
                self.move_bytes(None, Duration::ZERO)
            }
            (Link::Socket(_), need) => {
                let writer = (need == Need::Room).then_some(peer);
                // A poll costs more than a look at memory, so spin fewer times.
                let nap = if spinning && *looks <= patience.spins() / 20 {
                    Duration::ZERO
                } else {
                    NAP_MAX
                };
                self.move_bytes(writer, nap)
            }
        }
    }

    /// Waits up to `nap` for a socket to become readable, or `writer`'s to take more, and reads what
    /// there is into the free slots.
    fn move_bytes(&mut self, writer: Option<Rank>, nap: Duration) -> Result<(), LinkError> {
        if self.sockets.is_empty() {
            return Ok(());
        }
        let mut readable: Vec<Rank> = Vec::with_capacity(self.sockets.len());
        {
            let mut ranks: Vec<Rank> = Vec::with_capacity(self.sockets.len());
            let mut interests: Vec<PollFd<'_>> = Vec::with_capacity(self.sockets.len());
            for rank in &self.sockets {
                let Link::Socket(link) = self.link(*rank) else {
                    continue;
                };
                let mut flags = PollFlags::empty();
                if link.wants_bytes() {
                    flags |= PollFlags::IN;
                }
                if writer == Some(*rank) {
                    flags |= PollFlags::OUT;
                }
                if !flags.is_empty() {
                    ranks.push(*rank);
                    interests.push(PollFd::new(&link.stream, flags));
                }
            }
            let nap = Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(nap.subsec_nanos()),
            };
            // A failed poll (a signal) is an empty one: the caller's loop looks again.
            let _ = poll(&mut interests, Some(&nap));
            let ready = ranks.iter().zip(&interests).filter(|(_, interest)| {
                interest
                    .revents()
                    .intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            });
            readable.extend(ready.map(|(rank, _)| *rank));
        }
        for rank in readable {
            if let Link::Socket(link) = self.link_mut(rank) {
                link.receive()?;
            }
        }
        Ok(())
    }
}
