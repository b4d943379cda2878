//! A rank at work: what its operations change, and how they are queued, waited for and freed.

pub(crate) mod core;
pub(crate) mod engine;
pub(crate) mod host_path;
pub(crate) mod watch;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bonfire_cuda::{Event, Span, Stream};
use bonfire_plan::{Collective, DType, Rank, WorldSize};

use crate::device::Lanes;
use crate::device::kernels::Kernels;
use crate::device::sync::Flags;
use crate::options::{CudaAlgorithm, CudaOptions, CudaSync};
use crate::program::choice::{CudaChoice, Freedom};
use crate::program::{Place, Programs};
use crate::request::Request;
use crate::request::elements::Elements;
use crate::run::engine::Need;
use crate::run::host_path::HostPath;
use crate::setup::peers::Peers;
use crate::setup::shared::Shared;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) me: Rank,
    pub(crate) world_size: WorldSize,
    pub(crate) options: CudaOptions,
    pub(crate) choice: CudaChoice,
    pub(crate) stream: Arc<Stream>,
    pub(crate) flags: Flags,
    pub(crate) kernels: Kernels,
    pub(crate) inboxes: [Vec<Span>; 2],
    pub(crate) path: Path,
    pub(crate) programs: Programs,
    /// What all ranks have loaded kernels for.
    pub(crate) ready: HashSet<Need>,
    pub(crate) lanes: Option<Lanes>,
    pub(crate) blocks_max: u32,
    pub(crate) waiting_blocks_max: u32,
    pub(crate) peers: Peers,
    pub(crate) done: Event,
    pub(crate) last: Last,
    /// Whether anything was queued that was not seen to be done.
    pub(crate) has_queued: bool,
    pub(crate) retired: Vec<Shared>,
    /// What the parts of `inboxes` and the pages of `flags` are parts of.
    pub(crate) opened: Vec<Shared>,
}

#[derive(Debug)]
pub(crate) enum Path {
    /// Through the memory of all ranks.
    Peers,
    /// Through host memory. Nothing is open to other ranks, and nothing waits for them on the device.
    Host(HostPath),
}

impl Path {
    pub(crate) fn host() -> Self {
        Self::Host(HostPath::new())
    }
}

/// The operation that was queued last, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    pub(crate) collective: Collective,
    pub(crate) elements: Elements,
}

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Request::of(self.collective, None, &self.elements))
    }
}

impl Last {
    pub(crate) fn none() -> Self {
        Self { collective: Collective::Barrier, elements: Elements::first(DType::U8, 0) }
    }
}

impl State {
    pub(crate) fn place(&self) -> Place {
        Place { me: self.me, world_size: self.world_size }
    }

    pub(crate) fn is_ready(&self, need: &Need) -> bool {
        self.ready.contains(need)
    }

    pub(crate) fn choose(&self, bytes: usize, freedom: Freedom) -> CudaAlgorithm {
        match self.options.algorithm {
            Some(CudaAlgorithm::OneShot) if self.is_one_shot(bytes) => CudaAlgorithm::OneShot,
            None if self.is_one_shot(bytes) && !self.choice.prefers_two_shot(bytes) => {
                CudaAlgorithm::OneShot
            }
            _ => match self.choice.algorithm(bytes, freedom) {
                CudaAlgorithm::Direct if self.is_two_shot(bytes) => CudaAlgorithm::TwoShot,
                algorithm => algorithm,
            },
        }
    }

    /// Whether `bytes` can be reduced, where they are, in one kernel that waits; nobody asked for another way.
    fn is_two_shot(&self, bytes: usize) -> bool {
        let asked = self.options.algorithm;
        asked.is_none_or(|asked| asked == CudaAlgorithm::TwoShot) && self.may_two_shot(bytes)
    }

    pub(crate) fn may_two_shot(&self, bytes: usize) -> bool {
        self.flags.sync() == CudaSync::Kernel
            && bytes <= self.options.two_shot_bytes_max
            && bytes > 0
    }

    /// Whether that many bytes can be reduced in one kernel that waits.
    pub(crate) fn is_one_shot(&self, bytes: usize) -> bool {
        self.flags.sync() == CudaSync::Kernel
            && bytes <= self.options.one_shot_bytes_max
            && bytes > 0
    }

    /// Gives up the memory of the other ranks; returns the own.
    pub(crate) fn close_peers(&mut self) -> Vec<Span> {
        self.flags.close();
        self.inboxes = [Vec::new(), Vec::new()];
        let retired = std::mem::take(&mut self.retired).into_iter();
        let opened = std::mem::take(&mut self.opened).into_iter();
        opened.chain(retired).filter_map(Shared::close).collect()
    }
}
