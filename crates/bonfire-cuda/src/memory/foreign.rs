//! Device memory that somebody else allocated, such as a framework's tensor.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::driver::context::Context;
use crate::memory::span::{Memory, Span};

/// An address, and what keeps the memory behind it.
pub(crate) struct ForeignRegion {
    address: u64,
    len: usize,
    context: Context,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for ForeignRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignRegion({:#x}, {} bytes)", self.address, self.len)
    }
}

impl Span {
    /// Memory of somebody else. `keeper` is dropped with the last clone of the span and of its parts.
    ///
    /// Only work of `context` may touch it: unlike memory of this crate, nothing waits for that work
    /// when the span is dropped.
    ///
    /// # Safety
    /// `address` must be that of `len` bytes of device memory that `context` reaches, which stay allocated
    /// and are not given to others while `keeper` lives. Whoever queues work on the span must keep a clone
    /// of it until that work is done.
    pub unsafe fn foreign(
        context: &Context,
        address: u64,
        len: usize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(address != 0 || len == 0, "{len} bytes of device memory at no address");
        // SAFETY: nothing follows the address here; that others may is the promise of the caller.
        let region = ForeignRegion { address, len, context: context.clone(), _keeper: keeper };
        Self::of(Memory::Foreign(Arc::new(region)), len)
    }
}

impl ForeignRegion {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Asserts that work of this context may touch the memory.
    #[track_caller]
    pub(crate) fn assert_used_by(&self, context: &Context) {
        assert!(
            self.context.is_same(context),
            "{self:?} belongs to another context than the work that is queued on it"
        );
    }
}
