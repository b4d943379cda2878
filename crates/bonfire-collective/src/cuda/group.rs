//! The group of GPUs: what a program calls.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_plan::{Collective, Rank, ReduceOp, WorldSize};
use bonfire_sys::cuda::{
    Context, CudaError, Event, FOLD_RANKS_MAX, FlagPage, FoldKernel, Nvrtc, PinnedRegion, Priority,
    Span, Stream,
};

use super::agreement::agree;
use super::buffer::{CudaBuffer, Elements};
use super::core::Core;
use super::engine::{Direct, Job, alone};
use super::error::CudaGroupError;
use super::kernels::{Kernels, key};
use super::neighbours::Neighbours;
use super::options::{CudaAlgorithm, CudaOptions};
use super::peers::Peers;
use super::probe::{PROBE_BYTES, Probe};
use super::ring::{Place, Ring};
use super::sync::Flags;
use crate::{Element, ProcessGroup};

/// A rank's membership in a group of GPUs, one per rank.
///
/// Every rank must queue the same operations, in the same order, on the same ranges. An operation is queued
/// on [`stream`](Self::stream) and the call returns at once; [`synchronize`](Self::synchronize) waits, with
/// a deadline, and is where a failure of any rank comes out. Results are the same bits on every rank and in
/// every run.
///
/// Clones are the same membership. When the last one and the last buffer are dropped the rank waits for the
/// others to leave as well.
#[derive(Clone, Debug)]
pub struct CudaGroup {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    core: Core,
    state: Mutex<State>,
}

/// What an operation changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) me: Rank,
    pub(super) world_size: WorldSize,
    pub(super) options: CudaOptions,
    pub(super) stream: Arc<Stream>,
    pub(super) flags: Flags,
    pub(super) kernels: Kernels,
    pub(super) staging: [Vec<Span>; 2],
    pub(super) ring: Option<Ring>,
    pub(super) blocks_max: u32,
    pub(super) waiting_blocks_max: u32,
    peers: Peers,
    pub(super) done: Event,
    pub(super) last: Last,
    retired: Vec<Vec<Span>>,
}

/// The operation that was queued last, for messages.
#[derive(Clone, Debug)]
pub(super) struct Last {
    collective: Collective,
    elements: Elements,
}

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Elements { dtype, range } = &self.elements;
        write!(f, "{} of {dtype} x {}", self.collective, range.len())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CudaGroup(rank {} of {})",
            self.rank(),
            self.core.group.world_size()
        )
    }
}

impl CudaGroup {
    /// Forms the group: every rank of `group` calls it with a context of its device, and all ranks of one
    /// process with clones of one [`Neighbours`]. Looks whether the ranks reach each other's memory.
    ///
    /// # Errors
    /// [`CudaGroupError::SetUp`] on all ranks, naming the rank that cannot take part and why.
    pub fn new(
        group: ProcessGroup,
        context: &Context,
        neighbours: &Neighbours,
        options: CudaOptions,
    ) -> Result<Self, CudaGroupError> {
        let (me, world_size) = (group.rank(), group.world_size());
        if world_size.len() > FOLD_RANKS_MAX {
            return Err(CudaGroupError::TooManyRanks {
                world_size: world_size.len(),
            });
        }
        let mut peers = Peers::meet(&group, context, neighbours, &options)?;
        let local = agree(&group, Local::new(context, neighbours))?;
        let pages = peers.share(&local.stream, FlagPage::BYTES)?;
        let staging_bytes = (options.one_shot_bytes_max + FoldKernel::STAGING_EXTRA_BYTES)
            .next_multiple_of(FoldKernel::STAGING_EXTRA_BYTES);
        let staging = peers.share(&local.stream, (2 * staging_bytes).max(PROBE_BYTES))?;
        let probe = Probe {
            group: &group,
            context,
            stream: &local.stream,
            spans: &staging,
        };
        probe.run()?;
        let half = |number: usize| -> Result<Vec<Span>, CudaError> {
            let range = number * staging_bytes..(number + 1) * staging_bytes;
            staging
                .iter()
                .map(|span| span.part(range.clone()))
                .collect()
        };
        let halves = half(0).and_then(|first| Ok([first, half(1)?]));
        let staging = agree(&group, halves)?;
        let barrier = agree(&group, local.kernels.barrier())?;
        let sync = peers.sync(options.sync);
        if me == Rank::new(0) {
            tracing::info!(
                "rank 0: {}, memory shared and probed, ranks wait in {sync:?}",
                peers.summary()
            );
        }
        let pages = pages.into_iter().map(FlagPage::new).collect();
        let state = State {
            me,
            world_size,
            stream: Arc::new(local.stream),
            flags: Flags::new(me, world_size, pages, sync, barrier),
            kernels: local.kernels,
            staging,
            ring: None,
            blocks_max: context.device().multiprocessors() * options.blocks_per_multiprocessor,
            waiting_blocks_max: peers.waiting_blocks_max().min(FlagPage::BLOCKS_MAX),
            peers,
            done: local.done,
            last: Last {
                collective: Collective::Barrier,
                elements: Elements::first(bonfire_plan::DType::U8, 0),
            },
            retired: Vec::new(),
            options,
        };
        let inner = Inner {
            core: Core {
                group,
                context: context.clone(),
                control: local.control,
                page_copy: local.page_copy,
                copied: local.copied,
                timeout: state.options.timeout,
            },
            state: Mutex::new(state),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// This rank.
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

    /// The stream that operations are queued on. Let it wait for the event of whoever makes the data, and
    /// record one on it for whoever uses them.
    pub fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.inner.state().stream)
    }

