//! How the processes of a job find each other and connect.
//!
//! 1. Everybody reaches the store and proves the job's token. The launcher serves it, or rank 0 at
//!    `MASTER_ADDR:MASTER_PORT`, or rank 0 at a free port that it announces (`store_client`).
//! 2. Everybody publishes its [`Address`] there and reads the others'; what must agree is compared.
//! 3. Hosts try whether they reach each other, so that one that does not is known at once.
//! 4. Every rank connects to the lower ranks and accepts the higher ones: one control connection per
//!    pair, and one data connection where the pair uses sockets.
//! 5. Pairs that share memory send each other the descriptors of their regions.
//!
//! A part of a group that is split meets in the same way from step 4 on: its members learn each
//! other's addresses through the group that they come from.
//!
//! Nothing of this has a name in a file system: Unix sockets are abstract, regions are `memfd`s.

mod address;
mod connect_all;
mod descriptors;
mod discovery;
mod error;
mod formation;
pub(crate) mod group_error;
mod reach;
mod store_address;
mod store_client;
mod torchrun;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonfire_plan::{Rank, WorldSize};

use crate::health::inspection::Inspection;
use crate::health::reports::list;
use crate::options::GroupOptions;
use crate::options::place::{HostId, RankEnv, StoreHost};
use crate::transport::topology::Topology;
use bonfire_connect::platform::{clock, host, thread};
use bonfire_connect::secure::token::JobToken;
use bonfire_connect::store::{LongWait, Store, StoreError, TcpStore, TcpStoreServer};

pub(crate) use address::{Address, Settings};
pub(crate) use connect_all::Listeners;
pub use error::ConnectError;
pub(crate) use formation::{Formation, Formed};
pub use reach::Reach;

use address::Card;
use error::Result;
use store_client::connect_to_store;
use watch::Watch;

/// The counter in the store of how often the launcher has started all ranks again.
pub const RESTARTS_KEY: &str = "restarts";
/// How often a rank that waits for others looks whether they have begun again without it.
const STALE_LOOK: Duration = Duration::from_secs(2);
/// How long a rank that serves the store stays after its own failure.
const LINGER: Duration = Duration::from_secs(3);
/// How often it looks whether the others have left.
const LEAVE_LOOK: Duration = Duration::from_millis(10);
/// For those who wait without end; a clock has no room for more than some centuries.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Instant,
    started: Instant,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        let started = clock::now();
        let end = started.checked_add(timeout);
        Self { end: end.unwrap_or(started + FOR_EVER), started }
    }

    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(clock::now())
    }

    /// The error that these ranks have not come by now.
    fn missed(&self, missing: Vec<Rank>, world_size: WorldSize) -> ConnectError {
        ConnectError::Missing { missing, world_size, waited: clock::since(self.started) }
    }
}

/// What a process needs to meet others of its job when a group is split.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) token: JobToken,
    pub(crate) host: HostId,
    /// The interface through which the others reach it.
    interface: SocketAddr,
    /// Answers who asks what its ranks do, if the system allows it.
    pub(crate) inspection: Option<Arc<Inspection>>,
    /// Ranks of the job on this host; 1 until all have met.
    ranks: usize,
}

impl Home {
    pub(crate) fn has_stream_threads(&self, options: &GroupOptions, streams: u8) -> bool {
        let cores = host::cores();
        options.stream_threads.are_on(streams, cores, self.ranks)
    }

    pub(crate) fn listen(&self) -> Result<(Listeners, Address)> {
        let (listeners, tcp) = Listeners::open(self.interface)?;
        let address = Address {
            host: self.host.clone(),
            unix: listeners.unix_name().to_owned(),
            tcp,
            shares: bonfire_sys::can_share_memory(),
        };
        Ok((listeners, address))
    }
}

#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) topology: Topology,
    pub(crate) home: Home,
    pub(crate) formed: Formed,
    pub(crate) chunk_bytes: usize,
}

pub(crate) fn meet(env: &RankEnv, options: &GroupOptions) -> Result<Met> {
    let chunk_bytes = options.chunk_bytes_checked()?;
    let streams = options.streams_checked()?;
    let deadline = Deadline::after(options.startup_timeout);
    check_open_files(env.world_size)?;
    let store_client = connect_to_store(env, options.tls, deadline)?;
    let (store, token) = (&store_client.store, &store_client.token);
    let mut home = Home {
        token: token.clone(),
        host: HostId::of_this_process(env.host_id.as_deref()),
        interface: store.local_addr(),
        inspection: inspection(env, options),
        ranks: 1,
    };
    let (listeners, address) = home.listen()?;
    let mine = Card { settings: Settings::new(options), address };
    let met = publish(env, store, &mine, deadline).and_then(|addresses| {
        reach::check(env, store, &addresses, &listeners, deadline)?;
        Ok(addresses)
    });
    let addresses = match met {
        Ok(addresses) => addresses,
        Err(error) => {
            leave(env, store, store_client.server.as_ref());
            return Err(error);
        }
    };
    let neighbours = addresses.iter().filter(|other| other.host == home.host);
    home.ranks = neighbours.count();
    let watch = Watch::new(store, env);
    let formation = Formation {
        me: env.rank,
        group: connect_all::JOB,
        token,
        addresses: &addresses,
        options,
        chunk_bytes,
        streams,
        has_stream_threads: home.has_stream_threads(options, streams),
        deadline,
        guard: &|missing| watch.look(missing),
    };
    // Whoever connects to this rank is done with the store, so if it is served here it may go then.
    let formed = formation.form(listeners).inspect_err(|error| {
        watch::report_failure(store, env, error);
        leave(env, store, store_client.server.as_ref());
    })?;
    Ok(Met {
        topology: Topology::of(addresses.iter().map(|address| &address.host)),
        home,
        formed,
        chunk_bytes,
    })
}

