//! Groups of GPUs over NVIDIA's NCCL, with the operations of a [`CudaGroup`](super::CudaGroup).
//!
//! For clusters whose links NCCL knows and Bonfire does not (InfiniBand, NVLink between hosts), and to
//! measure against. Unlike a [`CudaGroup`](super::CudaGroup) its ranks may be on several hosts, each rank
//! needs a device of its own, and the order in which elements are added is NCCL's: results are the same bits
//! on every rank, but not those of the CPU, and may differ with another version of it.

mod kind;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bonfire_plan::{Collective, PlanError, Rank, ReduceOp, WorldSize};
use bonfire_sys::cuda::nccl::{Nccl, NcclPlace, NcclRank, UniqueId};
use bonfire_sys::cuda::{
    Context, CudaError, DeviceRegion, Event, EventState, Priority, Span, Stream,
};

use super::agreement::agree;
use super::buffer::Elements;
use super::error::CudaGroupError;
use super::memory::decode;
use super::wait::{Wait, Waited};
use crate::{Element, ProcessGroup};
use kind::{kind, shards};

/// A rank's membership in a group over NCCL, one per rank.
///
/// Every rank must queue the same operations, in the same order, on the same ranges. An operation is queued
/// on [`stream`](Self::stream) and the call returns; [`synchronize`](Self::synchronize) waits, with a
/// deadline. Clones are the same membership. When the last one and the last buffer are dropped the rank
/// waits for the others to leave as well.
#[derive(Clone, Debug)]
pub struct NcclGroup {
    inner: Arc<Inner>,
}

/// Device memory of one rank of a group over NCCL. It keeps the group, and is freed with it.
#[derive(Debug)]
pub struct NcclBuffer {
    span: Option<Span>,
    owner: Arc<Inner>,
}

struct Inner {
    group: ProcessGroup,
    context: Context,
    stream: Arc<Stream>,
    timeout: Duration,
    state: Mutex<State>,
}

struct State {
    member: Option<NcclRank>,
    done: Event,
    last: String,
    retired: Vec<Span>,
}

/// How often a rank asks NCCL how far it is.
const LOOK: Duration = Duration::from_micros(200);

