//! All links of one rank, and the waits on them.

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::wire::HEADER_BYTES;
use bonfire_plan::{Rank, WorldSize};

use super::Frame;
use super::memory::MemoryLink;
use super::socket::{Due, Progress, SocketLink};
use super::traffic::Traffic;
use crate::health::wait::{Interrupt, NAP_MAX, Pause, WaitLimits};
use bonfire_connect::platform::net::Edges;
use bonfire_connect::platform::thread;

/// While a rank naps on shared memory it still moves the bytes of its sockets this often, because a
/// third rank may need them before the second can continue.
const MIXED_NAP: Duration = Duration::from_millis(1);

/// One link failed or a wait on it ended.
#[derive(Debug)]
pub(crate) enum LinkError {
    Interrupted(Interrupt),
    Ended,
    /// The stream to or from this rank, perhaps not the one that was waited for, is unusable.
    Broken {
        rank: Rank,
        cause: String,
    },
    /// A frame from this rank was changed on the way, in this operation if that is known.
    Changed {
        rank: Rank,
        seq: Option<u64>,
    },
    /// The oldest frame from this rank [contradicts](Frame::contradicts) the one to be sent.
    Contradicted {
        rank: Rank,
    },
}

impl From<Interrupt> for LinkError {
    fn from(interrupt: Interrupt) -> Self {
        Self::Interrupted(interrupt)
    }
}

#[derive(Debug)]
struct Link {
    kind: LinkKind,
    traffic: Traffic,
}

impl Link {
    fn front(&self) -> Option<Frame<'_>> {
        match &self.kind {
            LinkKind::Memory(memory) => memory.front(),
            LinkKind::Socket(socket) => socket.front(),
        }
    }
}

#[derive(Debug)]
enum LinkKind {
    Memory(MemoryLink),
    Socket(Box<SocketLink>),
}

/// A socket among those of a rank: one of the streams of the link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    peer: Rank,
    stream: usize,
}

impl Origin {
    fn number(self) -> u64 {
        u64::from(self.peer.get()) | (self.stream as u64) << 32
    }

    fn of(number: u64) -> Self {
        Self { peer: Rank::new(number as u32), stream: (number >> 32) as usize }
    }
}

/// What a wait on a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Frame,
    Room,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A complete frame is in its slot, and may be another than the one that is due.
    Whole,
    /// The frame that is due is here as far as was asked.
    Due,
}

#[derive(Debug)]
pub(crate) struct Links {
    by_rank: Vec<Option<Link>>,
    sockets: Vec<Rank>,
    /// There from the first socket on.
    readiness: Option<Edges>,
}

impl Links {
    /// No links yet; every peer needs one before the first operation.
    pub(crate) fn new(me: Rank, world_size: WorldSize) -> Self {
        assert!(world_size.contains(me), "rank {me} in a world of {}", world_size.get());
        Self {
            by_rank: world_size.ranks().map(|_| None).collect(),
            sockets: Vec::new(),
            readiness: None,
        }
    }

    pub(crate) fn add_memory(&mut self, peer: Rank, link: MemoryLink) {
        self.add(peer, LinkKind::Memory(link));
    }

    pub(crate) fn add_socket(&mut self, peer: Rank, link: SocketLink) -> io::Result<()> {
        let readiness = match &mut self.readiness {
            Some(readiness) => readiness,
            none => none.insert(Edges::new()?),
        };
        for (index, stream) in link.streams().enumerate() {
            readiness.add(Origin { peer, stream: index }.number(), stream)?;
        }
        self.sockets.push(peer);
        self.add(peer, LinkKind::Socket(Box::new(link)));
        Ok(())
    }

    fn add(&mut self, peer: Rank, kind: LinkKind) {
        let traffic = Traffic::default();
        self.by_rank[peer.index()] = Some(Link { kind, traffic });
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let links = self.by_rank.iter().flatten();
        links.fold(Traffic::default(), |sum, link| sum + link.traffic)
    }

    fn link(&self, peer: Rank) -> &Link {
        self.by_rank[peer.index()].as_ref().expect("set-up made a link to every peer")
    }

    fn link_mut(&mut self, peer: Rank) -> &mut Link {
        self.by_rank[peer.index()].as_mut().expect("set-up made a link to every peer")
    }

