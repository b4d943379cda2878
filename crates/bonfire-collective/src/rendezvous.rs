//! How the processes of a job find each other and connect.
//!
//! 1. Everybody reaches the store at `MASTER_ADDR:MASTER_PORT` (rank 0 serves it unless the launcher
//!    does) and proves the job's token.
//! 2. Everybody publishes its [`Address`] there and reads the others'; what must agree is compared.
//! 3. Every rank connects to the lower ranks and accepts the higher ones: one control connection per
//!    pair, and one data connection where the pair uses sockets.
//! 4. Pairs that share memory send each other the descriptors of their regions.
//!
//! Nothing of this has a name in a file system: Unix sockets are abstract, regions are `memfd`s.

mod address;
mod descriptors;
mod mesh;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonfire_plan::{Rank, WorldSize};
use bonfire_sys::{Region, RegionError};

use crate::control::Control;
use crate::environment::{RankEnv, StoreHost};
use crate::group::Parts;
use crate::options::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, GroupOptions};
use crate::poison::Poison;
use crate::store::{Store, StoreError, TcpStore, TcpStoreServer};
use crate::stream::Stream;
use crate::transport::{HostId, Links, MemoryLink, SocketLink, TransportKind, ring_layout};

use address::Address;
use mesh::{Connections, Listeners, Mesh};

