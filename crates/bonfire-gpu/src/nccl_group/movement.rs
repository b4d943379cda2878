//! The operations over NCCL that move elements from rank to rank and combine nothing: messages between
//! pairs of ranks, all at once.

use bonfire_cuda::nccl::Message;
use bonfire_plan::{Collective, Rank};

use super::NcclGroup;
use super::legs::{Leg, Way, legs};
use super::memory::NcclBuffer;
use crate::error::Result;
use crate::request::elements::Elements;
use crate::request::{Request, assert_apart, exchange_of};

impl NcclGroup {
    /// Does [`CudaGroup::gather`](crate::CudaGroup::gather).
    pub fn gather(&self, buffer: &NcclBuffer, elements: &Elements, root: Rank) -> Result<()> {
        self.send_legs(Collective::Gather { root }, buffer, buffer, elements)
    }

    /// Does [`CudaGroup::scatter`](crate::CudaGroup::scatter).
    pub fn scatter(&self, buffer: &NcclBuffer, elements: &Elements, root: Rank) -> Result<()> {
        self.send_legs(Collective::Scatter { root }, buffer, buffer, elements)
    }

    /// Does [`CudaGroup::all_to_all`](crate::CudaGroup::all_to_all).
    pub fn all_to_all(
        &self,
        input: &NcclBuffer,
        output: &NcclBuffer,
        elements: &Elements,
    ) -> Result<()> {
        output.assert_of(&self.inner);
        assert_apart(input.span(), output.span());
        elements.fit(output.bytes())?;
        self.send_legs(Collective::AllToAll, input, output, elements)
    }

    /// Does [`CudaGroup::send`](crate::CudaGroup::send); the target may receive into any memory of as many elements. The
    /// first time the call waits for the other rank's.
    pub fn send(&self, buffer: &NcclBuffer, elements: &Elements, target: Rank) -> Result<()> {
        let source = self.rank();
        self.send_legs(Collective::Transfer { source, target }, buffer, buffer, elements)
    }

    /// Does [`CudaGroup::recv`](crate::CudaGroup::recv).
    pub fn recv(&self, buffer: &NcclBuffer, elements: &Elements, source: Rank) -> Result<()> {
        let target = self.rank();
        self.send_legs(Collective::Transfer { source, target }, buffer, buffer, elements)
    }

    /// Does [`CudaGroup::exchange`](crate::CudaGroup::exchange).
    pub fn exchange(&self, buffer: &NcclBuffer, elements: &Elements, peer: Rank) -> Result<()> {
        self.send_legs(exchange_of(self.rank(), peer), buffer, buffer, elements)
    }

    /// Checks an operation and queues its messages. What a rank has for itself the stream copies, where input
    /// and output are two buffers.
    fn send_legs(
        &self,
        collective: Collective,
        input: &NcclBuffer,
        output: &NcclBuffer,
        elements: &Elements,
    ) -> Result<()> {
        let request = Request::of(collective, None, elements);
        let Some(source) = self.begin(request, input)? else {
            return Ok(());
        };
        let target = elements.part_of(output.span());
        let (me, world_size) = (self.rank(), self.world_size());
        let bytes = elements.dtype.size_bytes();
        let inner = &self.inner;
        let mut messages = Vec::new();
        for Leg { way, peer, range } in legs(collective, me, world_size, elements.count()) {
            let range = range.start() * bytes..range.end() * bytes;
            let (from, to) = (source.part(range.clone()), target.part(range));
            let (from, to) = (inner.local(from)?, inner.local(to)?);
            match way {
                Way::Own => inner.local(inner.stream.copy(&to, &from))?,
                Way::Send => messages.push(Message::Send(peer.get(), from)),
                Way::Recv => messages.push(Message::Recv(peer.get(), to)),
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        self.run(request.to_string(), |member| member.messages(&inner.stream, &messages))
    }
}
