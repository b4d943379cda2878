//! The way through host memory, for groups whose devices do not reach each other.
//!
//! A rank copies its elements from the device to memory that the ranks of the host share, the group
//! on the CPU does the operation there, in place, and what the operation gave this rank is copied
//! back. So the bits are those of the CPU's schedules, which are those of the direct kernels unless
//! the group has the option of another order. Copies and the operation follow one another: the
//! bound of an all-reduce is the sum of two copies over the device's link and the CPU's own time.

use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{CollectiveError, Element, GroupBuffer, ProcessGroup};
use bonfire_cuda::{HostMemory, Stream};
use bonfire_plan::{Collective, DType, Rank, ReduceOp, shard_range};
use bytemuck::Pod;
use half::{bf16, f16};

use crate::error::Result;
use crate::run::core::Core;
use crate::run::engine::{Job, Moves};
use crate::run::{Path, State};

/// Host memory of one rank, as large as the largest operation so far.
#[derive(Debug)]
pub(crate) struct HostPath {
    memory: HostMemory,
}

#[derive(Clone, Copy, Debug)]
struct HostJob {
    collective: Collective,
    dtype: DType,
    count: usize,
    reduce: Option<ReduceOp>,
}

/// Smaller operations share the memory of the first.
const BYTES_MIN: usize = 1 << 20;

impl HostPath {
    pub(crate) fn new() -> Self {
        Self { memory: HostMemory::from(Vec::new()) }
    }

    /// Makes room for that many bytes. Grows by doubling, so that a program with buckets of one size does it once.
    fn reserve(&mut self, core: &Core, bytes: usize) {
        if size_of_val::<[u64]>(&self.memory) >= bytes {
            return;
        }
        let words = bytes.next_power_of_two().max(BYTES_MIN) / size_of::<u64>();
        // The old memory goes first: both may not fit.
        self.memory = HostMemory::from(Vec::new());
        let rank = core.group.rank();
        let shared = core.group.buffer::<u64>(words);
        let buffer = shared.unwrap_or_else(|error| {
            tracing::warn!(
                "rank {rank}: collectives copy once more, through private memory: {error}"
            );
            GroupBuffer::from(vec![0; words])
        });
        self.memory = host_memory(buffer);
        if let Err(error) = self.memory.lock_pages(&core.context) {
            tracing::warn!("rank {rank}: copies between host and device are slower: {error}");
        }
    }

    fn run(
        &mut self,
        core: &Core,
        stream: &Stream,
        collective: Collective,
        job: Job<'_>,
    ) -> Result<()> {
        let elements = job.elements;
        self.reserve(core, elements.bytes());
        let data = job.memory.own_part(elements);
        let memory = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.memory)[..data.len()];
        core.local(stream.read(&data, memory))?;
        let host_job = HostJob {
            collective,
            dtype: elements.dtype,
            count: elements.count(),
            reduce: job.reduce,
        };
        host_job.run(&core.group, &mut self.memory)?;
        let result = host_job.result(&core.group);
        if result.is_empty() {
            return Ok(());
        }
        let size = elements.dtype.size_bytes();
        let range = result.start * size..result.end * size;
        let memory = &bytemuck::cast_slice::<u64, u8>(&self.memory)[range.clone()];
        let target = match job.moves {
            Moves::Transpose(output) => output.own_part(elements),
            Moves::Kernel | Moves::Copy => data,
        };
        let written = target.part(range).and_then(|part| stream.write(&part, memory));
        core.local(written)
    }
}

fn host_memory(buffer: GroupBuffer<u64>) -> HostMemory {
    match buffer.into_memory() {
        Ok(block) => block.into(),
        Err(words) => words.into(),
    }
}

impl Core {
    /// Does an operation through host memory; returns when it is done.
    pub(crate) fn through_host(
        &self,
        state: &mut State,
        collective: Collective,
        job: Job<'_>,
    ) -> Result<()> {
        // What the program queued before has made the elements: waited for with a deadline.
        self.wait_idle(state)?;
        let stream = Arc::clone(&state.stream);
        match &mut state.path {
            Path::Host(path) => path.run(self, &stream, collective, job),
            Path::Peers => unreachable!("asked before"),
        }
    }
}