/// A group could not be formed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The store did not answer or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// MASTER_ADDR has no address to serve at.
    #[error("MASTER_ADDR {host:?} cannot be resolved: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        reason: String,
    },
    /// Some ranks never came.
    #[error(
        "{} of {world_size} ranks did not come within {} s: rank {}; did they start, and do they \
         have the same MASTER_ADDR and MASTER_PORT?",
        .missing.len(), .waited.as_secs_f32(), list(.missing)
    )]
    Missing {
        /// The ranks that are not there.
        missing: Vec<Rank>,
        /// How many there should be.
        world_size: WorldSize,
        /// How long they were waited for.
        waited: Duration,
    },
    /// Two processes claim one rank.
    #[error("there is another rank {rank}: is RANK set right, or does another job use this store?")]
    RankTaken {
        /// The rank.
        rank: Rank,
    },
    /// Ranks were started with different settings.
    #[error("rank {mine} has {what} {my_value}, but rank {theirs} has {their_value}")]
    Disagree {
        /// This rank.
        mine: Rank,
        /// What differs.
        what: &'static str,
        /// This rank's value.
        my_value: String,
        /// The other rank.
        theirs: Rank,
        /// The other rank's value.
        their_value: String,
    },
    /// The transport that was asked for cannot connect a pair.
    #[error("the {transport} transport cannot connect ranks {mine} and {theirs}: {reason}")]
    Transport {
        /// The transport.
        transport: TransportKind,
        /// This rank.
        mine: Rank,
        /// The other.
        theirs: Rank,
        /// Why not.
        reason: &'static str,
    },
    /// A peer cannot be reached.
    #[error("rank {mine} cannot reach rank {theirs} at {address}: {reason}")]
    Unreachable {
        /// This rank.
        mine: Rank,
        /// The peer.
        theirs: Rank,
        /// Where it said it is.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// A peer published something that is not an address.
    #[error("rank {rank} published an address that this version does not understand: {reason}")]
    Address {
        /// The peer.
        rank: Rank,
        /// What is wrong with it.
        reason: String,
    },
    /// No shared memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The chunk size is out of range.
    #[error("chunk_bytes must be {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}, got {found}")]
    ChunkBytes {
        /// What was asked for.
        found: usize,
    },
    /// A thread cannot be started.
    #[error("cannot start a communication thread")]
    Thread(#[source] io::Error),
    /// A socket call failed.
    #[error("{call} failed while the ranks were connecting")]
    System {
        /// What was done.
        call: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

fn list(ranks: &[Rank]) -> String {
    ranks
        .iter()
        .map(Rank::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// What set-up must finish by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Instant,
    started: Instant,
}

impl Deadline {
    fn after(timeout: Duration) -> Self {
        let started = Instant::now();
        Self {
            end: started + timeout,
            started,
        }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    fn waited(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Forms the group of all processes of the job.
pub(crate) fn meet(env: &RankEnv, options: &GroupOptions) -> Result<Parts, ConnectError> {
    let chunk_bytes = options
        .chunk_bytes_checked()
        .ok_or(ConnectError::ChunkBytes {
            found: options.chunk_bytes,
        })?;
    let deadline = Deadline::after(options.startup_timeout);
    let server = match env.agent_store {
        StoreHost::RankZero if env.rank == Rank::new(0) => Some(serve(env)?),
        _ => None,
    };
    let store = TcpStore::connect(
        &env.master_addr,
        env.master_port,
        &env.job_token,
        deadline.left(),
    )?;
    let host = HostId::of_this_process();
    let (listeners, tcp) = Listeners::open(store.local_addr().ip())?;
    let mine = Address::new(
        host,
        listeners.unix_name().to_owned(),
        tcp,
        options,
        chunk_bytes,
    );
    let addresses = publish(env, &store, &mine, deadline)?;
    let kinds = choose_transports(env.rank, &mine, &addresses, options)?;

    let mesh = Mesh {
        me: env.rank,
        token: &env.job_token,
        addresses: &addresses,
        kinds: &kinds,
    };
    let connections = mesh.connect(listeners, deadline)?;
    let (links, control) = make_links(env, &kinds, connections, chunk_bytes, deadline)?;
    let poison = Arc::new(Poison::new(env.world_size));
    let control =
        Control::start(env.rank, control, Arc::clone(&poison)).map_err(ConnectError::Thread)?;
    finish(env, &store, server.as_ref(), deadline)?;
    announce(env.rank, &kinds);
    Ok(Parts {
        me: env.rank,
        world_size: env.world_size,
        local_world_size: addresses
            .iter()
            .filter(|address| address.host == mine.host)
            .count(),
        links,
        control: Some(control),
        poison,
        chunk_bytes,
    })
}

/// Serves the store in rank 0, at MASTER_PORT of whatever MASTER_ADDR resolves to here.
fn serve(env: &RankEnv) -> Result<TcpStoreServer, ConnectError> {
    use std::net::ToSocketAddrs;
    let unresolved = |reason: String| ConnectError::Resolve {
        host: env.master_addr.clone(),
        reason,
    };
    let address = (env.master_addr.as_str(), env.master_port)
        .to_socket_addrs()
        .map_err(|error| unresolved(error.to_string()))?
        .next()
        .ok_or_else(|| unresolved("the name has no address".to_owned()))?;
    Ok(TcpStoreServer::bind(address, &env.job_token)?)
}

/// Publishes this rank's address and waits for everybody's, in rank order.
fn publish(
    env: &RankEnv,
    store: &TcpStore,
    mine: &Address,
    deadline: Deadline,
) -> Result<Vec<Address>, ConnectError> {
    if store.add(&format!("claim/{}", env.rank), 1)? != 1 {
        return Err(ConnectError::RankTaken { rank: env.rank });
    }
    let key = |rank: Rank| format!("address/{rank}");
    store.set(&key(env.rank), &mine.encode())?;
    let mut addresses = Vec::with_capacity(env.world_size.len());
    for rank in env.world_size.ranks() {
        match store.get(&key(rank), deadline.left()) {
            Ok(bytes) => addresses.push(Address::decode(rank, &bytes)?),
            Err(StoreError::Timeout { .. }) => {
                let is_missing = |rank: &Rank| store.get(&key(*rank), Duration::ZERO).is_err();
                return Err(ConnectError::Missing {
                    missing: env.world_size.ranks().filter(is_missing).collect(),
                    world_size: env.world_size,
                    waited: deadline.waited(),
                });
            }
            Err(error) => return Err(error.into()),
        }
    }
    for rank in env.world_size.ranks() {
        mine.agree(env.rank, rank, &addresses[rank.index()])?;
    }
    Ok(addresses)
}

/// The first transport of the table that connects each pair; `None` at this rank's own place.
fn choose_transports(
    me: Rank,
    mine: &Address,
    addresses: &[Address],
    options: &GroupOptions,
) -> Result<Vec<Option<TransportKind>>, ConnectError> {
    let choose = |(index, theirs): (usize, &Address)| {
        let peer = Rank::new(index as u32);
        if peer == me {
            return Ok(None);
        }
        if let Some(transport) = options.transport {
            let possible = transport.can_connect(&mine.host, &theirs.host);
            return possible
                .map(|()| Some(transport))
                .map_err(|reason| ConnectError::Transport {
                    transport,
                    mine: me,
                    theirs: peer,
                    reason,
                });
        }
        let best = TransportKind::BETWEEN_PROCESSES
            .into_iter()
            .find(|kind| kind.can_connect(&mine.host, &theirs.host).is_ok());
        Ok(Some(best.expect(
            "TCP is the last of the table and connects any two hosts",
        )))
    };
    addresses.iter().enumerate().map(choose).collect()
}

/// Turns connections into links; pairs with shared memory exchange their regions first.
fn make_links(
    env: &RankEnv,
    kinds: &[Option<TransportKind>],
    connections: Connections,
    chunk_bytes: usize,
    deadline: Deadline,
) -> Result<(Links, Vec<(Rank, Stream)>), ConnectError> {
    let system = |source| ConnectError::System {
        call: "setsockopt",
        source,
    };
    let mut links = Links::new(env.rank, env.world_size);
    for (peer, stream) in connections.data {
        links.add_socket(peer, SocketLink::new(stream, chunk_bytes).map_err(system)?);
    }
    let control = connections.control;
    for (_, stream) in &control {
        let patience = deadline.left().max(Duration::from_millis(1));
        stream.set_read_timeout(Some(patience)).map_err(system)?;
    }
    let shared: Vec<&(Rank, Stream)> = control
        .iter()
        .filter(|(peer, _)| kinds[peer.index()] == Some(TransportKind::Shm))
        .collect();
    if shared.is_empty() {
        return Ok((links, control));
    }
    let layout = ring_layout(chunk_bytes);
    // Room for a ring from every peer, wherever it is: the offsets are then the same arithmetic on
    // every host, and rings nobody uses cost address space only on the far side.
    let region_bytes = (env.world_size.len() - 1) * layout.bytes();
    let region = Arc::new(Region::shared(region_bytes)?);
    for (peer, stream) in &shared {
        descriptors::send(stream, &region)
            .map_err(|source| unreachable(env.rank, *peer, "its control socket", source))?;
    }
    for (peer, stream) in &shared {
        let file = descriptors::receive(stream)
            .map_err(|source| unreachable(env.rank, *peer, "its control socket", source))?;
        let peer_region = Arc::new(Region::open(file, region_bytes)?);
        let link = MemoryLink::claim(env.rank, &region, *peer, &peer_region, layout)
            .map_err(|_| ConnectError::RankTaken { rank: env.rank })?;
        links.add_memory(*peer, link);
    }
    Ok((links, control))
}

fn unreachable(mine: Rank, theirs: Rank, address: &str, source: io::Error) -> ConnectError {
    ConnectError::Unreachable {
        mine,
        theirs,
        address: address.to_owned(),
        reason: source.to_string(),
    }
}

/// All ranks are through: from here on nobody needs the store, so its server may go.
fn finish(
    env: &RankEnv,
    store: &TcpStore,
    server: Option<&TcpStoreServer>,
    deadline: Deadline,
) -> Result<(), ConnectError> {
    if store.add("connected", 1)? == i64::from(env.world_size.get()) {
        store.set("all-connected", b"")?;
    }
    if server.is_some() {
        store.get("all-connected", deadline.left())?;
    }
    Ok(())
}

fn announce(me: Rank, kinds: &[Option<TransportKind>]) {
    for kind in TransportKind::BETWEEN_PROCESSES {
        let peers: Vec<Rank> = kinds
            .iter()
            .enumerate()
            .filter(|(_, chosen)| **chosen == Some(kind))
            .map(|(index, _)| Rank::new(index as u32))
            .collect();
        if !peers.is_empty() {
            tracing::info!(target: "bonfire", "rank {me}: transport {kind} to rank {}", list(&peers));
        }
    }
}
