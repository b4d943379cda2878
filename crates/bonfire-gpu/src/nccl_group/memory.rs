//! Memory of a group over NCCL: made, freed, written and read.

use std::sync::Arc;

use bonfire_collective::Element;
use bonfire_cuda::{DeviceRegion, Span};

use super::NcclGroup;
use super::membership::Inner;
use crate::error::Result;
use crate::request::elements::{Elements, decode};

/// Device memory of one rank of a group over NCCL. It keeps the group, and is freed with it.
#[derive(Debug)]
pub struct NcclBuffer {
    span: Option<Span>,
    owner: Arc<Inner>,
}

impl NcclGroup {
    /// Device memory of `bytes`, zero. For set-up: it waits for the device.
    ///
    /// # Errors
    /// [`Device`](crate::CudaGroupError::Device) if the device has less.
    pub fn allocate(&self, bytes: usize) -> Result<NcclBuffer> {
        self.synchronize()?;
        let stream = &self.inner.stream;
        let made = DeviceRegion::allocate(&self.inner.context, bytes).and_then(|region| {
            stream.fill(&region.span(), 0)?;
            stream.synchronize()?;
            Ok(region.span())
        });
        Ok(NcclBuffer { span: Some(self.inner.local(made)?), owner: Arc::clone(&self.inner) })
    }

    /// Frees a buffer. Every rank calls it together: it waits for the device and for the other ranks.
    ///
    /// # Errors
    /// Those of [`synchronize`](Self::synchronize).
    pub fn release(&self, mut buffer: NcclBuffer) -> Result<()> {
        buffer.assert_of(&self.inner);
        self.synchronize()?;
        // Freeing waits for the device, where nothing may wait for this rank any more.
        self.inner.group.barrier()?;
        drop(buffer.span.take());
        Ok(())
    }

    /// Does [`CudaGroup::write`](crate::CudaGroup::write).
    pub fn write<T: Element>(&self, buffer: &NcclBuffer, start: usize, values: &[T]) -> Result<()> {
        let span = buffer.part(&self.inner, &Elements::at::<T>(start, values.len()))?;
        self.synchronize()?;
        let bytes = bytemuck::cast_slice(values);
        self.inner.local(self.inner.stream.write(&span, bytes))
    }

    /// Does [`CudaGroup::read`](crate::CudaGroup::read).
    pub fn read<T: Element>(
        &self,
        buffer: &NcclBuffer,
        start: usize,
        values: &mut [T],
    ) -> Result<()> {
        let span = buffer.part(&self.inner, &Elements::at::<T>(start, values.len()))?;
        self.synchronize()?;
        let mut bytes = vec![0; span.len()];
        self.inner.local(self.inner.stream.read(&span, &mut bytes))?;
        decode(&bytes, values)
    }
}

impl NcclBuffer {
    /// This rank's memory, for kernels and copies of its own. No collective may be running on it.
    pub fn span(&self) -> &Span {
        self.span.as_ref().expect("taken by release and drop alone")
    }

    /// The size of this rank's memory in bytes.
    pub fn bytes(&self) -> usize {
        self.span().len()
    }

    #[track_caller]
    pub(crate) fn part(&self, owner: &Arc<Inner>, elements: &Elements) -> Result<Span> {
        self.assert_of(owner);
        elements.fit(self.bytes())?;
        Ok(elements.part_of(self.span()))
    }

    #[track_caller]
    pub(crate) fn assert_of(&self, owner: &Arc<Inner>) {
        assert!(Arc::ptr_eq(owner, &self.owner), "the buffer belongs to another group or rank");
    }
}

impl Drop for NcclBuffer {
    fn drop(&mut self) {
        // Freeing waits for the device, where another rank may be waited for.
        let span = self.span.take();
        self.owner.state().retired.extend(span);
    }
}
