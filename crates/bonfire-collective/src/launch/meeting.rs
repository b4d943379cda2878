//! Where the ranks of the job meet, and which ranks are this host's.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;

use bonfire_plan::{Rank, WorldSize};
use tracing::warn;

use super::{AgentOptions, LaunchError, Nodes};
use crate::environment::{JOB_TOKEN, RankEnv, StoreHost, job_token_from_env};
use crate::overrides::AlgorithmOverrides;
use crate::store::{StoreError, TcpStoreServer};
use crate::token::JobToken;

/// The store, served here or on host 0, and the numbering of the ranks.
#[derive(Debug)]
pub(super) struct Meeting {
    /// Serves until dropped; on other hosts than host 0 there is none.
    _server: Option<TcpStoreServer>,
    address: String,
    port: u16,
    token: JobToken,
    world_size: WorldSize,
    first_rank: u32,
    nproc_per_node: NonZeroU32,
}

impl Meeting {
    /// Checks the layout of the job and serves the store if that is this host's task.
    pub(super) fn open(options: &AgentOptions) -> Result<Self, LaunchError> {
        let nproc_per_node = options.nproc_per_node;
        let own_token = job_token_from_env()?;
        match &options.nodes {
            Nodes::One { port } => {
                let token = own_token.map_or_else(JobToken::random, Ok)?;
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                let server = TcpStoreServer::bind(address, &token)?;
                Ok(Self {
                    address: server.local_addr().ip().to_string(),
                    port: server.local_addr().port(),
                    _server: Some(server),
                    token,
                    world_size: world_size(NonZeroU32::MIN, nproc_per_node)?,
                    first_rank: 0,
                    nproc_per_node,
                })
            }
            Nodes::Several {
                nnodes,
                node_rank,
                master_addr,
                master_port,
            } => {
                let world_size = world_size(*nnodes, nproc_per_node)?;
                if *node_rank >= nnodes.get() {
                    return Err(LaunchError::NodeRankOutOfRange {
                        node_rank: *node_rank,
                        nnodes: *nnodes,
                    });
                }
                if *master_port == 0 {
                    return Err(LaunchError::NoPort);
                }
                let token = own_token.unwrap_or_else(|| {
                    warn!(
                        "{JOB_TOKEN} is not set, so whoever reaches {master_addr}:{master_port} can \
                         join this job; set it to one `openssl rand -hex 32` on every node"
                    );
                    JobToken::empty()
                });
                let server = match node_rank {
                    0 => Some(serve(master_addr, *master_port, &token)?),
                    _ => None,
                };
                Ok(Self {
                    _server: server,
                    address: master_addr.clone(),
                    port: *master_port,
                    token,
                    world_size,
                    first_rank: node_rank * nproc_per_node.get(),
                    nproc_per_node,
                })
            }
        }
    }

    /// The place of each rank of this host, in the order of their local ranks.
    pub(super) fn places(&self) -> impl Iterator<Item = RankEnv> {
        (0..self.nproc_per_node.get()).map(|local_rank| RankEnv {
            rank: Rank::new(self.first_rank + local_rank),
            world_size: self.world_size,
            local_rank,
            local_world_size: self.nproc_per_node.get(),
            master_addr: self.address.clone(),
            master_port: self.port,
            job_token: self.token.clone(),
            agent_store: StoreHost::Agent,
            host_id: None,
            overrides: AlgorithmOverrides::default(),
        })
    }

    /// The number of ranks of the whole job.
    pub(super) fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// Whether all ranks are on this host.
    pub(super) fn is_one_host(&self) -> bool {
        self.world_size.get() == self.nproc_per_node.get()
    }
}

fn world_size(nnodes: NonZeroU32, nproc_per_node: NonZeroU32) -> Result<WorldSize, LaunchError> {
    nnodes
        .checked_mul(nproc_per_node)
        .and_then(|ranks| WorldSize::new(ranks.get()).ok())
        .ok_or(LaunchError::WorldTooLarge {
            nnodes,
            nproc_per_node,
        })
}

/// Serves the store on the first of host 0's addresses that is this host's.
fn serve(address: &str, port: u16, token: &JobToken) -> Result<TcpStoreServer, LaunchError> {
    let resolve = |source| LaunchError::Resolve {
        address: address.to_owned(),
        source,
    };
    let candidates = (address, port).to_socket_addrs().map_err(resolve)?;
    let mut refusal = resolve(io::Error::new(
        io::ErrorKind::NotFound,
        "the name has no address",
    ));
    for candidate in candidates {
        match TcpStoreServer::bind(candidate, token) {
            Ok(server) => return Ok(server),
            Err(StoreError::Bind { address, source })
                if source.kind() == io::ErrorKind::AddrNotAvailable =>
            {
                refusal = LaunchError::NotMyAddress { address };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(refusal)
}
