//! Memory of a group: made, freed, written and read with all ranks or from the host.

use std::sync::Arc;

use bonfire_collective::Element;
use bonfire_cuda::Span;

use crate::error::Result;
use crate::group::buffer::CudaBuffer;
use crate::group::{CudaGroup, Inner};
use crate::request::elements::{Elements, decode};
use crate::run::Path;
use crate::setup::shared::Shared;

impl CudaGroup {
    /// Device memory of `bytes` on every rank, zero, open to all of them. Every rank calls it with the same
    /// size. For set-up: it waits for the device and for the other ranks.
    ///
    /// # Errors
    /// [`SetUp`](crate::CudaGroupError::SetUp) on all ranks if one has not the memory.
    pub fn allocate(&self, bytes: usize) -> Result<CudaBuffer> {
        let mut state = self.inner.state();
        self.inner.core.quiesce(&mut state)?;
        let stream = Arc::clone(&state.stream);
        let made = match state.path {
            Path::Peers => state.peers.share(&stream, bytes),
            Path::Host(_) => state.peers.keep(&stream, bytes),
        };
        drop(state);
        Ok(CudaBuffer::new(made?, &self.inner))
    }

    /// Frees a buffer on every rank. For tear-down: it waits for the device and for the other ranks.
    ///
    /// # Errors
    /// Those of [`synchronize`](Self::synchronize).
    pub fn release(&self, buffer: CudaBuffer) -> Result<()> {
        self.inner.assert_own(&buffer);
        let memory = buffer.into_memory();
        let mut state = self.inner.state();
        if let Err(error) = self.inner.core.quiesce(&mut state) {
            state.retired.push(memory);
            return Err(error);
        }
        // First what was opened to this rank, then, when nobody has it open any more, the own.
        let own = memory.close();
        self.inner.core.group.barrier()?;
        drop(own);
        self.inner.core.group.barrier()?;
        Ok(())
    }

    /// Copies `values` into the buffer, `start` elements from its begin, in the order of the stream, and waits for it.
    ///
    /// # Errors
    /// [`TooSmall`](crate::CudaGroupError::TooSmall) if they are not in the buffer.
    pub fn write<T: Element>(&self, buffer: &CudaBuffer, start: usize, values: &[T]) -> Result<()> {
        let span = self.inner.span_of::<T>(buffer, start, values.len())?;
        self.synchronize()?;
        let stream = self.stream();
        let bytes = bytemuck::cast_slice(values);
        self.inner.core.local(stream.write(&span, bytes))
    }

    /// Copies elements out of the buffer, as [`write`](Self::write) does in. For set-up and tests: it allocates.
    ///
    /// # Errors
    /// [`TooSmall`](crate::CudaGroupError::TooSmall) if they are not in the buffer,
    /// [`NotAValue`](crate::CudaGroupError::NotAValue) if the memory holds no truth values where those are read.
    pub fn read<T: Element>(
        &self,
        buffer: &CudaBuffer,
        start: usize,
        values: &mut [T],
    ) -> Result<()> {
        let span = self.inner.span_of::<T>(buffer, start, values.len())?;
        self.synchronize()?;
        let stream = self.stream();
        let mut bytes = vec![0; span.len()];
        self.inner.core.local(stream.read(&span, &mut bytes))?;
        decode(&bytes, values)
    }
}

impl Inner {
    pub(crate) fn span_of<T: Element>(
        self: &Arc<Self>,
        buffer: &CudaBuffer,
        start: usize,
        count: usize,
    ) -> Result<Span> {
        self.assert_own(buffer);
        let elements = Elements::at::<T>(start, count);
        buffer.check(&elements)?;
        Ok(buffer.own_part(&elements))
    }

    pub(crate) fn retire(&self, memory: Shared) {
        if !memory.is_empty() {
            self.state().retired.push(memory);
        }
    }
}