/// What the connections to the other ranks take: two descriptors of each control connection, and one of
/// the data connection or the ring.
fn files_of_peers(world_size: WorldSize) -> u64 {
    3 * (u64::from(world_size.get()) - 1)
}

fn check_open_files(world_size: WorldSize) -> Result<()> {
    let needed = files_of_peers(world_size);
    let left = host::open_files_left();
    if needed > left { Err(ConnectError::OpenFiles { world_size, needed, left }) } else { Ok(()) }
}

/// A job that cannot be inspected is worth more than none.
fn inspection(env: &RankEnv, options: &GroupOptions) -> Option<Arc<Inspection>> {
    let opened = Inspection::open(env, options.record_on_signal);
    let warn = |error: &io::Error| {
        let rank = env.rank;
        tracing::warn!(target: "bonfire", "rank {rank}: `bonfire inspect` cannot ask it: {error}");
    };
    opened.inspect_err(warn).ok().map(Arc::new)
}

fn publish(
    env: &RankEnv,
    store: &TcpStore,
    mine: &Card,
    deadline: Deadline,
) -> Result<Vec<Address>> {
    refuse_stale(env, store)?;
    if store.add(&key(env, &format!("claim/{}", env.rank)), 1)? != 1 {
        return Err(ConnectError::RankTaken { rank: env.rank });
    }
    let address_key = |rank: Rank| key(env, &format!("address/{rank}"));
    store.set(&address_key(env.rank), &mine.encode())?;
    let missing = || -> Vec<Rank> {
        let is_missing = |rank: &Rank| store.get(&address_key(*rank), Duration::ZERO).is_err();
        env.world_size.ranks().filter(is_missing).collect()
    };
    let mut cards = Vec::with_capacity(env.world_size.len());
    let mut wait = LongWait::begin();
    for rank in env.world_size.ranks() {
        let bytes = loop {
            let left = deadline.left();
            match store.get(&address_key(rank), left.min(STALE_LOOK)) {
                Ok(bytes) => break bytes,
                Err(StoreError::Timeout { .. }) if left <= STALE_LOOK => {
                    return Err(deadline.missed(missing(), env.world_size));
                }
                // The others may have begun again without this rank, which then waits for nobody.
                Err(StoreError::Timeout { .. }) => refuse_stale(env, store)?,
                Err(error) => return Err(error.into()),
            }
            log_missing(env, &mut wait, missing);
        };
        cards.push(Card::decode(rank, &bytes)?);
    }
    for (rank, card) in env.world_size.ranks().zip(&cards) {
        mine.settings.agree(env.rank, rank, &card.settings)?;
    }
    Ok(cards.into_iter().map(|card| card.address).collect())
}

/// The name in the store of what belongs to this attempt: the ranks of two attempts never mix.
fn key(env: &RankEnv, name: &str) -> String {
    format!("attempt/{}/{name}", env.restart_count)
}

/// An error if the job has begun a later attempt than the one that this rank belongs to.
fn refuse_stale(env: &RankEnv, store: &TcpStore) -> Result<()> {
    let current = store.add(RESTARTS_KEY, 0)?;
    if current > i64::from(env.restart_count) {
        return Err(ConnectError::StaleAttempt {
            rank: env.rank,
            restart_count: env.restart_count,
            current,
        });
    }
    Ok(())
}

/// Says whom this rank waits for, if that takes long. One rank of each host does, and rank 1 for rank 0.
fn log_missing(env: &RankEnv, wait: &mut LongWait, missing: impl Fn() -> Vec<Rank>) {
    if env.local_rank == 0 || env.rank == Rank::new(1) {
        wait.log(|| {
            let place = match env.agent_store {
                StoreHost::Nearby => String::new(),
                _ => format!(" (meeting at {}:{})", env.master_addr, env.master_port),
            };
            format!("rank {} of {}{place}", list(&missing()), env.world_size)
        });
    }
}

/// This rank has failed to meet the others. If it serves the store, it stays until they have had time
/// to find out the same: otherwise all they would learn is that the store is gone.
fn leave(env: &RankEnv, store: &TcpStore, server: Option<&TcpStoreServer>) {
    let left_key = key(env, "left");
    // An error here would hide the one that is about to be reported.
    let mut left = store.add(&left_key, 1);
    let linger = Deadline::after(LINGER);
    while server.is_some()
        && !linger.left().is_zero()
        && left.is_ok_and(|left| left < i64::from(env.world_size.get()))
    {
        thread::sleep(LEAVE_LOOK);
        left = store.add(&left_key, 0);
    }
}

#[cfg(test)]
mod tests;
