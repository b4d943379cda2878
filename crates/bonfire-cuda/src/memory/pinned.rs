//! Host memory that devices can reach: copies from and to it run beside computation.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cudarc::driver::sys;

use crate::driver::context::Context;
use crate::error::{Result, check};
use crate::memory::span::Users;

/// Page-locked host memory. A device may write it at any time, so Rust sees it only as atomic words.
#[derive(Debug)]
pub struct PinnedRegion {
    base: NonNull<c_void>,
    len: usize,
    context: Context,
    users: Users,
}

/// Reachable from every context of the process.
const PORTABLE: u32 = 1;

const WORD_BYTES: usize = size_of::<u32>();

// SAFETY: the region is a fixed address range until drop, read and written through atomics only.
unsafe impl Send for PinnedRegion {}
// SAFETY: as above: atomics may be used from several threads at once.
unsafe impl Sync for PinnedRegion {}

impl PinnedRegion {
    /// At least `len` bytes, zero, a whole number of words.
    ///
    /// # Errors
    /// What the driver says: how much may be page-locked is limited.
    pub fn allocate(context: &Context, len: usize) -> Result<Arc<Self>> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        context.bind()?;
        let len = len.next_multiple_of(WORD_BYTES);
        let mut base = ptr::null_mut();
        // SAFETY: `base` is a live pointer that the call writes; a context is current.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut base, len, PORTABLE) })?;
        let base = NonNull::new(base).expect("cuMemHostAlloc succeeded");
        // SAFETY: the allocation has `len` bytes and nobody else has its address yet.
        unsafe { base.cast::<u8>().write_bytes(0, len) };
        Ok(Arc::new(Self { base, len, context: context.clone(), users: Users::default() }))
    }

    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its words. What a device copies here is complete once an event behind the copy has happened.
    pub fn words(&self) -> &[AtomicU32] {
        let words = self.base.cast::<AtomicU32>();
        // SAFETY: the allocation is page-aligned, has this many words, was zeroed, and lives as long
        // as `self`; atomics allow the device to change it meanwhile.
        unsafe { slice::from_raw_parts(words.as_ptr(), self.len / WORD_BYTES) }
    }

    pub(crate) fn base(&self) -> *mut c_void {
        self.base.as_ptr()
    }

    /// Where kernels of a context find it: page-locked memory has one address on the host and on all devices
    /// (CUDA driver API, unified addressing). It is not freed before the work of that context is done.
    pub fn address(&self, user: &Context) -> u64 {
        self.used_by(user);
        self.base() as u64
    }

    pub(crate) fn used_by(&self, context: &Context) {
        self.users.add(context, &self.context);
    }
}

impl Drop for PinnedRegion {
    fn drop(&mut self) {
        self.users.synchronize_with(&self.context);
        // SAFETY: the address came from cuMemHostAlloc and is freed once; every context that queued
        // copies with it is idle, and no reference is left.
        let _ = unsafe { sys::cuMemFreeHost(self.base.as_ptr()) };
    }
}
