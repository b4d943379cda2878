//! The collectives of a group over NCCL.

use bonfire_cuda::nccl::NcclRank;
use bonfire_cuda::{CudaError, Span};
use bonfire_plan::{Collective, DType, Rank, ReduceOp};

use super::NcclGroup;
use super::kind::{kind, shards};
use super::membership::settle;
use super::memory::NcclBuffer;
use crate::error::Result;
use crate::request::Request;
use crate::request::elements::Elements;

impl NcclGroup {
    /// Does [`CudaGroup::all_reduce`](crate::CudaGroup::all_reduce).
    ///
    /// # Errors
    /// [`NotInNccl`](crate::CudaGroupError::NotInNccl) if NCCL has no such reduction of the elements; else as there.
    pub fn all_reduce(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<()> {
        let (kind, op) = kind(elements.dtype, reduce)?;
        let request = Request::of(Collective::AllReduce, Some(reduce), elements);
        self.queue(request, buffer, |member, data| {
            member.all_reduce(&self.inner.stream, data, kind, op)
        })
    }

    /// Does [`CudaGroup::reduce_scatter`](crate::CudaGroup::reduce_scatter), as [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<()> {
        let (kind, op) = kind(elements.dtype, reduce)?;
        let world_size = self.world_size();
        let request = Request::of(Collective::ReduceScatter, Some(reduce), elements);
        self.queue(request, buffer, |member, data| {
            let parts = shards(data, elements, world_size)?;
            member.reduce_parts(&self.inner.stream, &parts, kind, op)
        })
    }

    /// Does [`CudaGroup::all_gather`](crate::CudaGroup::all_gather).
    pub fn all_gather(&self, buffer: &NcclBuffer, elements: &Elements) -> Result<()> {
        let world_size = self.world_size();
        let request = Request::of(Collective::AllGather, None, elements);
        self.queue(request, buffer, |member, data| {
            let parts = shards(data, elements, world_size)?;
            member.broadcast_parts(&self.inner.stream, &parts)
        })
    }

    /// Does [`CudaGroup::broadcast`](crate::CudaGroup::broadcast).
    pub fn broadcast(&self, buffer: &NcclBuffer, elements: &Elements, root: Rank) -> Result<()> {
        let request = Request::of(Collective::Broadcast { root }, None, elements);
        self.queue(request, buffer, |member, data| {
            let parts = [(root.get(), data.clone())];
            member.broadcast_parts(&self.inner.stream, &parts)
        })
    }

    /// Does [`CudaGroup::reduce`](crate::CudaGroup::reduce), with the errors of [`all_reduce`](Self::all_reduce).
    pub fn reduce(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        reduce: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let (kind, op) = kind(elements.dtype, reduce)?;
        let request = Request::of(Collective::Reduce { root }, Some(reduce), elements);
        self.queue(request, buffer, |member, data| {
            let parts = [(root.get(), data.clone())];
            member.reduce_parts(&self.inner.stream, &parts, kind, op)
        })
    }

    /// Does [`CudaGroup::barrier`](crate::CudaGroup::barrier). NCCL has none, so the ranks add up a byte.
    pub fn barrier(&self) -> Result<()> {
        let (kind, op) = kind(DType::U8, ReduceOp::Sum)?;
        let inner = &self.inner;
        self.run("barrier".to_owned(), |member| {
            member.all_reduce(&inner.stream, &inner.nothing, kind, op)
        })
    }

    fn queue(
        &self,
        request: Request<'_>,
        buffer: &NcclBuffer,
        body: impl FnOnce(&mut NcclRank, &Span) -> Result<(), CudaError>,
    ) -> Result<()> {
        let Some(data) = self.begin(request, buffer)? else {
            return Ok(());
        };
        self.run(request.to_string(), |member| body(member, &data))
    }

    /// Checks an operation; the memory of its elements, or `None` if there are none.
    pub(crate) fn begin(&self, request: Request<'_>, buffer: &NcclBuffer) -> Result<Option<Span>> {
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
    ) -> Result<()> {
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
