//! The collectives of a group over NCCL.

use bonfire_cuda::nccl::NcclRank;
use bonfire_cuda::{CudaError, Span};
use bonfire_plan::{Collective, DType, Rank, ReduceOp};

use super::NcclGroup;
use super::kind::{kind, shards};
use super::membership::settle;
use super::memory::NcclBuffer;
use crate::error::CudaGroupError;
use crate::request::Request;
use crate::request::elements::Elements;

impl NcclGroup {
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
        let (kind, op) = kind(elements.dtype, reduce)?;
        self.queue(
            Collective::AllReduce,
            Some(reduce),
            buffer,
            elements,
            |member, data| member.all_reduce(&self.inner.stream, data, kind, op),
        )
    }

    /// Replaces the elements of this rank's shard by their reduction over all ranks; the others keep their
    /// values. Shards are those of [`shard_range`](bonfire_plan::shard_range).
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<(), CudaGroupError> {
        let (kind, op) = kind(elements.dtype, reduce)?;
        let world_size = self.world_size();
        self.queue(
            Collective::ReduceScatter,
            Some(reduce),
            buffer,
            elements,
            |member, data| {
                let parts = shards(data, elements, world_size)?;
                member.reduce_parts(&self.inner.stream, &parts, kind, op)
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
        self.queue(
            Collective::AllGather,
            None,
            buffer,
            elements,
            |member, data| {
                let parts = shards(data, elements, world_size)?;
                member.broadcast_parts(&self.inner.stream, &parts)
            },
        )
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
            None,
            buffer,
            elements,
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
        reduce: ReduceOp,
        root: Rank,
    ) -> Result<(), CudaGroupError> {
        let (kind, op) = kind(elements.dtype, reduce)?;
        self.queue(
            Collective::Reduce { root },
            Some(reduce),
            buffer,
            elements,
            |member, data| {
                let parts = [(root.get(), data.clone())];
                member.reduce_parts(&self.inner.stream, &parts, kind, op)
            },
        )
    }

    /// Queues a barrier: what any rank queued before its own is done before what is queued behind it. NCCL has
    /// none, so the ranks add up a byte.
    ///
    /// # Errors
    /// What the driver says.
    pub fn barrier(&self) -> Result<(), CudaGroupError> {
        let (kind, op) = kind(DType::U8, ReduceOp::Sum)?;
        let inner = &self.inner;
        self.run("barrier".to_owned(), |member| {
            member.all_reduce(&inner.stream, &inner.nothing, kind, op)
        })
    }

    fn queue(
        &self,
        collective: Collective,
        reduce: Option<ReduceOp>,
        buffer: &NcclBuffer,
        elements: &Elements,
        body: impl FnOnce(&mut NcclRank, &Span) -> Result<(), CudaError>,
    ) -> Result<(), CudaGroupError> {
        let request = Request {
            collective,
            reduce,
            elements,
        };
        let Some(data) = self.begin(request, buffer)? else {
            return Ok(());
        };
        self.run(request.to_string(), |member| body(member, &data))
    }

    /// Checks an operation; the memory of its elements, or `None` if there are none.
    pub(crate) fn begin(
        &self,
        request: Request<'_>,
        buffer: &NcclBuffer,
    ) -> Result<Option<Span>, CudaGroupError> {
        buffer.assert_of(&self.inner);
        request.check(self.world_size(), buffer.bytes())?;
        if let Some(failure) = self.inner.group.failure() {
            return Err(failure.into());
        }
        let elements = request.elements;
        Ok((elements.count() > 0).then(|| elements.part_of(buffer.span())))
    }

    /// Queues what `body` begins, and waits until NCCL has queued it: the first time that two ranks have to do
    /// with each other it waits for the other there.
    pub(crate) fn run(
        &self,
        what: String,
        body: impl FnOnce(&mut NcclRank) -> Result<(), CudaError>,
    ) -> Result<(), CudaGroupError> {
        let inner = &self.inner;
        let mut state = inner.state();
        state.last = what;
        let Some(member) = state.member.as_mut() else {
            return Err(inner.over());
        };
        let queued = body(member).and_then(|()| settle(&inner.wait(), member));
        inner.finish(&mut state, queued)
    }
}
