//! The way to the store: served here if this is rank 0's task, and found wherever it is.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bonfire_plan::Rank;
use tracing::warn;

use super::discovery::{self, Discovery};
use super::error::Result;
use super::store_address::StoreAddress;
use super::torchrun::TorchStore;
use super::{ConnectError, Deadline, log_missing};
use crate::options::place::{RankEnv, StoreHost};
use bonfire_connect::connections::Tls;
use bonfire_connect::platform::thread;
use bonfire_connect::secure::token::JobToken;
use bonfire_connect::store::{Clients, LongWait, StoreError, TcpStore, TcpStoreServer};

/// Pause before rank 0's store is looked for again.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Pause before torchrun's store is tried again, whose host may not have a name yet.
const TORCHRUN_PAUSE: Duration = Duration::from_millis(100);
/// How long a store is tried before its address is asked for again: it can be that of an earlier attempt.
const TRY_MAX: Duration = Duration::from_secs(3);

/// A connection to the store, and what keeps the store there.
#[derive(Debug)]
pub(super) struct StoreClient {
    pub(super) store: TcpStore,
    /// What all connections of the job prove.
    pub(super) token: JobToken,
    /// In rank 0, unless the launcher serves.
    pub(super) server: Option<TcpStoreServer>,
    _discovery: Option<Discovery>,
}

impl StoreClient {
    fn new(store: TcpStore, token: JobToken, server: Option<TcpStoreServer>) -> Self {
        Self { store, token, server, _discovery: None }
    }
}

/// Serves the store if that is this rank's task, and connects to it.
pub(super) fn connect_to_store(env: &RankEnv, tls: Tls, deadline: Deadline) -> Result<StoreClient> {
    let is_first = env.rank == Rank::new(0);
    let draws_token = matches!(env.agent_store, StoreHost::Nearby | StoreHost::Torchrun);
    if tls != Tls::Off && env.job_token.is_empty() && !draws_token {
        return Err(ConnectError::NoToken);
    }
    match env.agent_store {
        StoreHost::Agent => connect(env, tls, None, deadline),
        StoreHost::RankZero if is_first => {
            let server = serve(env, tls, deadline)?;
            connect(env, tls, Some(server), deadline)
        }
        StoreHost::RankZero => connect(env, tls, None, deadline),
        StoreHost::Nearby if is_first => {
            let (server, note) = serve_anywhere(env, (Ipv4Addr::LOCALHOST, 0).into(), tls)?;
            let discovery = Discovery::serve(env, &note)?;
            let store = reach(&note, tls, deadline.left())?;
            Ok(StoreClient {
                _discovery: Some(discovery),
                ..StoreClient::new(store, note.token, Some(server))
            })
        }
        StoreHost::Torchrun if is_first => {
            let mut torchrun = torchrun_store(env, deadline)?;
            let torch = |source| torch_error(env, source);
            let interface = torchrun.interface().map_err(torch)?;
            let (server, note) = serve_anywhere(env, interface, tls)?;
            torchrun.leave(&note).map_err(torch)?;
            let store = reach(&note, tls, deadline.left())?;
            Ok(StoreClient::new(store, note.token, Some(server)))
        }
        StoreHost::Nearby => find(env, tls, deadline, || discovery::ask(env)),
        StoreHost::Torchrun => {
            let mut torchrun = torchrun_store(env, deadline)?;
            find(env, tls, deadline, || torchrun.read().map_err(|source| torch_error(env, source)))
        }
    }
}

fn connect(
    env: &RankEnv,
    tls: Tls,
    server: Option<TcpStoreServer>,
    deadline: Deadline,
) -> Result<StoreClient> {
    let token = env.connection_token();
    let (host, port) = (&env.master_addr, env.master_port);
    let store = TcpStore::connect_with(host, port, &token, tls, deadline.left())?;
    Ok(StoreClient::new(store, token, server))
}

/// Serves the store in rank 0, at MASTER_PORT of whatever MASTER_ADDR resolves to here.
fn serve(env: &RankEnv, tls: Tls, deadline: Deadline) -> Result<TcpStoreServer> {
    if env.job_token.is_empty() && env.local_world_size < env.world_size.get() {
        warn!(
            "BONFIRE_JOB_TOKEN is not set, so any process that reaches {}:{} can join this job; export one \
             `openssl rand -hex 32` to all ranks",
            env.master_addr, env.master_port
        );
    }
    let clients =
        if env.local_world_size < env.world_size.get() { Clients::Hosts } else { Clients::OneHost };
    let server = TcpStoreServer::bind_host(
        &env.master_addr,
        env.master_port,
        &env.connection_token(),
        tls,
        clients,
        deadline.left(),
    )?;
    Ok(server)
}

/// Serves the store in rank 0 at a free port. The token of a job that has none is drawn here, and
/// announced with the port.
fn serve_anywhere(
    env: &RankEnv,
    mut interface: SocketAddr,
    tls: Tls,
) -> Result<(TcpStoreServer, StoreAddress)> {
    let secret = if env.job_token.is_empty() { JobToken::random()? } else { env.job_token.clone() };
    let token = secret.for_job(&env.job_id);
    interface.set_port(0);
    let server = TcpStoreServer::bind_with(interface, &token, tls)?;
    let address = server.local_addr();
    Ok((server, StoreAddress { address, token }))
}

/// Asks where rank 0's store is until it is reached there.
fn find(
    env: &RankEnv,
    tls: Tls,
    deadline: Deadline,
    mut ask: impl FnMut() -> Result<Option<StoreAddress>>,
) -> Result<StoreClient> {
    let mut wait = LongWait::begin();
    loop {
        if let Some(note) = ask()? {
            match reach(&note, tls, deadline.left().min(TRY_MAX)) {
                Ok(store) => return Ok(StoreClient::new(store, note.token, None)),
                // It may be gone, and another one, or another job, be there in its place.
                Err(StoreError::Unreachable { .. } | StoreError::WrongToken { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if deadline.left().is_zero() {
            return Err(deadline.missed(vec![Rank::new(0)], env.world_size));
        }
        log_missing(env, &mut wait, || vec![Rank::new(0)]);
        thread::sleep(LOOK_PAUSE);
    }
}

fn reach(note: &StoreAddress, tls: Tls, timeout: Duration) -> Result<TcpStore, StoreError> {
    let address = note.address;
    let host = match address {
        // A link-local address is one of an interface.
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            format!("{}%{}", address.ip(), address.scope_id())
        }
        _ => address.ip().to_string(),
    };
    TcpStore::connect_with(&host, address.port(), &note.token, tls, timeout)
}

/// Torchrun's agents may still be meeting each other.
fn torchrun_store(env: &RankEnv, deadline: Deadline) -> Result<TorchStore> {
    let mut wait = LongWait::begin();
    loop {
        let source = match TorchStore::connect(env) {
            Ok(store) => return Ok(store),
            Err(source) => source,
        };
        if deadline.left().is_zero() {
            return Err(torch_error(env, source));
        }
        let (host, port) = (&env.master_addr, env.master_port);
        wait.log(|| format!("torchrun's store at {host}:{port} ({source})"));
        thread::sleep(TORCHRUN_PAUSE);
    }
}

fn torch_error(env: &RankEnv, source: io::Error) -> ConnectError {
    ConnectError::Torchrun { address: format!("{}:{}", env.master_addr, env.master_port), source }
}