    /// The algorithm that an all-reduce of that many bytes takes.
    pub fn algorithm_for(&self, bytes: usize) -> CudaAlgorithm {
        self.inner.state().choose(bytes)
    }

    /// Device memory of `bytes` on every rank, zero, open to all of them. Every rank calls it with the same
    /// size. For set-up: it waits for the device and for the other ranks.
    ///
    /// # Errors
    /// [`CudaGroupError::SetUp`] on all ranks if one has not the memory.
    pub fn allocate(&self, bytes: usize) -> Result<CudaBuffer, CudaGroupError> {
        let mut state = self.inner.state();
        self.inner.core.quiesce(&mut state)?;
        let stream = Arc::clone(&state.stream);
        let spans = state.peers.share(&stream, bytes)?;
        drop(state);
        Ok(CudaBuffer::new(spans, &self.inner))
    }

    /// Frees a buffer on every rank. For tear-down: it waits for the device and for the other ranks.
    ///
    /// # Errors
    /// Those of [`synchronize`](Self::synchronize).
    pub fn release(&self, buffer: CudaBuffer) -> Result<(), CudaGroupError> {
        self.inner.assert_own(&buffer);
        let mut spans = buffer.into_spans();
        let mut state = self.inner.state();
        self.inner.core.quiesce(&mut state)?;
        // First what was opened to this rank, then, when nobody has it open any more, the own.
        let own = spans.swap_remove(state.me.index());
        drop(spans);
        self.inner.core.group.barrier()?;
        drop(own);
        self.inner.core.group.barrier()?;
        Ok(())
    }

    /// Copies `values` into the buffer, `start` elements from its begin, in the order of the stream, and
    /// waits for it.
    ///
    /// # Errors
    /// [`CudaGroupError::TooSmall`] if they are not in the buffer.
    pub fn write<T: Element>(
        &self,
        buffer: &CudaBuffer,
        start: usize,
        values: &[T],
    ) -> Result<(), CudaGroupError> {
        let span = self.inner.span_of::<T>(buffer, start, values.len())?;
        self.synchronize()?;
        let stream = self.stream();
        let bytes = bytemuck::cast_slice(values);
        self.inner.core.local(stream.write(&span, bytes))
    }

    /// Copies elements out of the buffer, as [`write`](Self::write) does in. For set-up and tests: it
    /// allocates.
    ///
    /// # Errors
    /// [`CudaGroupError::TooSmall`] if they are not in the buffer, [`CudaGroupError::NotAValue`] if the
    /// memory holds no truth values where those are read.
    pub fn read<T: Element>(
        &self,
        buffer: &CudaBuffer,
        start: usize,
        values: &mut [T],
    ) -> Result<(), CudaGroupError> {
        let span = self.inner.span_of::<T>(buffer, start, values.len())?;
        self.synchronize()?;
        let stream = self.stream();
        let mut bytes = vec![0; span.len()];
        self.inner.core.local(stream.read(&span, &mut bytes))?;
        for (index, value) in values.iter_mut().enumerate() {
            let own = &bytes[index * size_of::<T>()..][..size_of::<T>()];
            *value = bytemuck::checked::try_pod_read_unaligned(own)
                .map_err(|_| CudaGroupError::NotAValue { index })?;
        }
        Ok(())
    }

