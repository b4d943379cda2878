//! Groups of GPUs over NVIDIA's NCCL, with the operations of a [`CudaGroup`](crate::CudaGroup).
//!
//! For clusters whose links NCCL knows and Bonfire does not (InfiniBand, NVLink between hosts), and to
//! measure against. Unlike a [`CudaGroup`](crate::CudaGroup) its ranks may be on several hosts, each rank
//! needs a device of its own, and the order in which elements are added is NCCL's: results are the same bits
//! on every rank, but not those of the CPU, and may differ with another version of it.

mod joining;
mod kind;
mod legs;
mod membership;
mod memory;
mod movement;
mod occupancy;
mod operations;

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::nccl::{Nccl, UniqueId};
use bonfire_cuda::{Context, CudaError, DeviceRegion, Event, Priority, Span, Stream};
use bonfire_plan::{Rank, WorldSize};
use bonfire_sys::lock::Mutex;

use crate::error::Result;
use crate::life::agree;
use crate::life::guard::Guard;
use joining::{Ticket, on_all_or_none};
use membership::{Inner, State, leave_if_failed};
use occupancy::Occupancy;

pub use memory::NcclBuffer;

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

struct Local {
    stream: Stream,
    done: Event,
    /// What a barrier adds up: nothing.
    nothing: Span,
}

impl Local {
    fn new(context: &Context) -> Result<Self, CudaError> {
        let stream = Stream::new(context, Priority::High)?;
        let nothing = DeviceRegion::allocate(context, 1)?.span();
        stream.fill(&nothing, 0)?;
        stream.synchronize()?;
        Ok(Self { stream, done: Event::new(context)?, nothing })
    }
}

impl NcclGroup {
    /// Forms the group: every rank of `group` calls it with a context of its own device.
    ///
    /// # Errors
    /// [`SetUp`](crate::CudaGroupError::SetUp) on all ranks, naming the rank that cannot take part and why: for example
    /// that it finds no NCCL, or is on the device of another. `group` continues.
    pub fn new(group: ProcessGroup, context: &Context, timeout: Duration) -> Result<Self> {
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
        let local = agree(&group, Local::new(context))?;
        let occupancy = Occupancy::of(&group, context)?;
        let ticket = Ticket {
            nccl: &nccl,
            context,
            occupancy: &occupancy,
            id: UniqueId::from_bytes(id),
            timeout,
        };
        let member = on_all_or_none(&group, |joining| ticket.join(joining))?;
        if speaks {
            tracing::info!("rank 0: {} ranks over NCCL {version}", group.world_size());
        }
        let state = State {
            member: Some(member),
            done: local.done,
            last: "set-up".to_owned(),
            retired: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let look = {
            let (group, state) = (group.clone(), Arc::clone(&state));
            move || leave_if_failed(&group, &state)
        };
        let guard = Some(agree(&group, Guard::start(look))?);
        Ok(Self {
            inner: Arc::new(Inner {
                group,
                context: context.clone(),
                stream: Arc::new(local.stream),
                nothing: local.nothing,
                shares_a_process: occupancy.shares_a_process(),
                timeout,
                state,
                guard,
            }),
        })
    }

    /// Returns this rank's number in the group.
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

    /// Does [`CudaGroup::shares_a_process`](crate::CudaGroup::shares_a_process). NCCL refuses ranks on one device
    /// unless `NCCL_MULTI_RANK_GPU_ENABLE` is set.
    pub fn shares_a_process(&self) -> bool {
        self.inner.shares_a_process
    }

    /// Waits until everything queued is done, at most the timeout of the group.
    ///
    /// # Errors
    /// The failure of any rank. The group is over then on every rank.
    pub fn synchronize(&self) -> Result<()> {
        let mut state = self.inner.state();
        self.inner.wait_idle(&mut state)
    }

    /// Ends the group on all ranks, for `cause`: whatever waits on a device is freed.
    pub fn abort(&self, cause: &str) {
        self.inner.group.abort(cause);
        self.inner.state().member = None;
    }
}