    /// Sends a frame to `peer`. When this returns, the payload may be changed; the peer sees the
    /// frame after those put before it, with everything this rank wrote before.
    pub(crate) fn put(
        &mut self,
        peer: Rank,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        limits: &WaitLimits<'_>,
    ) -> Result<(), LinkError> {
        let mut backoff = limits.backoff();
        loop {
            let departed = limits.has_departed(peer);
            let link = self.link_mut(peer);
            let sent = match &mut link.kind {
                LinkKind::Memory(memory) => match memory.try_put(header, payload) {
                    Some(()) => Progress::Done,
                    None => Progress::Bytes(0),
                },
                LinkKind::Socket(socket) => socket.send(peer, header, payload)?,
            };
            let Progress::Bytes(went) = sent else {
                link.traffic.count_sent(payload);
                return Ok(());
            };
            if let LinkKind::Socket(socket) = &mut link.kind {
                // The peer may be unable to read because it is sending, too.
                let received = socket.receive();
                if went > 0 || received > 0 {
                    backoff = limits.backoff();
                    continue;
                }
            }
            let pause = limits.pause(&mut backoff, departed)?;
            if pause == Pause::Nap
                && let Some(rank) = self.contradiction(header)
            {
                // Ranks that only send wait for each other to receive.
                return Err(LinkError::Contradicted { rank });
            }
            self.pass_time(peer, Need::Room, pause)?;
        }
    }

    pub(crate) fn wait(&mut self, peer: Rank, limits: &WaitLimits<'_>) -> Result<(), LinkError> {
        self.watch(peer, limits, |socket| Progress::Bytes(socket.receive())).map(drop)
    }

    /// Waits until there is a frame from `peer`. If it is the one that is due and its link can, its
    /// payload is received straight into `target`.
    pub(crate) fn wait_to(
        &mut self,
        peer: Rank,
        due: &Due<'_>,
        target: &mut [u8],
        limits: &WaitLimits<'_>,
    ) -> Result<Arrival, LinkError> {
        let arrival = self.watch(peer, limits, |socket| socket.receive_to(due, target))?;
        if arrival == Arrival::Due {
            let traffic = &mut self.link_mut(peer).traffic;
            traffic.count_received(due.payload_bytes);
        }
        Ok(arrival)
    }

    /// Waits until there is a frame from `peer` or, if it is the one that is due, `payload_bytes` of its payload.
    pub(crate) fn wait_for_part(
        &mut self,
        peer: Rank,
        due: &Due<'_>,
        payload_bytes: usize,
        limits: &WaitLimits<'_>,
    ) -> Result<Arrival, LinkError> {
        self.watch(peer, limits, |socket| {
            let arrived = socket.arrived(due).map_or(0, <[u8]>::len);
            if arrived >= payload_bytes {
                Progress::Done
            } else {
                Progress::Bytes(socket.receive())
            }
        })
    }

    /// What is there of the payload of the frame that is due, whether it lies in its slot or arrives.
    pub(crate) fn payload(&self, peer: Rank, due: &Due<'_>) -> Option<&[u8]> {
        match (self.front(peer), &self.link(peer).kind) {
            (Some(frame), _) => Some(frame.payload()),
            (None, LinkKind::Socket(socket)) => socket.arrived(due),
            (None, LinkKind::Memory(_)) => None,
        }
    }

    /// Looks until the oldest frame from `peer` lies in its slot, or `look` has seen enough of it.
    fn watch(
        &mut self,
        peer: Rank,
        limits: &WaitLimits<'_>,
        mut look: impl FnMut(&mut SocketLink) -> Progress,
    ) -> Result<Arrival, LinkError> {
        let mut backoff = limits.backoff();
        loop {
            // Frames in memory are there before the farewell. Those of a socket are sent on another
            // connection than it is and may come later; what comes last there is its end.
            let departed = match self.link(peer).kind {
                LinkKind::Memory(_) => limits.has_departed(peer),
                LinkKind::Socket(_) => false,
            };
            if self.front(peer).is_some() {
                return Ok(Arrival::Whole);
            }
            if let LinkKind::Socket(socket) = &mut self.link_mut(peer).kind {
                match look(socket) {
                    Progress::Done => return Ok(Arrival::Due),
                    Progress::Bytes(0) => {}
                    Progress::Bytes(_) => {
                        backoff = limits.backoff();
                        continue;
                    }
                }
                socket.check(peer)?;
                if socket.has_ended() {
                    return Err(LinkError::Ended);
                }
            }
            let pause = limits.pause(&mut backoff, departed)?;
            self.pass_time(peer, Need::Frame, pause)?;
        }
    }

