//! What the self-test and the benchmark ask of a group of GPUs, whichever engine moves its data.

use std::sync::Arc;

use bonfire_collective::{Element, ProcessGroup, Rank, ReduceOp};
use bonfire_gpu::{
    Context, CudaBuffer, CudaGroup, Elements, NcclBuffer, NcclGroup, Result, Stream,
};

pub(crate) trait Collectives {
    type Buffer;
    fn stream(&self) -> Arc<Stream>;
    fn context(&self) -> &Context;
    fn process_group(&self) -> &ProcessGroup;
    fn synchronize(&self) -> Result<()>;
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer>;
    fn release(&self, buffer: Self::Buffer) -> Result<()>;
    fn write<T: Element>(&self, buffer: &Self::Buffer, start: usize, values: &[T]) -> Result<()>;
    fn read<T: Element>(&self, buffer: &Self::Buffer, start: usize, values: &mut [T])
    -> Result<()>;
    /// Queues an operation. An all-to-all goes from the first buffer to the second, all else is done in the first.
    fn perform(&self, task: Task, buffers: [&Self::Buffer; 2], elements: &Elements) -> Result<()>;
    fn barrier(&self) -> Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    AllReduce(ReduceOp),
    ReduceScatter(ReduceOp),
    AllGather,
    Broadcast(Rank),
    Reduce(ReduceOp, Rank),
    Gather(Rank),
    Scatter(Rank),
    AllToAll,
    Send(Rank),
    Recv(Rank),
    Exchange(Rank),
}

macro_rules! collectives {
    ($group:ty, $buffer:ty) => {
        impl Collectives for $group {
            type Buffer = $buffer;
            fn stream(&self) -> Arc<Stream> {
                <$group>::stream(self)
            }
            fn context(&self) -> &Context {
                <$group>::context(self)
            }
            fn process_group(&self) -> &ProcessGroup {
                <$group>::process_group(self)
            }
            fn synchronize(&self) -> Result<()> {
                <$group>::synchronize(self)
            }
            fn allocate(&self, bytes: usize) -> Result<$buffer> {
                <$group>::allocate(self, bytes)
            }
            fn release(&self, buffer: $buffer) -> Result<()> {
                <$group>::release(self, buffer)
            }
            fn write<T: Element>(
                &self,
                buffer: &$buffer,
                start: usize,
                values: &[T],
            ) -> Result<()> {
                <$group>::write(self, buffer, start, values)
            }
            fn read<T: Element>(
                &self,
                buffer: &$buffer,
                start: usize,
                values: &mut [T],
            ) -> Result<()> {
                <$group>::read(self, buffer, start, values)
            }
            fn perform(
                &self,
                task: Task,
                [buffer, output]: [&$buffer; 2],
                elements: &Elements,
            ) -> Result<()> {
                match task {
                    Task::AllReduce(reduce) => self.all_reduce(buffer, elements, reduce),
                    Task::ReduceScatter(reduce) => self.reduce_scatter(buffer, elements, reduce),
                    Task::AllGather => self.all_gather(buffer, elements),
                    Task::Broadcast(root) => self.broadcast(buffer, elements, root),
                    Task::Reduce(reduce, root) => self.reduce(buffer, elements, reduce, root),
                    Task::Gather(root) => self.gather(buffer, elements, root),
                    Task::Scatter(root) => self.scatter(buffer, elements, root),
                    Task::AllToAll => self.all_to_all(buffer, output, elements),
                    Task::Send(target) => self.send(buffer, elements, target),
                    Task::Recv(source) => self.recv(buffer, elements, source),
                    Task::Exchange(peer) => self.exchange(buffer, elements, peer),
                }
            }
            fn barrier(&self) -> Result<()> {
                <$group>::barrier(self)
            }
        }
    };
}

collectives!(CudaGroup, CudaBuffer);
collectives!(NcclGroup, NcclBuffer);
