//! Connecting ranks that know each other's addresses.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};
use bonfire_sys::OpenError;
use bonfire_sys::ring::Consumer;

use super::address::Address;
use super::connect_all::{ConnectAll, Connections, Guard, Listeners};
use super::error::Result;
use super::{ConnectError, Deadline, check_open_files, descriptors, files_of_peers};
use crate::health::control::{Control, Early};
use crate::health::failure::Failure;
use crate::health::poison::Poison;
use crate::health::reports::list;
use crate::options::GroupOptions;
use crate::options::transport_kind::TransportKind;
use crate::transport::{Links, MemoryLink, Sharing, SocketLink, new_arena, ring_layout};
use bonfire_connect::connections::{Checksums, Tls};
use bonfire_connect::platform::net::{Handle, await_news, is_exhaustion};
use bonfire_connect::platform::{clock, thread};
use bonfire_connect::secure::tls::Identity;
use bonfire_connect::secure::token::JobToken;

/// What a rank says that has mapped the buffers of all others.
const SHARES: u8 = b'S';
/// What it says if it could not.
const COPIES: u8 = b'C';
/// Longest sleep while another rank's descriptor is awaited.
const RECEIVE_SLICE: Duration = Duration::from_millis(200);
/// How long a rank whose peer ends its connection looks for the reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);
const REASON_LOOK: Duration = Duration::from_millis(50);

/// A group about to form, seen from one of its ranks.
pub(crate) struct Formation<'a> {
    pub(crate) me: Rank,
    /// The number of the group, which keeps connections of other groups out.
    pub(crate) group: u32,
    pub(crate) token: &'a JobToken,
    /// Of every rank of the group, in rank order.
    pub(crate) addresses: &'a [Address],
    pub(crate) options: &'a GroupOptions,
    pub(crate) chunk_bytes: usize,
    pub(crate) streams: u8,
    /// Whether streams but the first have threads.
    pub(crate) has_stream_threads: bool,
    pub(crate) deadline: Deadline,
    pub(crate) guard: Guard<'a>,
}

#[derive(Debug)]
pub(crate) struct Formed {
    pub(crate) links: Links,
    pub(crate) sharing: Option<Sharing>,
    pub(crate) control: Control,
    pub(crate) poison: Arc<Poison>,
}

