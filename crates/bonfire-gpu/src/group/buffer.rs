//! Memory that a collective works on.

use std::sync::Arc;

use bonfire_cuda::Span;

use crate::error::Result;
use crate::group::Inner;
use crate::request::elements::Elements;
use crate::setup::shared::Shared;

/// Device memory of the same size on every rank, open to all of them where devices reach each other.
///
/// It keeps the group. Its memory is freed with the group, because freeing waits for the device, where other ranks may
/// be waiting for this one; [`CudaGroup::release`](crate::CudaGroup::release) frees it before, with all ranks.
#[derive(Debug)]
pub struct CudaBuffer {
    memory: Shared,
    owner: Arc<Inner>,
}

impl CudaBuffer {
    pub(crate) fn new(memory: Shared, owner: &Arc<Inner>) -> Self {
        Self { memory, owner: Arc::clone(owner) }
    }

    /// Takes the memory out, to be freed by the caller.
    pub(crate) fn into_memory(mut self) -> Shared {
        self.memory.take()
    }

    pub(crate) fn is_of(&self, group: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.owner, group)
    }

    /// This rank's memory, for kernels and copies of its own. No collective may be running on it.
    pub fn span(&self) -> &Span {
        self.memory.own()
    }

    /// The size of this rank's memory in bytes.
    pub fn bytes(&self) -> usize {
        self.span().len()
    }

    pub(crate) fn memory(&self) -> &Shared {
        &self.memory
    }

    pub(crate) fn own_part(&self, elements: &Elements) -> Span {
        self.memory.own_part(elements)
    }

    pub(crate) fn check(&self, elements: &Elements) -> Result<()> {
        elements.fit(self.bytes())
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        self.owner.retire(self.memory.take());
    }
}