impl NcclGroup {
    /// Forms the group: every rank of `group` calls it with a context of its own device.
    ///
    /// # Errors
    /// [`CudaGroupError::SetUp`] on all ranks, naming the rank that cannot take part and why: for example
    /// that it finds no NCCL.
    pub fn new(
        group: ProcessGroup,
        context: &Context,
        timeout: Duration,
    ) -> Result<Self, CudaGroupError> {
        let nccl = agree(&group, Nccl::load())?;
        let version = nccl.version();
        let speaks = group.rank() == Rank::new(0);
        let id = if speaks {
            nccl.unique_id().map(UniqueId::to_bytes)
        } else {
            Ok([0; UniqueId::BYTES])
        };
        let mut id = agree(&group, id)?;
        group.broadcast(&mut id, Rank::new(0))?;
        let made = Stream::new(context, Priority::High)
            .and_then(|stream| Ok((stream, Event::new(context)?)));
        let (stream, done) = agree(&group, made)?;
        let place = NcclPlace {
            rank: group.rank().get(),
            world_size: group.world_size().get(),
        };
        let id = UniqueId::from_bytes(id);
        let wait = Wait {
            group: &group,
            timeout,
        };
        let joined = NcclRank::join(&nccl, context, id, place)
            .and_then(|mut member| Ok((settle(&wait, &mut member)?, member)));
        let joined = match joined {
            Ok((Waited::Done, member)) => Ok(member),
            Ok((Waited::Failed(failure), _)) => Err(failure.to_string()),
            Ok((Waited::TimedOut(elapsed), _)) => Err(format!(
                "NCCL did not connect the ranks in {} ms; set NCCL_DEBUG=INFO to see why",
                elapsed.as_millis()
            )),
            Err(error) => Err(error.to_string()),
        };
        let member = agree(&group, joined)?;
        if speaks {
            tracing::info!("rank 0: {} ranks over NCCL {version}", group.world_size());
        }
        let state = State {
            member: Some(member),
            done,
            last: "set-up".to_owned(),
            retired: Vec::new(),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                group,
                context: context.clone(),
                stream: Arc::new(stream),
                timeout,
                state: Mutex::new(state),
            }),
        })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.inner.group.rank()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> WorldSize {
        self.inner.group.world_size()
    }

    /// The group that it stands on.
    pub fn process_group(&self) -> &ProcessGroup {
        &self.inner.group
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The stream that operations are queued on.
    pub fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.inner.stream)
    }

    /// Device memory of `bytes`, zero. For set-up: it waits for the device.
    ///
    /// # Errors
    /// [`CudaGroupError::Device`] if there is not so much.
    pub fn allocate(&self, bytes: usize) -> Result<NcclBuffer, CudaGroupError> {
        self.synchronize()?;
        let stream = &self.inner.stream;
        let made = DeviceRegion::allocate(&self.inner.context, bytes).and_then(|region| {
            stream.fill(&region.span(), 0)?;
            stream.synchronize()?;
            Ok(region.span())
        });
        Ok(NcclBuffer {
            span: Some(self.inner.local(made)?),
            owner: Arc::clone(&self.inner),
        })
    }

    /// Copies `values` into the buffer, `start` elements from its begin, and waits for it.
    ///
    /// # Errors
    /// [`CudaGroupError::TooSmall`] if they are not in the buffer.
    pub fn write<T: Element>(
        &self,
        buffer: &NcclBuffer,
        start: usize,
        values: &[T],
    ) -> Result<(), CudaGroupError> {
        let span = self
            .inner
            .span(buffer, &elements::<T>(start, values.len()))?;
        self.synchronize()?;
        let bytes = bytemuck::cast_slice(values);
        self.inner.local(self.inner.stream.write(&span, bytes))
    }

    /// Copies elements out of the buffer. For set-up and tests: it allocates.
    ///
    /// # Errors
    /// [`CudaGroupError::TooSmall`] if they are not in the buffer, [`CudaGroupError::NotAValue`] if the
    /// memory holds no truth values where those are read.
    pub fn read<T: Element>(
        &self,
        buffer: &NcclBuffer,
        start: usize,
        values: &mut [T],
    ) -> Result<(), CudaGroupError> {
        let span = self
            .inner
            .span(buffer, &elements::<T>(start, values.len()))?;
        self.synchronize()?;
        let mut bytes = vec![0; span.len()];
        self.inner
            .local(self.inner.stream.read(&span, &mut bytes))?;
        decode(&bytes, values)
    }

    /// Replaces every element by its reduction over all ranks.
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if the elements have no such reduction, [`CudaGroupError::NotInNccl`] if
    /// NCCL has none; else what the driver says.
    pub fn all_reduce(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        let kind = kind(elements.dtype, reduce)?;
        self.queue(Collective::AllReduce, (buffer, elements), |member, data| {
            member.all_reduce(&self.inner.stream, data, kind)
        })
    }

    /// Replaces the elements of this rank's shard by their reduction over all ranks; the others keep their
    /// values. Shards are those of [`shard_range`].
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        let kind = kind(elements.dtype, reduce)?;
        let world_size = self.world_size();
        self.queue(
            Collective::ReduceScatter,
            (buffer, elements),
            |member, data| {
                let parts = shards(data, elements, world_size)?;
                member.reduce_parts(&self.inner.stream, &parts, kind)
            },
        )
    }

    /// Gives every rank the shard of each.
    ///
    /// # Errors
    /// What the driver says.
    pub fn all_gather(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
    ) -> Result<(), CudaGroupError> {
        let world_size = self.world_size();
        self.queue(Collective::AllGather, (buffer, elements), |member, data| {
            let parts = shards(data, elements, world_size)?;
            member.broadcast_parts(&self.inner.stream, &parts)
        })
    }

    /// Gives every rank the elements of `root`.
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if there is no such rank.
    pub fn broadcast(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        root: Rank,
    ) -> Result<(), CudaGroupError> {
        self.queue(
            Collective::Broadcast { root },
            (buffer, elements),
            |member, data| {
                let parts = [(root.get(), data.clone())];
                member.broadcast_parts(&self.inner.stream, &parts)
            },
        )
    }

    /// Replaces the elements of `root` by their reduction over all ranks; the others keep their values.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce) and [`broadcast`](Self::broadcast).
    pub fn reduce(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        (reduce, root): (ReduceOp, Rank),
    ) -> Result<(), CudaGroupError> {
        let kind = kind(elements.dtype, reduce)?;
        self.queue(
            Collective::Reduce { root },
            (buffer, elements),
            |member, data| {
                let parts = [(root.get(), data.clone())];
                member.reduce_parts(&self.inner.stream, &parts, kind)
            },
        )
    }

    /// Waits until everything queued is done, at most the timeout of the group.
    ///
    /// # Errors
    /// The failure of any rank. The group is over then on every rank.
    pub fn synchronize(&self) -> Result<(), CudaGroupError> {
        let mut state = self.inner.state();
        self.inner.wait_idle(&mut state)
    }

    /// Checks an operation and queues it.
    fn queue(
        &self,
        collective: Collective,
        (buffer, elements): (&NcclBuffer, &Elements),
        body: impl FnOnce(&mut NcclRank, &Span) -> Result<(), CudaError>,
    ) -> Result<(), CudaGroupError> {
        let inner = &self.inner;
        let data = inner.span(buffer, elements)?;
        let world_size = self.world_size();
        if let Some(root) = collective.root().filter(|&root| !world_size.contains(root)) {
            return Err(PlanError::RootOutOfRange { root, world_size }.into());
        }
        if let Some(failure) = inner.group.failure() {
            return Err(failure.into());
        }
        if elements.count() == 0 {
            return Ok(());
        }
        let mut state = inner.state();
        state.last = format!("{collective} of {} x {}", elements.dtype, elements.count());
        let Some(member) = state.member.as_mut() else {
            return Err(inner.over());
        };
        let queued = body(member, &data).and_then(|()| settle(&inner.wait(), member));
        let waited = inner.local(queued)?;
        inner.finish(&mut state, waited)
    }
}

