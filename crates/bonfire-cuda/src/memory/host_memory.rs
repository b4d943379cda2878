//! Host memory of the CPU's collectives, page-locked for the copies of a device.
//!
//! Memory that processes share cannot be had from the driver, but the driver can register it: then copies from and to
//! it go straight between device and memory, as with a [`PinnedRegion`](crate::PinnedRegion). No device gets its
//! address: what a copy does to it happens inside of [`Stream::read`](crate::Stream::read) and
//! [`Stream::write`](crate::Stream::write), which borrow it.

use std::ops::{Deref, DerefMut};

use bonfire_sys::Block;
use cudarc::driver::sys;

use crate::driver::context::Context;
use crate::error::{Result, check};

/// Words of host memory, shared with other processes or not, page-locked once
/// [`lock_pages`](Self::lock_pages) was called. Used like a slice.
#[derive(Debug)]
pub struct HostMemory {
    memory: Memory,
    /// The context that the memory is registered in.
    locked: Option<Context>,
}

/// Both keep their elements at one address until they are dropped.
#[derive(Debug)]
enum Memory {
    Shared(Block<u64>),
    Own(Box<[u64]>),
}

/// Every context of the process copies at full speed.
const PORTABLE: u32 = 1;

impl HostMemory {
    /// Has its pages locked in memory, so that devices copy from and to it at the speed of the link. For
    /// set-up: it takes a while for each page. Without it copies are as right, but slower.
    ///
    /// # Errors
    /// What the driver says: how much may be page-locked is limited, and some systems forbid it for
    /// memory that is shared.
    pub fn lock_pages(&mut self, context: &Context) -> Result<()> {
        if self.locked.is_some() || self.is_empty() {
            return Ok(());
        }
        context.bind()?;
        let bytes = size_of_val::<[u64]>(self);
        let address = self.as_mut_ptr().cast();
        // SAFETY: the range is memory of this process that stays where it is until `self` is dropped,
        // which tells the driver before (`drop`); locking changes neither its content nor who may use it.
        check("cuMemHostRegister", unsafe { sys::cuMemHostRegister_v2(address, bytes, PORTABLE) })?;
        self.locked = Some(context.clone());
        Ok(())
    }

    pub fn is_locked(&self) -> bool {
        self.locked.is_some()
    }
}

impl From<Block<u64>> for HostMemory {
    fn from(block: Block<u64>) -> Self {
        Self { memory: Memory::Shared(block), locked: None }
    }
}

impl From<Vec<u64>> for HostMemory {
    fn from(words: Vec<u64>) -> Self {
        Self { memory: Memory::Own(words.into()), locked: None }
    }
}

impl Deref for HostMemory {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match &self.memory {
            Memory::Shared(block) => block,
            Memory::Own(words) => words,
        }
    }
}

impl DerefMut for HostMemory {
    fn deref_mut(&mut self) -> &mut [u64] {
        match &mut self.memory {
            Memory::Shared(block) => block,
            Memory::Own(words) => words,
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let Some(context) = self.locked.take() else {
            return;
        };
        let address = self.as_mut_ptr().cast();
        // A lost context has unlocked its pages already.
        if context.bind().is_ok() {
            // SAFETY: the address was registered with the driver once and is unregistered once; no copy
            // is under way, since copies borrow the memory.
            let _ = unsafe { sys::cuMemHostUnregister(address) };
        }
    }
}