    /// Replaces every element by its reduction over all ranks.
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if the elements have no such reduction; else what the driver says.
    pub fn all_reduce(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        let algorithm = self.algorithm_for(elements.bytes());
        self.all_reduce_with(algorithm, buffer, elements, reduce)
    }

    /// [`all_reduce`](Self::all_reduce) by this algorithm, the same on every rank. What is too large for a
    /// one-shot, or may not wait in kernels, is done directly.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_with(
        &self,
        algorithm: CudaAlgorithm,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        let begun = self.begin(Collective::AllReduce, Some(reduce), buffer, elements)?;
        let Some((mut state, job)) = begun else {
            return Ok(());
        };
        let ranks = state.world_size.len();
        match algorithm {
            CudaAlgorithm::OneShot if state.choose(elements.bytes()) == CudaAlgorithm::OneShot => {
                let key = key(elements.dtype, reduce, ranks);
                self.inner.core.load(&mut state, &[key])?;
                self.inner.core.local(state.run_one_shot(job, reduce))
            }
            CudaAlgorithm::Ring => self.ring(&mut state, job, Collective::AllReduce, reduce),
            CudaAlgorithm::OneShot | CudaAlgorithm::Direct => {
                let direct = state.direct_all_reduce(job, reduce);
                self.direct(&mut state, job, &direct)
            }
        }
    }

    /// Replaces the elements of this rank's shard by their reduction over all ranks; the others keep their
    /// values. Shards are those of [`shard_range`](bonfire_plan::shard_range).
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        let begun = self.begin(Collective::ReduceScatter, Some(reduce), buffer, elements)?;
        let Some((mut state, job)) = begun else {
            return Ok(());
        };
        let direct = state.direct_reduce_scatter(job, reduce);
        self.direct(&mut state, job, &direct)
    }

    /// Gives every rank the shard of each.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn all_gather(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
    ) -> Result<(), CudaGroupError> {
        let begun = self.begin(Collective::AllGather, None, buffer, elements)?;
        let Some((mut state, job)) = begun else {
            return Ok(());
        };
        let direct = state.direct_all_gather(job);
        self.direct(&mut state, job, &direct)
    }

    /// Gives every rank the elements of `root`.
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if there is no such rank.
    pub fn broadcast(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        root: Rank,
    ) -> Result<(), CudaGroupError> {
        let collective = Collective::Broadcast { root };
        let Some((mut state, job)) = self.begin(collective, None, buffer, elements)? else {
            return Ok(());
        };
        let direct = state.direct_broadcast(job, root);
        self.direct(&mut state, job, &direct)
    }

    /// Replaces the elements of `root` by their reduction over all ranks; the others keep their values.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce) and [`broadcast`](Self::broadcast).
    pub fn reduce(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        (reduce, root): (ReduceOp, Rank),
    ) -> Result<(), CudaGroupError> {
        let collective = Collective::Reduce { root };
        let Some((mut state, job)) = self.begin(collective, Some(reduce), buffer, elements)? else {
            return Ok(());
        };
        let direct = state.direct_reduce(job, reduce, root);
        self.direct(&mut state, job, &direct)
    }

    /// Queues a barrier: what any rank queued before its own is done before what is queued behind it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn barrier(&self) -> Result<(), CudaGroupError> {
        let mut state = self.inner.state();
        let stream = Arc::clone(&state.stream);
        self.inner.core.local(state.flags.barrier(&stream))
    }

    /// Waits until everything queued is done, at most [`CudaOptions::timeout`].
    ///
    /// # Errors
    /// The failure of any rank: [`CudaGroupError::Collective`] if the group failed,
    /// [`CudaGroupError::Timeout`] naming who did not come, [`CudaGroupError::Device`]. The group is over
    /// then on every rank.
    pub fn synchronize(&self) -> Result<(), CudaGroupError> {
        let mut state = self.inner.state();
        self.inner.core.wait_idle(&mut state)
    }

    /// Ends the group on all ranks, for `cause`: whatever waits on a device is freed.
    pub fn abort(&self, cause: &str) {
        self.inner.core.group.abort(cause);
        let mut state = self.inner.state();
        self.inner.core.free(&mut state);
    }

    /// Checks an operation and makes its rank and buffer ready. `None` if there is nothing to do.
    fn begin<'a>(
        &self,
        collective: Collective,
        reduce: Option<ReduceOp>,
        buffer: &'a CudaBuffer,
        elements: &'a Elements,
    ) -> Result<Option<(MutexGuard<'_, State>, Job<'a>)>, CudaGroupError> {
        self.inner.assert_own(buffer);
        buffer.check(elements)?;
        let world_size = self.world_size();
        if let Some(reduce) = reduce {
            reduce.require(elements.dtype)?;
        }
        if let Some(root) = collective.root().filter(|&root| !world_size.contains(root)) {
            return Err(bonfire_plan::PlanError::RootOutOfRange { root, world_size }.into());
        }
        if let Some(failure) = self.inner.core.group.failure() {
            return Err(failure.into());
        }
        if alone(world_size.len(), elements.count()).is_break() {
            return Ok(None);
        }
        let mut state = self.inner.state();
        state.last = Last {
            collective,
            elements: elements.clone(),
        };
        Ok(Some((state, Job { buffer, elements })))
    }

    fn direct(
        &self,
        state: &mut State,
        job: Job<'_>,
        direct: &Direct,
    ) -> Result<(), CudaGroupError> {
        self.inner.core.load(state, &[direct.key])?;
        self.inner.core.local(state.run_direct(job, direct))
    }

    fn ring(
        &self,
        state: &mut State,
        job: Job<'_>,
        collective: Collective,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        self.inner
            .core
            .load(state, &State::ring_keys(job.elements, reduce))?;
        if state.ring.is_none() {
            let channels = state.options.ring_channels.min(FlagPage::CHANNELS_MAX);
            self.inner.core.quiesce(state)?;
            let ring = Ring::new(&self.inner.core.context, channels);
            state.ring = Some(agree(&self.inner.core.group, ring)?);
        }
        let place = Place {
            me: state.me,
            world_size: state.world_size,
        };
        let ring = state.ring.as_mut().expect("made above");
        ring.prepare(collective, place, job.elements)?;
        self.inner
            .core
            .local(state.run_ring(job, collective, reduce))
    }
}

