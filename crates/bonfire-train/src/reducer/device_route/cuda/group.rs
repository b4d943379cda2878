//! The interface of a group of GPUs for buckets.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::ProcessGroup;
use bonfire_gpu::{
    Context, CudaBuffer, CudaGroup, CudaGroupError, CudaSync, Elements, NcclBuffer, NcclGroup,
    Nvrtc, Span, Stream,
};
use burn::backend::CubeDevice;
use burn_cubecl::cubecl::client::Client;

use crate::TrainError;
use crate::reducer::device_route::Operation;
use crate::reducer::device_route::choice::{Fate, Refusal};
use crate::reducer::readback::raw::Idle;
use crate::world::timeouts::WarmUp;

/// A rank's membership in a group of GPUs. Everything is queued on its stream, in the same order on all ranks; a
/// failure of any rank is an error of the next call.
pub(super) trait GpuGroup: Idle + fmt::Debug + Send + Sized + 'static {
    type Buffer: fmt::Debug + Send + Sync;

    fn place(&self) -> GroupQueue;
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer, CudaGroupError>;

    fn release(&self, buffer: Self::Buffer) -> Result<(), CudaGroupError>;
    fn span(buffer: &Self::Buffer) -> &Span;

    /// Queues an operation on elements of a buffer; `output` is that of an all-to-all.
    fn run(
        &self,
        operation: Operation,
        elements: &Elements,
        buffer: &Self::Buffer,
        output: Option<&Self::Buffer>,
    ) -> Result<(), CudaGroupError>;
}

macro_rules! gpu_group {
    ($group:ty, $buffer:ty, $runs_ahead:expr) => {
        impl GpuGroup for $group {
            type Buffer = $buffer;

            fn place(&self) -> GroupQueue {
                GroupQueue {
                    context: self.context().clone(),
                    stream: self.stream(),
                    ranks: self.process_group().clone(),
                    shares_a_process: self.shares_a_process(),
                    runs_ahead: $runs_ahead(self),
                }
            }

            fn allocate(&self, bytes: usize) -> Result<$buffer, CudaGroupError> {
                Self::allocate(self, bytes)
            }

            fn release(&self, buffer: $buffer) -> Result<(), CudaGroupError> {
                Self::release(self, buffer)
            }

            fn span(buffer: &$buffer) -> &Span {
                buffer.span()
            }

            fn run(
                &self,
                operation: Operation,
                elements: &Elements,
                buffer: &$buffer,
                output: Option<&$buffer>,
            ) -> Result<(), CudaGroupError> {
                match operation {
                    Operation::AllReduce(reduce) => self.all_reduce(buffer, elements, reduce),
                    Operation::ReduceScatter(reduce) => {
                        self.reduce_scatter(buffer, elements, reduce)
                    }
                    Operation::Reduce(reduce, root) => self.reduce(buffer, elements, reduce, root),
                    Operation::Broadcast(root) => self.broadcast(buffer, elements, root),
                    Operation::AllGather => self.all_gather(buffer, elements),
                    Operation::AllToAll { .. } => {
                        let output = output.expect("an all-to-all has another buffer");
                        self.all_to_all(buffer, output, elements)
                    }
                    Operation::Send(target) => self.send(buffer, elements, target),
                    Operation::Recv(source) => self.recv(buffer, elements, source),
                    Operation::Exchange(peer) => self.exchange(buffer, elements, peer),
                }
            }
        }
    };
}

gpu_group!(CudaGroup, CudaBuffer, |group: &Self| group.sync() == CudaSync::Kernel);
// Its guard has no deadline.
gpu_group!(NcclGroup, NcclBuffer, |_: &Self| false);

#[derive(Debug)]
pub(super) struct GroupQueue {
    pub(super) context: Context,
    pub(super) stream: Arc<Stream>,
    pub(super) ranks: ProcessGroup,
    pub(super) shares_a_process: bool,
    /// True if the host may leave the wait for other ranks to the device: kernels that wait keep no rank from running,
    /// and a guard ends them in time.
    pub(super) runs_ahead: bool,
}

pub(super) struct Own {
    pub(super) context: Context,
    pub(super) nvrtc: Nvrtc,
    pub(super) client: Client,
    pub(super) device: CubeDevice,
}

/// The group under a group of GPUs for buckets, and its timeout. It has its own sequence of operations, since buckets
/// are made and freed independently.
pub(super) fn ground(ranks: &WarmUp, fate: Fate) -> Result<(ProcessGroup, Duration), Refusal> {
    let own = match fate {
        Fate::Own => &ranks.detached(),
        Fate::Shared => &**ranks,
    };
    let own = own.split(Some(0), i64::from(ranks.rank().get()));
    let own = own.map_err(|error| Refusal::Failed(TrainError::Collective(error)))?;
    let own = own.expect("every rank has a color");
    // Another rank may have kernels to compile before its buckets are sent.
    let timeout = ranks.timeout().max(ranks.options().startup_timeout);
    Ok((own.with_timeout(timeout), timeout))
}

pub(super) fn refusal(error: CudaGroupError) -> Refusal {
    match error {
        CudaGroupError::SetUp { .. } | CudaGroupError::TooManyRanks { .. } => {
            Refusal::NoWay(error.to_string())
        }
        error => Refusal::Failed(error.into()),
    }
}
