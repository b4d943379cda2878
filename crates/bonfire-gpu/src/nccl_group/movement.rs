//! The operations over NCCL that move elements from rank to rank and combine nothing: messages between
//! pairs of ranks, all at once.

use bonfire_cuda::nccl::Message;
use bonfire_plan::{Collective, Rank};

use super::NcclGroup;
use super::legs::{Leg, Way, legs};
use super::memory::NcclBuffer;
use crate::error::CudaGroupError;
use crate::request::elements::Elements;
use crate::request::{Request, assert_apart, exchange_of};

impl NcclGroup {
    /// Gives `root` the shard of each rank; the others keep their values. Shards are those of
    /// [`shard_range`](bonfire_plan::shard_range).
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if there is no such rank; else what the driver says.
    pub fn gather(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        root: Rank,
    ) -> Result<(), CudaGroupError> {
        self.send_legs(Collective::Gather { root }, buffer, buffer, elements)
    }

    /// Gives every rank its shard of what `root` has; the rest of its elements keep their values.
    ///
    /// # Errors
    /// Those of [`gather`](Self::gather).
    pub fn scatter(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        root: Rank,
    ) -> Result<(), CudaGroupError> {
        self.send_legs(Collective::Scatter { root }, buffer, buffer, elements)
    }

    /// Gives rank r the r-th block of every rank's elements: block s of `output` is what rank s had for this
    /// one. The elements, as many blocks as there are ranks, lie at the same place of both buffers.
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if they are not equal blocks; else what the driver says.
    ///
    /// # Panics
    /// If both are the same buffer: blocks would be overwritten before they are read.
    pub fn all_to_all(
        &self,
        input: &NcclBuffer,
        output: &NcclBuffer,
        elements: &Elements,
    ) -> Result<(), CudaGroupError> {
        output.assert_of(&self.inner);
        assert_apart(input.span(), output.span());
        elements.fit(output.bytes())?;
        self.send_legs(Collective::AllToAll, input, output, elements)
    }

    /// Sends the elements to `target`, which calls [`recv`](Self::recv) with as many. No other rank takes part.
    /// The first time the call waits for the other rank's.
    ///
    /// # Errors
    /// [`CudaGroupError::Usage`] if it is not another rank of the group; else what the driver says.
    pub fn send(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        target: Rank,
    ) -> Result<(), CudaGroupError> {
        let source = self.rank();
        let collective = Collective::Transfer { source, target };
        self.send_legs(collective, buffer, buffer, elements)
    }

    /// Replaces the elements by what `source` [sends](Self::send).
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn recv(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        source: Rank,
    ) -> Result<(), CudaGroupError> {
        let target = self.rank();
        let collective = Collective::Transfer { source, target };
        self.send_legs(collective, buffer, buffer, elements)
    }

    /// Gives each of two ranks what the other brings. The lower rank brings the first half of the elements,
    /// the higher one the second; both end with all. No other rank takes part.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and [`CudaGroupError::Usage`] if the halves are not equal.
    pub fn exchange(
        &self,
        buffer: &NcclBuffer,
        elements: &Elements,
        peer: Rank,
    ) -> Result<(), CudaGroupError> {
        let collective = exchange_of(self.rank(), peer);
        self.send_legs(collective, buffer, buffer, elements)
    }

    /// Checks an operation and queues its messages. What a rank has for itself the stream copies, where input
    /// and output are two buffers.
    fn send_legs(
        &self,
        collective: Collective,
        input: &NcclBuffer,
        output: &NcclBuffer,
        elements: &Elements,
    ) -> Result<(), CudaGroupError> {
        let request = Request {
            collective,
            reduce: None,
            elements,
        };
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
        self.run(request.to_string(), |member| {
            member.messages(&inner.stream, &messages)
        })
    }
}