impl HostJob {
    /// The operation on the first elements of `memory`, in place.
    fn run(self, group: &ProcessGroup, memory: &mut [u64]) -> Result<(), CollectiveError> {
        let run = match self.dtype {
            DType::F32 => Self::run_as::<f32>,
            DType::F64 => Self::run_as::<f64>,
            DType::F16 => Self::run_as::<f16>,
            DType::BF16 => Self::run_as::<bf16>,
            DType::I8 => Self::run_as::<i8>,
            DType::I16 => Self::run_as::<i16>,
            DType::I32 => Self::run_as::<i32>,
            DType::I64 => Self::run_as::<i64>,
            // A bool is a byte that is 0 or 1, and every fold that bools have keeps it so.
            DType::U8 | DType::Bool => Self::run_as::<u8>,
            DType::U16 => Self::run_as::<u16>,
            DType::U32 => Self::run_as::<u32>,
            DType::U64 => Self::run_as::<u64>,
        };
        run(self, group, memory)
    }

    fn run_as<T: Element + Pod>(
        self,
        group: &ProcessGroup,
        memory: &mut [u64],
    ) -> Result<(), CollectiveError> {
        let elements = &mut bytemuck::cast_slice_mut::<u64, T>(memory)[..self.count];
        let reduce = || self.reduce.expect("an operation that reduces says how");
        match self.collective {
            Collective::AllReduce => group.all_reduce(elements, reduce()),
            Collective::ReduceScatter => group.reduce_scatter_in_place(elements, reduce()),
            Collective::AllGather => group.all_gather_in_place(elements),
            Collective::Broadcast { root } => group.broadcast(elements, root),
            Collective::Reduce { root } => group.reduce(elements, root, reduce()),
            Collective::Gather { root } => {
                let own = self.own_shard(group);
                let gathered = group.gather_v(&elements[own], root)?;
                if let Some(blocks) = gathered {
                    elements.copy_from_slice(&blocks.into_vec());
                }
                Ok(())
            }
            Collective::Scatter { root } => {
                let shards = group.world_size().ranks();
                let lengths: Vec<usize> = shards
                    .map(|rank| shard_range(self.count, group.world_size(), rank).len())
                    .collect();
                let brought = (group.rank() == root).then_some((&*elements, &lengths[..]));
                let own = group.scatter_v(brought, root)?;
                elements[self.own_shard(group)].copy_from_slice(&own);
                Ok(())
            }
            Collective::AllToAll => group.all_to_all(elements),
            Collective::Transfer { source, target } if source == group.rank() => {
                group.send(elements, target)
            }
            Collective::Transfer { source, .. } => group.recv(elements, source),
            Collective::Exchange { first, second } => {
                let (low, high) = elements.split_at_mut(self.count / 2);
                if group.rank() == first {
                    group.exchange(second, low, high)
                } else {
                    group.exchange(first, high, low)
                }
            }
            Collective::Barrier => unreachable!("a barrier has no elements"),
        }
    }

    fn own_shard(self, group: &ProcessGroup) -> Range<usize> {
        shard_range(self.count, group.world_size(), group.rank()).as_range()
    }

    /// The elements that the operation gave this rank; the others keep their values on the device.
    fn result(self, group: &ProcessGroup) -> Range<usize> {
        let me = group.rank();
        let gets_all = |root: Rank| if root == me { 0..self.count } else { 0..0 };
        match self.collective {
            Collective::ReduceScatter => self.own_shard(group),
            Collective::Scatter { root } if root != me => self.own_shard(group),
            Collective::Scatter { .. } => 0..0,
            Collective::Reduce { root } | Collective::Gather { root } => gets_all(root),
            Collective::Transfer { target, .. } => gets_all(target),
            // The root of a broadcast has what it sends.
            Collective::Broadcast { root } if root == me => 0..0,
            _ => 0..self.count,
        }
    }
}

#[cfg(test)]
mod tests;
