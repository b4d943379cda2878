//! The group of GPUs: what a program calls.

pub(crate) mod buffer;
mod memory;
mod movement;
mod operations;
#[cfg(test)]
mod tests;

use bonfire_sys::lock::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::{Context, CudaError, Event, Span, Stream};
use bonfire_kernels::launch::flags::{AbortFlag, FlagPage, RANKS_MAX};
use bonfire_plan::{DType, Rank, ReduceOp, WorldSize};

use crate::device::Local;
use crate::device::neighbours::Neighbours;
use crate::device::sync::{Flags, Waiting};
use crate::error::{CudaGroupError, Result};
use crate::group::buffer::CudaBuffer;
use crate::life::agree;
use crate::life::guard::Guard;
use crate::life::late_drop::drop_later;
use crate::options::{CudaAlgorithm, CudaOptions, CudaPath, CudaSync};
use crate::program::Programs;
use crate::program::choice::{CudaChoice, Freedom};
use crate::request::elements::Elements;
use crate::run::core::Core;
use crate::run::watch::Watch;
use crate::run::{Last, Path, State};
use crate::setup::card::SyncChoice;
use crate::setup::peers::Peers;
use crate::setup::shared::Shared;
use crate::setup::{Connection, connect};

/// A rank's membership in a group of GPUs, one per rank.
///
/// Every rank must queue the same operations, in the same order, on the same ranges. An operation is queued on
/// [`stream`](Self::stream) and the call returns at once, unless data go through the host ([`path`](Self::path)), where
/// it returns when the operation is done; [`synchronize`](Self::synchronize) waits, with a deadline, and is where a
/// failure of any rank comes out. Results are the same bits on every rank and in every run.
///
/// Clones are the same membership. When the last one and the last buffer are dropped the rank waits for the
/// others to leave as well.
#[derive(Clone, Debug)]
pub struct CudaGroup {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    state: Arc<Mutex<State>>,
    /// Of what waits on the device; nothing does on the way through the host.
    guard: Option<Guard>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, world_size) = (self.rank(), self.core.group.world_size());
        write!(f, "CudaGroup(rank {rank} of {world_size})")
    }
}

impl CudaGroup {
    /// Forms the group: every rank of `group` calls it with a context of its device, and all ranks of one
    /// process with clones of one [`Neighbours`]. Looks whether the ranks reach each other's memory; where two do not, the group's data go
    /// through host memory, and the log says which two and why.
    ///
    /// # Errors
    /// [`CudaGroupError::SetUp`] on all ranks, naming the rank that cannot take part and why.
    pub fn new(
        group: ProcessGroup,
        context: &Context,
        neighbours: &Neighbours,
        options: CudaOptions,
    ) -> Result<Self> {
        let (me, world_size) = (group.rank(), group.world_size());
        if world_size.len() > RANKS_MAX {
            return Err(CudaGroupError::TooManyRanks { world_size: world_size.len() });
        }
        let mut peers = Peers::meet(&group, context, neighbours, &options)?;
        let options =
            CudaOptions { ring_channels: peers.cards().lanes(options.lanes()), ..options };
        let local = agree(&group, Local::new(context, neighbours))?;
        let waiting = || -> Result<(Waiting, Event), CudaError> {
            let waiting =
                Waiting { kernel: local.kernels.signals()?, abort: AbortFlag::new(context)? };
            Ok((waiting, Event::new(context)?))
        };
        let (waiting, mark) = agree(&group, waiting())?;
        let connection = connect(&group, context, &mut peers, &local, &waiting, &options)?;
        let choice_of_sync = peers.cards().sync(options.sync);
        let sync = choice_of_sync.sync;
        let choice = connection.choice(&options);
        let (pages, inboxes, opened, path) = match connection {
            Connection::Host => (Vec::new(), Default::default(), Vec::new(), Path::host()),
            Connection::Peers { pages, inboxes, inboxes_bytes, .. } => {
                let halves = agree(&group, halves(&inboxes, inboxes_bytes))?;
                let flags = pages.spans().iter().cloned().map(FlagPage::new).collect();
                (flags, halves, vec![pages, inboxes], Path::Peers)
            }
        };
        if me == Rank::new(0) && matches!(path, Path::Peers) {
            log(&peers, choice_of_sync, &choice);
        }
        let state = State {
            me,
            world_size,
            stream: Arc::new(local.stream),
            flags: Flags::new(me, world_size, pages, sync, waiting),
            kernels: local.kernels,
            inboxes,
            path,
            programs: Programs::default(),
            ready: HashSet::new(),
            lanes: None,
            blocks_max: context.device().multiprocessors() * options.blocks_per_multiprocessor,
            waiting_blocks_max: peers.cards().waiting_blocks_max().min(FlagPage::BLOCKS_MAX),
            peers,
            done: local.done,
            last: Last::none(),
            has_queued: false,
            retired: Vec::new(),
            opened,
            choice,
            options,
        };
        let waits_on_device = matches!(state.path, Path::Peers);
        let core = Arc::new(Core {
            group,
            context: context.clone(),
            control: local.control,
            page_copy: local.page_copy,
            copied: local.copied,
            marks: local.marks,
            timeout: state.options.timeout,
        });
        let abort = state.flags.waiter().abort.clone();
        let state = Arc::new(Mutex::new(state));
        let mut watch = Watch::new(&core, &state, abort, mark);
        let guard = waits_on_device.then(|| Guard::start(move || watch.look()));
        let guard = agree(&core.group, guard.transpose())?;
        Ok(Self { inner: Arc::new(Inner { core, state, guard }) })
    }

