//! What an operation of a rank changes.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bonfire_cuda::{
    Context, CudaError, Event, FlagPage, Nvrtc, PinnedRegion, Priority, Span, Stream,
};
use bonfire_plan::{Collective, DType, Rank, WorldSize};

use super::buffer::Elements;
use super::choice::{CudaChoice, Freedom};
use super::engine::Need;
use super::host_path::HostPath;
use super::kernels::Kernels;
use super::lanes::Lanes;
use super::neighbours::Neighbours;
use super::options::{CudaAlgorithm, CudaOptions, CudaSync};
use super::peers::Peers;
use super::program::{Place, Programs};
use super::shared::Shared;
use super::sync::Flags;

/// What an operation changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) me: Rank,
    pub(super) world_size: WorldSize,
    pub(super) options: CudaOptions,
    pub(super) choice: CudaChoice,
    pub(super) stream: Arc<Stream>,
    pub(super) flags: Flags,
    pub(super) kernels: Kernels,
    pub(super) staging: [Vec<Span>; 2],
    pub(super) path: Path,
    pub(super) programs: Programs,
    /// What all ranks have loaded kernels for.
    pub(super) ready: HashSet<Need>,
    pub(super) lanes: Option<Lanes>,
    pub(super) blocks_max: u32,
    pub(super) waiting_blocks_max: u32,
    pub(super) peers: Peers,
    pub(super) done: Event,
    pub(super) last: Last,
    /// Whether anything was queued that was not seen to be done.
    pub(super) has_queued: bool,
    pub(super) retired: Vec<Shared>,
    /// What the parts of `staging` and the pages of `flags` are parts of.
    pub(super) opened: Vec<Shared>,
}

/// The way that data take.
#[derive(Debug)]
pub(super) enum Path {
    /// Through the memory of all ranks.
    Peers,
    /// Through host memory. Nothing is open to other ranks, and nothing waits for them on the device.
    Host(HostPath),
}

impl Path {
    pub(super) fn host() -> Self {
        Self::Host(HostPath::new())
    }
}

/// The operation that was queued last, for messages.
#[derive(Clone, Debug)]
pub(super) struct Last {
    pub(super) collective: Collective,
    pub(super) elements: Elements,
}

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Elements { dtype, range } = &self.elements;
        write!(f, "{} of {dtype} x {}", self.collective, range.len())
    }
}

impl Last {
    /// Before the first.
    pub(super) fn none() -> Self {
        Self {
            collective: Collective::Barrier,
            elements: Elements::first(DType::U8, 0),
        }
    }
}

impl State {
    pub(super) fn place(&self) -> Place {
        Place {
            me: self.me,
            world_size: self.world_size,
        }
    }

    /// Whether all ranks have loaded the kernels for it.
    pub(super) fn is_ready(&self, need: &Need) -> bool {
        self.ready.contains(need)
    }

    /// The algorithm for an all-reduce of that many bytes.
    pub(super) fn choose(&self, bytes: usize, freedom: Freedom) -> CudaAlgorithm {
        match self.options.algorithm {
            Some(CudaAlgorithm::OneShot) | None if self.is_one_shot(bytes) => {
                CudaAlgorithm::OneShot
            }
            _ => self.choice.algorithm(bytes, freedom),
        }
    }

    /// Whether so many bytes can be reduced in one kernel that waits.
    pub(super) fn is_one_shot(&self, bytes: usize) -> bool {
        self.flags.sync() == CudaSync::Kernel
            && bytes <= self.options.one_shot_bytes_max
            && bytes > 0
    }

    /// Gives up the memory of the other ranks; returns the own.
    pub(super) fn close_peers(&mut self) -> Vec<Span> {
        self.flags.close();
        self.staging = [Vec::new(), Vec::new()];
        let retired = std::mem::take(&mut self.retired).into_iter();
        let opened = std::mem::take(&mut self.opened).into_iter();
        opened.chain(retired).filter_map(Shared::close).collect()
    }
}

/// What a rank makes by itself.
pub(super) struct Local {
    pub(super) stream: Stream,
    pub(super) control: Stream,
    pub(super) done: Event,
    pub(super) page_copy: Arc<PinnedRegion>,
    pub(super) copied: Event,
    pub(super) marks: Arc<PinnedRegion>,
    pub(super) kernels: Kernels,
}

impl Local {
    pub(super) fn new(context: &Context, neighbours: &Neighbours) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(context, Priority::High)?,
            control: Stream::new(context, Priority::High)?,
            done: Event::new(context)?,
            page_copy: PinnedRegion::allocate(context, FlagPage::BYTES)?,
            copied: Event::new(context)?,
            marks: PinnedRegion::allocate(context, FlagPage::MARKS_BYTES)?,
            kernels: Kernels::new(context, Nvrtc::load()?, neighbours),
        })
    }
}
