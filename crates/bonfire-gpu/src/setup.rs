//! How the ranks of a group come to exchange data: set up once, decided by all alike.

pub(crate) mod card;
mod descriptors;
mod pace;
pub(crate) mod peers;
mod probe;
mod reach;
pub(crate) mod shared;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::Context;
use bonfire_kernels::launch::flags::FlagPage;
use bonfire_kernels::launch::one_shot::OneShotKernel;

use crate::device::Local;
use crate::device::sync::Waiting;
use crate::error::{CudaGroupError, Result};
use crate::options::{CudaOptions, CudaPath};
use crate::program::choice::{CudaChoice, Ground};
use crate::program::pair_bandwidths::PairBandwidths;
use crate::setup::pace::{PACE_BYTES, Pace};
use crate::setup::peers::Peers;
use crate::setup::probe::{PROBE_BYTES, Probe};
use crate::setup::shared::Shared;
use reach::Refusal;

pub(crate) enum Connection {
    /// The memory of all ranks: flags, and two sets of inboxes, each of this size, behind one another.
    Peers {
        pages: Shared,
        inboxes: Shared,
        inboxes_bytes: usize,
        bandwidths: Option<PairBandwidths>,
    },
    Host,
}

impl Connection {
    pub(crate) fn choice(&self, options: &CudaOptions) -> CudaChoice {
        let ground = match (self, options.algorithm) {
            (Self::Host, _) => Ground::Host,
            (_, Some(asked)) => Ground::Asked(asked),
            (Self::Peers { bandwidths, .. }, None) => match bandwidths {
                Some(pairs) => Ground::Measured(pairs.clone()),
                None => Ground::OneDevice,
            },
        };
        CudaChoice::new(ground, options.lanes())
    }
}

/// Opens the memory of all ranks to each other and looks whether data arrive; if not, leaves it to the host,
/// unless the options forbid that.
pub(crate) fn connect(
    group: &ProcessGroup,
    context: &Context,
    peers: &mut Peers,
    local: &Local,
    waiting: &Waiting,
    options: &CudaOptions,
) -> Result<Connection> {
    let speaks = group.rank().get() == 0;
    if options.path == Some(CudaPath::Host) {
        if speaks {
            tracing::info!("rank 0: data go through host memory, as CudaOptions::path says");
        }
        return Ok(Connection::Host);
    }
    if let Err(crowd) = peers.cards().uncrowded() {
        if options.path == Some(CudaPath::Peer) {
            return Err(CudaGroupError::SetUp { rank: crowd.rank, reason: crowd.to_string() });
        }
        if speaks {
            tracing::warn!("rank 0: data go through host memory, because {crowd}");
        }
        return Ok(Connection::Host);
    }
    let ranks = group.world_size().len();
    let inboxes_bytes = OneShotKernel::inboxes_bytes(ranks, options.one_shot_bytes_max);
    let probed = (2 * inboxes_bytes).max(PROBE_BYTES);
    let shared_bytes = if is_measured(peers, options) { probed.max(PACE_BYTES) } else { probed };
    let opened = open(group, context, peers, local, waiting, shared_bytes)?;
    let refusals = match &opened {
        Ok(_) => &[][..],
        Err(refusals) => refusals,
    };
    if speaks {
        reach::log(refusals);
    }
    let path = reach::decide(options.path, refusals)?;
    match opened {
        Ok((pages, inboxes)) => {
            let bandwidths = is_measured(peers, options).then(|| {
                let pace = Pace { group, context, stream: &local.stream, memory: &inboxes };
                pace.run()
            });
            Ok(Connection::Peers {
                pages,
                inboxes,
                inboxes_bytes,
                bandwidths: bandwidths.transpose()?,
            })
        }
        Err(refusals) => {
            assert_eq!(path, CudaPath::Host, "{refusals:?}");
            if speaks {
                tracing::warn!(
                    "rank 0: data go through host memory, because {} of {} pairs do not reach each other's \
                     device memory",
                    pairs(&refusals),
                    group.world_size().len() * (group.world_size().len() - 1)
                );
            }
            Ok(Connection::Host)
        }
    }
}

/// Whether it takes figures to choose an algorithm: the same on all ranks.
fn is_measured(peers: &Peers, options: &CudaOptions) -> bool {
    options.algorithm.is_none() && peers.cards().are_on_several_devices()
}

/// The flags and the inboxes of all ranks, probed; or who does not reach whom.
fn open(
    group: &ProcessGroup,
    context: &Context,
    peers: &mut Peers,
    local: &Local,
    waiting: &Waiting,
    shared_bytes: usize,
) -> Result<Result<(Shared, Shared), Vec<Refusal>>> {
    let pages = match peers.try_share(&local.stream, FlagPage::BYTES)? {
        Ok(pages) => pages,
        Err(refusals) => return Ok(Err(refusals)),
    };
    let inboxes = peers.try_share(&local.stream, shared_bytes)?;
    let refusals = match inboxes {
        Ok(inboxes) => {
            let probe = Probe {
                group,
                context,
                stream: &local.stream,
                control: &local.control,
                waiting,
                memory: &inboxes,
            };
            let refusals = probe.run()?;
            if refusals.is_empty() {
                return Ok(Ok((pages, inboxes)));
            }
            close(group, inboxes)?;
            refusals
        }
        Err(refusals) => refusals,
    };
    close(group, pages)?;
    Ok(Err(refusals))
}

/// Frees memory once nobody has it open any more.
fn close(group: &ProcessGroup, memory: Shared) -> Result<()> {
    let own = memory.close();
    group.barrier()?;
    drop(own);
    Ok(())
}

fn pairs(refusals: &[Refusal]) -> usize {
    let mut pairs: Vec<(u32, u32)> = refusals.iter().map(|r| (r.by, r.of)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs.len()
}