    pub(crate) fn front(&self, peer: Rank) -> Option<Frame<'_>> {
        self.link(peer).front()
    }

    /// A rank whose oldest frame [contradicts](Frame::contradicts) this header.
    fn contradiction(&self, header: &[u8; HEADER_BYTES]) -> Option<Rank> {
        let ranks = (0..self.by_rank.len() as u32).map(Rank::new);
        let contradicts = |link: &Link| link.front().is_some_and(|frame| frame.contradicts(header));
        ranks
            .zip(&self.by_rank)
            .find_map(|(rank, link)| link.as_ref().is_some_and(contradicts).then_some(rank))
    }

    /// An error if a frame that is there [contradicts](Frame::contradicts) the one that was sent last.
    /// Waits for nothing.
    pub(crate) fn check_what_was_sent(
        &mut self,
        header: &[u8; HEADER_BYTES],
    ) -> Result<(), LinkError> {
        // Of two ranks that send to each other and then look, one at least sees the other's frame.
        fence(Ordering::SeqCst);
        self.move_bytes(Duration::ZERO, None)?;
        match self.contradiction(header) {
            Some(rank) => Err(LinkError::Contradicted { rank }),
            None => Ok(()),
        }
    }

    pub(crate) fn release(&mut self, peer: Rank) {
        let Link { kind, traffic } = self.link_mut(peer);
        match kind {
            LinkKind::Memory(memory) => {
                traffic.count_received(payload_bytes(memory.front()));
                memory.inbox.release();
            }
            LinkKind::Socket(socket) => {
                traffic.count_received(payload_bytes(socket.front()));
                socket.release();
            }
        }
    }

    /// Spends the time until the next look at the link to `peer`.
    fn pass_time(&mut self, peer: Rank, need: Need, pause: Pause) -> Result<(), LinkError> {
        match pause {
            Pause::Spin => {
                std::hint::spin_loop();
                Ok(())
            }
            Pause::LookAround if self.has_others(peer) => self.move_bytes(Duration::ZERO, None),
            Pause::LookAround => Ok(()),
            Pause::Yield => {
                thread::yield_now();
                self.move_bytes(Duration::ZERO, None)
            }
            Pause::Nap => self.nap(peer, need),
        }
    }

    fn has_others(&self, peer: Rank) -> bool {
        self.sockets.iter().any(|rank| *rank != peer)
    }

    fn nap(&mut self, peer: Rank, need: Need) -> Result<(), LinkError> {
        match (&self.link(peer).kind, need) {
            (LinkKind::Memory(memory), need) => {
                let nap = if self.sockets.is_empty() { NAP_MAX } else { MIXED_NAP };
                match need {
                    Need::Frame => memory.inbox.sleep(nap),
                    Need::Room => memory.outbox.sleep(nap),
                }
                self.move_bytes(Duration::ZERO, None)
            }
            (LinkKind::Socket(_), Need::Room) => self.move_bytes(NAP_MAX, Some(peer)),
            (LinkKind::Socket(_), Need::Frame) => self.move_bytes(NAP_MAX, None),
        }
    }

    /// Reads what sockets are known to have; if none has anything, sleeps until there is news or
    /// `writer`'s socket takes more bytes, for `nap` at most, and reads that.
    fn move_bytes(&mut self, nap: Duration, writer: Option<Rank>) -> Result<(), LinkError> {
        let Self { by_rank, sockets, readiness: Some(readiness) } = self else {
            return Ok(());
        };
        // What is known already must not be slept on: the kernel will not report it again.
        let known = |rank: &Rank| socket(by_rank, *rank).has_news();
        let nap = if sockets.iter().any(known) { Duration::ZERO } else { nap };
        let news = match writer {
            Some(writer) => {
                readiness.sleep_for_room(socket(by_rank, writer).blocked_streams(), nap)
            }
            None => readiness.sleep(nap),
        };
        for Origin { peer, stream } in news.numbers().map(Origin::of) {
            socket_mut(by_rank, peer).hear_of_news(stream);
        }
        for rank in sockets.iter() {
            let socket = socket_mut(by_rank, *rank);
            if socket.has_news() {
                socket.receive();
                socket.check(*rank)?;
            }
        }
        Ok(())
    }
}

fn payload_bytes(frame: Option<Frame<'_>>) -> usize {
    frame.map_or(0, |frame| frame.payload().len())
}

fn socket(by_rank: &[Option<Link>], rank: Rank) -> &SocketLink {
    match &by_rank[rank.index()] {
        Some(Link { kind: LinkKind::Socket(socket), .. }) => socket,
        _ => unreachable!("rank {rank} is listed as a socket"),
    }
}

fn socket_mut(by_rank: &mut [Option<Link>], rank: Rank) -> &mut SocketLink {
    match &mut by_rank[rank.index()] {
        Some(Link { kind: LinkKind::Socket(socket), .. }) => socket,
        _ => unreachable!("rank {rank} is listed as a socket"),
    }
}