impl Formation<'_> {
    pub(crate) fn form(&self, listeners: Listeners) -> Result<Formed> {
        let kinds = self.choose_transports()?;
        check_open_files(self.world_size())?;
        let identity = match self.options.tls {
            Tls::Off => None,
            Tls::Hosts | Tls::All => Some(Identity::new().map_err(ConnectError::Identity)?),
        };
        let all = ConnectAll {
            me: self.me,
            group: self.group,
            token: self.token,
            addresses: self.addresses,
            kinds: &kinds,
            streams: self.streams,
            tls: self.options.tls,
            identity: identity.as_ref(),
        };
        let connections = all.connect(listeners, self.deadline, self.guard)?;
        let (links, control) = self.make_links(&kinds, connections)?;
        let sharing = self.share_memory(&kinds, &control)?;
        let poison = Arc::new(Poison::new(self.world_size()));
        let control = Control::start(self.me, control, Arc::clone(&poison), self.options)
            .map_err(ConnectError::Thread)?;
        self.announce(&kinds);
        Ok(Formed { links, sharing, control, poison })
    }

    fn world_size(&self) -> WorldSize {
        let ranks = u32::try_from(self.addresses.len()).expect("ranks are numbered in 32 bits");
        WorldSize::new(ranks).expect("this rank is in the group")
    }

    /// The first transport of the table that connects each pair; `None` at this rank's own place.
    fn choose_transports(&self) -> Result<Vec<Option<TransportKind>>> {
        let mine = &self.addresses[self.me.index()];
        let choose = |(peer, theirs): (Rank, &Address)| {
            if peer == self.me {
                return Ok(None);
            }
            if let Some(transport) = self.options.transport {
                let possible = transport.can_connect(&mine.host, &theirs.host);
                return possible.map(|()| Some(transport)).map_err(|reason| {
                    ConnectError::Transport { transport, mine: self.me, theirs: peer, reason }
                });
            }
            let best = TransportKind::BETWEEN_PROCESSES
                .into_iter()
                .filter(|kind| *kind != TransportKind::Shm || (mine.shares && theirs.shares))
                .find(|kind| kind.can_connect(&mine.host, &theirs.host).is_ok());
            Ok(Some(best.expect("TCP is the last of the table and connects any two hosts")))
        };
        self.world_size().ranks().zip(self.addresses).map(choose).collect()
    }

    /// Turns connections into links; pairs with shared memory exchange their regions first.
    fn make_links(
        &self,
        kinds: &[Option<TransportKind>],
        connections: Connections,
    ) -> Result<(Links, Vec<Early>)> {
        let system = |source| ConnectError::System { call: "setsockopt", source };
        let world_size = self.world_size();
        let mut links = Links::new(self.me, world_size);
        for (peer, streams) in connections.data {
            let streams = streams.into_iter().map(|(_, stream)| stream).collect();
            let mut link = SocketLink::new(streams, self.chunk_bytes, self.has_stream_threads)
                .map_err(system)?;
            if kinds[peer.index()].is_some_and(|kind| self.is_summed(peer, kind)) {
                link = link.sealed();
            }
            links.add_socket(peer, link).map_err(system)?;
        }
        let control = connections.control;
        let shares = |early: &&Early| kinds[early.rank().index()] == Some(TransportKind::Shm);
        let shared: Vec<&Early> = control.iter().filter(shares).collect();
        if shared.is_empty() {
            return Ok((links, control));
        }
        // A ring from every rank that shares memory, and from no other: all of it is committed.
        let layout = ring_layout(self.chunk_bytes);
        let mut inboxes = BTreeMap::new();
        for early in &shared {
            let inbox = Consumer::shared(layout)?;
            descriptors::send_ring(early, &inbox)
                .map_err(|source| self.unreachable(early.rank(), &source))?;
            inboxes.insert(early.rank(), inbox);
        }
        let outboxes =
            self.receive_from(shared, |early| descriptors::receive_ring(early, layout))?;
        for ((rank, inbox), outbox) in inboxes.into_iter().zip(outboxes.into_values()) {
            let outbox = outbox.map_err(|error| self.not_shared(error))?;
            links.add_memory(rank, MemoryLink { outbox, inbox });
        }
        Ok((links, control))
    }

    /// If all ranks share memory, they also map each other's buffers.
    fn share_memory(
        &self,
        kinds: &[Option<TransportKind>],
        control: &[Early],
    ) -> Result<Option<Sharing>> {
        let shares = |kind: &TransportKind| *kind == TransportKind::Shm;
        if control.is_empty() || !kinds.iter().flatten().all(shares) {
            return Ok(None);
        }
        let (arena, has_room) = new_arena(self.world_size())?;
        for early in control {
            descriptors::send_arena(early, &arena)
                .map_err(|source| self.unreachable(early.rank(), &source))?;
        }
        let arenas = self.receive_from(control.iter().collect(), descriptors::receive_arena)?;
        let board = match descriptors::share(self.me, &arena, arenas) {
            Ok(board) => Some(board),
            // This process may have too few addresses (`ulimit -v`), and all ranks share or none.
            Err(OpenError::Region(error)) => {
                let me = self.me;
                tracing::warn!(target: "bonfire", "rank {me}: {error}; operations copy instead");
                None
            }
            Err(error) => return Err(self.not_shared(error)),
        };
        let word = match board {
            Some(_) => SHARES,
            None => COPIES,
        };
        for early in control {
            early.write_byte(word).map_err(|source| self.unreachable(early.rank(), &source))?;
        }
        let words = self.receive_from(control.iter().collect(), Early::read_byte)?;
        let all_share = words.into_values().all(|word| word == SHARES);
        Ok(board
            .filter(|_| all_share)
            .map(|board| Sharing { board, arena: has_room.then_some(arena) }))
    }

    /// What each of these ranks sends, in whatever order it comes.
    fn receive_from<T>(
        &self,
        mut waiting: Vec<&Early>,
        mut receive: impl FnMut(&Early) -> io::Result<T>,
    ) -> Result<BTreeMap<Rank, T>> {
        let started = clock::now();
        let mut received = BTreeMap::new();
        while !waiting.is_empty() {
            let handles: Vec<&Handle> = waiting.iter().map(|early| early.raw_handle()).collect();
            for place in await_news(&handles, RECEIVE_SLICE).into_iter().rev() {
                let early = waiting.remove(place);
                match receive(early) {
                    Ok(value) => drop(received.insert(early.rank(), value)),
                    Err(source) => return Err(self.reason_of_end(early.rank(), &source)),
                }
            }
            self.look_at(&waiting, clock::since(started))?;
        }
        Ok(received)
    }

    /// An error if these ranks need not be waited for any more.
    fn look_at(&self, waiting: &[&Early], waited: Duration) -> Result<()> {
        if waiting.is_empty() {
            return Ok(());
        }
        let missing: Vec<Rank> = waiting.iter().map(|early| early.rank()).collect();
        (self.guard)(&missing)?;
        // Heartbeats begin when all of this is done. A stopped process is named as soon as they would.
        let silence_max = self.options.heartbeat_timeout;
        if silence_max.is_some_and(|silence_max| waited >= silence_max)
            && let Some(failure) = waiting.iter().find_map(|early| early.stopped(waited))
        {
            return Err(ConnectError::GroupFailed(Box::new(failure.into())));
        }
        if self.deadline.left().is_zero() {
            Err(self.deadline.missed(missing, self.world_size()))
        } else {
            Ok(())
        }
    }

    /// Why a rank did not send what it should. It may have given up because of another, and leave word
    /// of that a moment after its connections have ended.
    fn reason_of_end(&self, peer: Rank, source: &io::Error) -> ConnectError {
        let timeout = Deadline::after(REASON_TIMEOUT);
        while !timeout.left().is_zero() {
            if let Err(error) = (self.guard)(&[peer]) {
                return error;
            }
            thread::sleep(REASON_LOOK);
        }
        self.unreachable(peer, source)
    }

    fn not_shared(&self, error: OpenError) -> ConnectError {
        match error {
            OpenError::Region(error) => error.into(),
            // Two processes that both say they are this rank.
            _ => ConnectError::RankTaken { rank: self.me },
        }
    }

    fn unreachable(&self, peer: Rank, source: &io::Error) -> ConnectError {
        if is_exhaustion(source) {
            return ConnectError::OpenFiles {
                world_size: self.world_size(),
                needed: files_of_peers(self.world_size()),
                left: 0,
            };
        }
        if source.kind() == io::ErrorKind::UnexpectedEof {
            let failure = Failure::Peer {
                rank: peer,
                cause: "its process ended while the ranks were connecting".to_owned(),
            };
            return ConnectError::GroupFailed(Box::new(failure.into()));
        }
        ConnectError::Unreachable {
            mine: self.me,
            theirs: peer,
            address: "its control socket".to_owned(),
            reason: source.to_string(),
        }
    }

    /// Whether frames to and from a peer over such a link carry checksums. Both ends come to the same.
    fn is_summed(&self, peer: Rank, kind: TransportKind) -> bool {
        let host = |rank: Rank| &self.addresses[rank.index()].host;
        let is_between_hosts = host(peer) != host(self.me);
        let is_encrypted = match (kind, self.options.tls) {
            (TransportKind::Tcp, Tls::Hosts) => is_between_hosts,
            (TransportKind::Tcp, Tls::All) => true,
            _ => false,
        };
        match self.options.checksums {
            Checksums::Off => false,
            // An encrypted stream authenticates what it carries.
            _ if is_encrypted => false,
            Checksums::Hosts => is_between_hosts,
            Checksums::All => true,
        }
    }

    fn announce(&self, kinds: &[Option<TransportKind>]) {
        let (me, group) = (self.me, self.group);
        let of = if group == 0 { String::new() } else { format!(" of group {group}") };
        for kind in TransportKind::BETWEEN_PROCESSES {
            let there: Vec<Rank> = self
                .world_size()
                .ranks()
                .filter(|peer| kinds[peer.index()] == Some(kind))
                .collect();
            if !there.is_empty() {
                let peers = list(&there);
                let over = match (kind, self.streams) {
                    (TransportKind::Tcp, 2..) => format!(" over {} streams each", self.streams),
                    _ => String::new(),
                };
                let summed = there.iter().filter(|peer| self.is_summed(**peer, kind));
                let with = match summed.count() {
                    0 => "",
                    count if count == there.len() => ", with checksums",
                    _ => ", with checksums between hosts",
                };
                let line = format!("rank {me}{of}: transport {kind} to rank {peers}{over}{with}");
                match me.get() {
                    0 => tracing::info!(target: "bonfire", "{line}"),
                    _ => tracing::debug!(target: "bonfire", "{line}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