impl Inner {
    pub(super) fn rank(&self) -> Rank {
        self.core.group.rank()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    fn assert_own(self: &Arc<Self>, buffer: &CudaBuffer) {
        assert!(
            buffer.is_of(self),
            "the buffer belongs to another group or rank"
        );
    }

    fn span_of<T: Element>(
        self: &Arc<Self>,
        buffer: &CudaBuffer,
        start: usize,
        count: usize,
    ) -> Result<Span, CudaGroupError> {
        self.assert_own(buffer);
        let elements = Elements {
            dtype: T::DTYPE,
            range: start..start.saturating_add(count),
        };
        buffer.check(&elements)?;
        let all = bonfire_plan::ElemRange::up_to(count);
        Ok(buffer.part(self.rank().index(), &elements, all))
    }

    /// Keeps memory until the group ends.
    pub(super) fn retire(&self, spans: Vec<Span>) {
        if !spans.is_empty() {
            self.state().retired.push(spans);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody frees memory, which waits for the device, while another rank waits there for this one.
        let rested = self.core.quiesce(state);
        // First what others opened to this rank, then, when nobody has it open any more, the own.
        let own = state.close_peers();
        if rested.is_ok() {
            let _ = self.core.group.barrier();
        }
        drop(own);
    }
}

impl State {
    /// Gives up the memory of the other ranks; returns the own.
    fn close_peers(&mut self) -> Vec<Span> {
        let me = self.me.index();
        let staging = self.staging.iter_mut().map(std::mem::take);
        let retired = std::mem::take(&mut self.retired).into_iter();
        let pages = self.flags.close();
        let mut all: Vec<Vec<Span>> = staging.chain(retired).chain([pages]).collect();
        all.iter_mut().map(|spans| spans.swap_remove(me)).collect()
    }
}

/// What a rank makes by itself.
struct Local {
    stream: Stream,
    control: Stream,
    done: Event,
    page_copy: Arc<PinnedRegion>,
    copied: Event,
    kernels: Kernels,
}

impl Local {
    fn new(context: &Context, neighbours: &Neighbours) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(context, Priority::High)?,
            control: Stream::new(context, Priority::High)?,
            done: Event::new(context)?,
            page_copy: PinnedRegion::allocate(context, FlagPage::BYTES)?,
            copied: Event::new(context)?,
            kernels: Kernels::new(context, Nvrtc::load()?, neighbours),
        })
    }
}
