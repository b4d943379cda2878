//! Where a rank is in its job, and where the job meets: plain data, which a launcher fills in.

use bonfire_plan::{Rank, WorldSize};
use serde::{Deserialize, Serialize};

use crate::options::settings::EnvSettings;
use bonfire_connect::platform::host;
use bonfire_connect::secure::token::JobToken;

/// A worker's place in its job.
#[derive(Clone, Debug)]
pub struct RankEnv {
    /// This process among all processes.
    pub rank: Rank,
    /// The number of processes of the job.
    pub world_size: WorldSize,
    /// This process among those of its host.
    pub local_rank: u32,
    /// The number of processes on this host.
    pub local_world_size: u32,
    /// The host name or address of the store.
    pub master_addr: String,
    /// The port of the store.
    pub master_port: u16,
    /// The secret of the job.
    pub job_token: JobToken,
    /// The process that serves the store.
    pub agent_store: StoreHost,
    /// The name of the job, empty if it has none. It is part of every handshake: processes of jobs
    /// with different names never meet, even where they have the same token or none.
    pub job_id: String,
    /// How often all ranks of the job were started again after a failure. A rank that is left over
    /// from an earlier attempt is refused.
    pub restart_count: u32,
    /// `BONFIRE_HOST_ID`, ranks with different texts count as being on different hosts, though they may share one.
    /// Several hosts can so be rehearsed on one machine; ranks on "different hosts" connect by TCP. It divides only:
    /// ranks on different machines, or in different network namespaces, stay on different hosts whatever it says.
    pub host_id: Option<String>,
    /// The process of the launcher of this project that started this one, if one did.
    pub launcher_id: Option<u32>,
    /// What goes before the program's options.
    pub settings: EnvSettings,
}

impl RankEnv {
    /// What the connections of this job prove: the token, bound to the name of the job.
    pub(crate) fn connection_token(&self) -> JobToken {
        self.job_token.for_job(&self.job_id)
    }
}

/// Who serves the store through which the ranks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The launcher does, and all ranks are its clients.
    Agent,
    /// Rank 0 does, at `MASTER_PORT`.
    RankZero,
    /// Rank 0 does, at a free port of the host that all ranks are on, and announces the port through a Unix-domain
    /// socket named by the job. `MASTER_ADDR` and `MASTER_PORT` do not matter.
    Nearby,
    /// Rank 0 does, at a free port, and announces the port through the store of torchrun's agent,
    /// which has `MASTER_PORT` for itself.
    Torchrun,
}

/// Which host, and which network namespace on it: two containers of one machine count as two hosts,
/// because neither sockets nor descriptors pass between them by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostId(String);

impl HostId {
    /// The host of this process; `extra` divides what would otherwise be one host.
    pub fn of_this_process(extra: Option<&str>) -> Self {
        let extra = extra.unwrap_or_default();
        Self(format!("{} {extra}", host::identity()))
    }
}