impl NcclBuffer {
    /// This rank's memory, for kernels and copies of its own. No collective may be running on it.
    pub fn span(&self) -> &Span {
        self.span.as_ref().expect("taken by drop alone")
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.span().len()
    }
}

impl Drop for NcclBuffer {
    fn drop(&mut self) {
        // Freeing waits for the device, where another rank may be waited for.
        let span = self.span.take();
        self.owner.state().retired.extend(span);
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, world_size) = (self.group.rank(), self.group.world_size());
        write!(f, "NcclGroup(rank {rank} of {world_size})")
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A failure of this rank's device is the failure of all ranks.
    fn local<T>(&self, result: Result<T, CudaError>) -> Result<T, CudaGroupError> {
        result.map_err(|source| {
            let rank = self.group.rank();
            self.group.abort(&source.to_string());
            CudaGroupError::Device { rank, source }
        })
    }

    #[track_caller]
    fn span(
        self: &Arc<Self>,
        buffer: &NcclBuffer,
        elements: &Elements,
    ) -> Result<Span, CudaGroupError> {
        assert!(
            Arc::ptr_eq(self, &buffer.owner),
            "the buffer belongs to another group or rank"
        );
        elements.fit(buffer.bytes())?;
        Ok(elements.part_of(buffer.span()))
    }

    fn wait(&self) -> Wait<'_> {
        Wait {
            group: &self.group,
            timeout: self.timeout,
        }
    }

    fn wait_idle(&self, state: &mut State) -> Result<(), CudaGroupError> {
        self.local(self.stream.record(&state.done))?;
        let waited = self.wait().until_done(|until| state.done.wait_until(until));
        let waited = self.local(waited)?;
        self.finish(state, waited)
    }

    /// What a wait means for the group. One that has failed gives up its communicator: what waits on the
    /// device for other ranks is freed.
    fn finish(&self, state: &mut State, waited: Waited) -> Result<(), CudaGroupError> {
        let error = match waited {
            Waited::Done => return Ok(()),
            Waited::Failed(failure) => failure.into(),
            Waited::TimedOut(elapsed) => {
                let error = CudaGroupError::Timeout {
                    rank: self.group.rank(),
                    waited_for: Vec::new(),
                    operation: state.last.clone(),
                    elapsed_ms: elapsed.as_millis() as u64,
                };
                self.group.abort(&error.to_string());
                error
            }
        };
        state.member = None;
        Err(error)
    }

    /// The failure that ended the group.
    fn over(&self) -> CudaGroupError {
        match self.group.failure() {
            Some(failure) => failure.into(),
            None => CudaGroupError::SetUp {
                rank: self.group.rank(),
                reason: "it has left the group".to_owned(),
            },
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = self.state();
        // Nobody gives up a communicator that another rank still works with.
        let rested = self.wait_idle(&mut state);
        if rested.is_ok() {
            let _ = self.group.barrier();
        }
        state.member = None;
        let retired = std::mem::take(&mut state.retired);
        drop(state);
        drop(retired);
    }
}

/// Waits until NCCL has queued what was begun.
fn settle(wait: &Wait<'_>, member: &mut NcclRank) -> Result<Waited, CudaError> {
    wait.until_done(|until| {
        let state = member.state()?;
        if state == EventState::Pending {
            let left = until.saturating_duration_since(Instant::now());
            thread::sleep(left.min(LOOK));
        }
        Ok(state)
    })
}

fn elements<T: Element>(start: usize, count: usize) -> Elements {
    Elements {
        dtype: T::DTYPE,
        range: start..start.saturating_add(count),
    }
}