    /// Returns this rank's number in the group.
    pub fn rank(&self) -> Rank {
        self.inner.rank()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> WorldSize {
        self.inner.core.group.world_size()
    }

    /// The group that it stands on.
    pub fn process_group(&self) -> &ProcessGroup {
        &self.inner.core.group
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.inner.core.context
    }

    /// The stream that operations are queued on. Let it wait for the event of the stream that makes
    /// the data, and record one on it for the stream that uses them.
    pub fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.inner.state().stream)
    }

    /// The way that data take, decided when the group was formed.
    pub fn path(&self) -> CudaPath {
        match self.inner.state().path {
            Path::Peers => CudaPath::Peer,
            Path::Host(_) => CudaPath::Host,
        }
    }

    /// How ranks wait for each other on the device, decided when the group was formed.
    pub fn sync(&self) -> CudaSync {
        self.inner.state().flags.sync()
    }

    /// Whether ranks share a process. What the driver does for one of them may wait for the device of another,
    /// which may wait for the first.
    pub fn shares_a_process(&self) -> bool {
        self.inner.state().peers.cards().share_a_process()
    }

    /// The algorithm that a sum of that many bytes of f32 takes between devices.
    pub fn algorithm_for(&self, bytes: usize) -> CudaAlgorithm {
        let elements = Elements::first(DType::F32, bytes / DType::F32.size_bytes());
        self.algorithm_of(&elements, ReduceOp::Sum)
    }

    /// The algorithm that an all-reduce of these elements takes between devices: it depends on their size,
    /// and on whether the order of additions may show in the result.
    pub fn algorithm_of(&self, elements: &Elements, reduce: ReduceOp) -> CudaAlgorithm {
        let order = self.inner.core.group.options().order;
        let freedom = Freedom::of(order, elements.dtype, reduce);
        self.inner.state().choose(elements.bytes(), freedom)
    }

    /// Which algorithm large all-reduces take, with the figures that decided it when the group was formed.
    pub fn choice(&self) -> CudaChoice {
        self.inner.state().choice.clone()
    }

    /// The streams that a ring or a chain runs on: [`CudaOptions::ring_channels`], or fewer where the driver has
    /// not as many queues for the ranks of a process that share a device.
    pub fn ring_channels(&self) -> u32 {
        self.inner.state().options.lanes()
    }

    /// Waits until everything queued is done, at most [`CudaOptions::timeout`].
    ///
    /// # Errors
    /// The failure of any rank: [`CudaGroupError::Collective`] if the group failed, [`CudaGroupError::Timeout`] naming
    /// who did not come, [`CudaGroupError::Device`]. The group is over then on every rank.
    pub fn synchronize(&self) -> Result<()> {
        let mut state = self.inner.state();
        self.inner.core.wait_idle(&mut state)
    }

    /// Ends the group on all ranks, for `cause`: whatever waits on a device is freed.
    pub fn abort(&self, cause: &str) {
        self.inner.core.group.abort(cause);
        let mut state = self.inner.state();
        self.inner.core.free(&mut state);
    }
}

/// One line for each decision, from rank 0.
fn log(peers: &Peers, SyncChoice { sync, limited }: SyncChoice, choice: &CudaChoice) {
    let summary = peers.cards().summary();
    tracing::info!("rank 0: {summary}, memory shared and probed, ranks wait in {sync:?}");
    match (limited, sync) {
        (None, _) => {}
        (Some(rank), CudaSync::Stream) => tracing::info!(
            "rank 0: the driver ends kernels that take long on the device of rank {rank}, as it does where a \
             display is attached: no kernel waits"
        ),
        (Some(rank), CudaSync::Kernel) => tracing::warn!(
            "rank 0: CudaOptions::sync asks for kernels that wait, but the driver ends kernels that take long \
             on the device of rank {rank}, and all that is there is lost then: use CudaSync::Stream, or take \
             the display off the device"
        ),
    }
    tracing::info!("rank 0: {choice}");
}

fn halves(inboxes: &Shared, bytes: usize) -> Result<[Vec<Span>; 2], CudaError> {
    let half = |number: usize| -> Result<Vec<Span>, CudaError> {
        let range = number * bytes..(number + 1) * bytes;
        let spans = inboxes.spans().iter();
        spans.map(|span| span.part(range.clone())).collect()
    };
    Ok([half(0)?, half(1)?])
}

/// How long memory is kept after a failure: longer than a failure takes to end what is queued on every rank.
const KEPT: Duration = Duration::from_secs(10);

impl Inner {
    pub(crate) fn rank(&self) -> Rank {
        self.core.group.rank()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    #[track_caller]
    pub(crate) fn assert_own(self: &Arc<Self>, buffer: &CudaBuffer) {
        assert!(buffer.is_of(self), "the buffer belongs to another group or rank");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // It ends here, and what it looked at is this one's alone.
        self.guard = None;
        let mut state = self.state();
        let state = &mut *state;
        // Nobody frees memory, which waits for the device, while another rank waits there for this one.
        let rested = self.core.quiesce(state);
        // First what others opened to this rank, then, when nobody has it open any more, the own.
        let own = state.close_peers();
        if rested.is_ok() {
            let _ = self.core.group.barrier();
        } else if state.peers.cards().has_other_processes() {
            // They have yet to learn of the failure, and may work with it: what comes of that is not defined once
            // it is freed (CUDA driver API, `cuIpcCloseMemHandle`).
            return drop_later(own, KEPT);
        }
        drop(own);
    }
}
