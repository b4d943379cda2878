//! A range of device memory, with what keeps it allocated.

use bonfire_sys::lock::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::context::Context;
use crate::error::{CudaError, Result};
use crate::memory::DeviceRegion;
use crate::memory::foreign::ForeignRegion;
use crate::memory::ipc::ImportedRegion;

/// A range of device memory, of this process, imported from another, or of another owner in this one. It
/// keeps the memory.
#[derive(Clone, Debug)]
pub struct Span {
    memory: Memory,
    start: usize,
    len: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Memory {
    Own(Arc<DeviceRegion>),
    Imported(Arc<ImportedRegion>),
    Foreign(Arc<ForeignRegion>),
}

impl Span {
    /// All of a region of `len` bytes.
    pub(crate) fn of(memory: Memory, len: usize) -> Self {
        let start = 0;
        Self { memory, start, len }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`CudaError::Range`] if it has no such bytes.
    pub fn part(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            return Err(CudaError::Range {
                what: "a part of device memory",
                start: range.start,
                end: range.end,
                len: self.len,
            });
        }
        Ok(Self { memory: self.memory.clone(), start: self.start + range.start, len: range.len() })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it starts in the address space that all devices of this process share.
    pub fn address(&self) -> u64 {
        let base = match &self.memory {
            Memory::Own(region) => region.address(),
            Memory::Imported(region) => region.address(),
            Memory::Foreign(region) => region.address(),
        };
        base + self.start as u64
    }

    /// [`address`](Self::address), of one word.
    ///
    /// # Panics
    /// If it is not 4 aligned bytes.
    #[track_caller]
    pub fn word_address(&self) -> u64 {
        assert_eq!(self.len, size_of::<u32>(), "a word has 4 bytes");
        let address = self.address();
        assert!(
            address.is_multiple_of(size_of::<u32>() as u64),
            "a word must be aligned, got address {address:#x}"
        );
        address
    }

    /// Notes that work of this context touches the memory, so that it is not freed before that is
    /// done. Called before the work is queued.
    pub fn used_by(&self, context: &Context) {
        match &self.memory {
            Memory::Own(region) => region.users().add(context, region.context()),
            Memory::Imported(region) => region.users().add(context, region.context()),
            Memory::Foreign(region) => region.assert_used_by(context),
        }
    }
}

/// The contexts, other than its own, whose work may touch a piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Users {
    any: AtomicBool,
    others: Mutex<Vec<Context>>,
}

impl Users {
    pub(crate) fn add(&self, user: &Context, home: &Context) {
        if user.is_same(home) {
            return;
        }
        let mut others = self.others.lock();
        if !others.iter().any(|other| other.is_same(user)) {
            others.push(user.clone());
        }
        // Relaxed: it only spares `synchronize_with` a lock, and that runs in the drop of an Arc,
        // which happens after everything that other holders did.
        self.any.store(true, Ordering::Relaxed);
    }

    /// Waits until `home` and the other contexts have done all that was queued, and leaves `home`
    /// current. A context that is lost does no more work, so its errors are not needed.
    pub(crate) fn synchronize_with(&self, home: &Context) {
        if self.any.load(Ordering::Relaxed) {
            let others = self.others.lock();
            for other in others.iter() {
                let _ = other.synchronize();
            }
        }
        let _ = home.synchronize();
    }
}
