//! Where the ranks of the job meet, and which ranks are this host's.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use bonfire_collective::{
    Clients, EnvSettings, JobToken, RESTARTS_KEY, RankEnv, Store, StoreHost, TcpStoreServer, Tls,
};
use bonfire_plan::{Rank, WorldSize};
use tracing::warn;

use super::agents::{Agents, JOIN_WAIT, Seat};
use super::pulse::Watch;
use super::signals::Signals;
use super::supervisor::End;
use super::{AgentOptions, Graces, Nodes};
use crate::environment::{JOB_TOKEN, job_token_from_env};
use crate::error::LaunchError;

/// The store, served here or on host 0, and the numbering of the ranks.
pub(super) struct Meeting {
    /// The agents of the other hosts, if there are any. Goes before the server that it talks to.
    agents: Option<Agents>,
    /// Serves until dropped; on other hosts than host 0 there is none.
    server: Option<TcpStoreServer>,
    address: String,
    port: u16,
    token: JobToken,
    job_id: String,
    /// What was asked for; nothing leaves it to the program.
    tls: Option<Tls>,
    world_size: WorldSize,
    node_rank: u32,
    nproc_per_node: NonZeroU32,
    restart_count: u32,
}

impl Meeting {
    /// Checks the layout of the job, serves the store if that is this host's task, and waits for the
    /// agents of the other hosts.
    pub(super) fn open(options: &AgentOptions) -> Result<Self, LaunchError> {
        match &options.nodes {
            Nodes::One { port } => Self::on_one_host(options, *port),
            Nodes::Several { nnodes, node_rank, master_addr, master_port } => {
                Self::on_several_hosts(options, *nnodes, *node_rank, master_addr, *master_port)
            }
        }
    }

    fn on_one_host(options: &AgentOptions, port: u16) -> Result<Self, LaunchError> {
        let world_size = world_size(NonZeroU32::MIN, options.nproc_per_node)?;
        let token = job_token_from_env()?.map_or_else(JobToken::random, Ok)?;
        let job_id = match &options.job_id {
            Some(job_id) => job_id.clone(),
            None => JobToken::random()?.to_hex()[..16].to_owned(),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let tls = asked_of_tls(options)?;
        let (key, cover) = (token.for_job(&job_id), tls.unwrap_or(Tls::Off));
        let server = TcpStoreServer::bind_with(address, &key, cover)?;
        Ok(Self {
            agents: None,
            address: server.local_addr().ip().to_string(),
            port: server.local_addr().port(),
            server: Some(server),
            token,
            job_id,
            tls,
            world_size,
            node_rank: 0,
            nproc_per_node: options.nproc_per_node,
            restart_count: 0,
        })
    }

    fn on_several_hosts(
        options: &AgentOptions,
        nnodes: NonZeroU32,
        node_rank: u32,
        address: &str,
        port: u16,
    ) -> Result<Self, LaunchError> {
        let world_size = world_size(nnodes, options.nproc_per_node)?;
        if node_rank >= nnodes.get() {
            return Err(LaunchError::NodeRankOutOfRange { node_rank, nnodes });
        }
        if port == 0 {
            return Err(LaunchError::NoPort);
        }
        let tls = asked_of_tls(options)?;
        let token = match job_token_from_env()? {
            Some(token) => token,
            None if tls.unwrap_or(Tls::Off) != Tls::Off => return Err(LaunchError::NoToken),
            None => {
                warn!(
                    "{JOB_TOKEN} is not set, so any process that reaches {address}:{port} can join this job; \
                     set it to one `openssl rand -hex 32` on every node"
                );
                JobToken::empty()
            }
        };
        let job_id = options.job_id.clone().unwrap_or_default();
        let connection_token = token.for_job(&job_id);
        let cover = tls.unwrap_or(Tls::Off);
        let serve = || {
            let clients = Clients::Hosts;
            TcpStoreServer::bind_host(address, port, &connection_token, cover, clients, JOIN_WAIT)
        };
        let server = (node_rank == 0).then(serve).transpose()?;
        let agents = Agents::join(Seat {
            node_rank,
            nnodes: nnodes.get(),
            nproc_per_node: options.nproc_per_node.get(),
            address: address.to_owned(),
            port,
            token: connection_token,
            tls: cover,
        })?;
        Ok(Self {
            agents: Some(agents),
            server,
            address: address.to_owned(),
            port,
            token,
            job_id,
            tls,
            world_size,
            node_rank,
            nproc_per_node: options.nproc_per_node,
            restart_count: 0,
        })
    }

    pub(super) fn restart_count(&self) -> u32 {
        self.restart_count
    }

    /// The ranks are about to be started again: from here on those of the last attempt are refused.
    pub(super) fn start_again(&mut self) -> Result<(), LaunchError> {
        self.restart_count += 1;
        if let Some(server) = &self.server {
            server.store().add(RESTARTS_KEY, 1)?;
        }
        Ok(())
    }

    pub(super) fn job_name(&self) -> &str {
        if self.job_id.is_empty() { "none" } else { &self.job_id }
    }

    /// Has `on_failure` called when a rank of another host fails.
    pub(super) fn watch(&self, on_failure: impl FnOnce() + Send + 'static) -> Option<Watch> {
        let agents = self.agents.as_ref()?;
        Some(agents.watch(self.restart_count, on_failure))
    }

    /// The end of the attempt on all hosts, given that on this one.
    pub(super) fn agree(&self, end: End, graces: Graces, signals: &Signals) -> End {
        match &self.agents {
            Some(agents) => agents.agree(self.restart_count, end, graces, signals),
            None => end,
        }
    }

    pub(super) fn part(&self) {
        if let Some(agents) = &self.agents {
            agents.part();
        }
    }

    pub(super) fn node_rank(&self) -> u32 {
        self.node_rank
    }

    pub(super) fn nnodes(&self) -> u32 {
        self.world_size.get() / self.nproc_per_node
    }

    /// The place of each rank of this host, in the order of their local ranks.
    pub(super) fn places(&self) -> impl Iterator<Item = RankEnv> {
        (0..self.nproc_per_node.get()).map(|local_rank| RankEnv {
            rank: Rank::new(self.node_rank * self.nproc_per_node.get() + local_rank),
            world_size: self.world_size,
            local_rank,
            local_world_size: self.nproc_per_node.get(),
            master_addr: self.address.clone(),
            master_port: self.port,
            job_token: self.token.clone(),
            agent_store: StoreHost::Agent,
            job_id: self.job_id.clone(),
            restart_count: self.restart_count,
            host_id: None,
            launcher_id: Some(std::process::id()),
            settings: EnvSettings { tls: self.tls, ..EnvSettings::default() },
        })
    }

    pub(super) fn world_size(&self) -> WorldSize {
        self.world_size
    }

    pub(super) fn is_one_host(&self) -> bool {
        self.world_size.get() == self.nproc_per_node.get()
    }
}

fn asked_of_tls(options: &AgentOptions) -> Result<Option<Tls>, LaunchError> {
    Ok(match options.tls {
        Some(tls) => Some(tls),
        None => EnvSettings::from_env()?.tls,
    })
}

fn world_size(nnodes: NonZeroU32, nproc_per_node: NonZeroU32) -> Result<WorldSize, LaunchError> {
    nnodes
        .checked_mul(nproc_per_node)
        .and_then(|ranks| WorldSize::new(ranks.get()).ok())
        .ok_or(LaunchError::WorldTooLarge { nnodes, nproc_per_node })
}
