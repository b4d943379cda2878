//! Queues of work on a device.

pub(crate) mod stream_ops;

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult, CUstream, CUstream_flags_enum};

use crate::driver::context::Context;
use crate::driver::event::Event;
use crate::error::{CudaError, Result, check};
use crate::memory::pinned::PinnedRegion;
use crate::memory::span::Span;

/// Which of several waiting streams a device serves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Normal,
    /// Before those: for communication, which others wait for.
    High,
}

/// A queue of work: each piece starts when the one before it is done. It is not ordered with any
/// other stream, not even with the default one.
#[derive(Debug)]
pub struct Stream {
    raw: CUstream,
    context: Context,
}

// SAFETY: a stream handle is an opaque name for an object of the driver, whose functions may be
// called from any thread; the context is Send.
unsafe impl Send for Stream {}
// SAFETY: as above; work queued by several threads at once lands in some order, and none is lost.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Context, priority: Priority) -> Result<Self> {
        context.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are live integers that the call writes; a context is current.
        check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        let priority = match priority {
            Priority::Normal => least,
            Priority::High => greatest,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; a context is current.
        check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(
                &mut raw,
                CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32,
                priority,
            )
        })?;
        Ok(Self { raw, context: context.clone() })
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits on this thread until everything queued so far is done. Unbounded: for set-up, and where nothing on the
    /// stream waits for another rank; else record an event and [`wait_until`](Event::wait_until).
    ///
    /// # Errors
    /// What the driver says, also about work that failed earlier.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is valid until drop.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Lets `event` happen once everything queued so far is done.
    pub fn record(&self, event: &Event) -> Result<()> {
        // Threads that only watch have no context yet.
        self.context.bind()?;
        // SAFETY: both handles are valid.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw(), self.raw) })
    }

    /// Lets everything that is queued here from now on wait for `event` as it was last recorded; it
    /// may be of another device.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both handles are valid.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw(), 0) })
    }

    /// Queues a copy from device memory to device memory, of this or another device.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the lengths differ.
    pub fn copy(&self, target: &Span, source: &Span) -> Result<()> {
        equal_lengths("a copy between spans", target.len(), source.len())?;
        self.context.bind()?;
        target.used_by(&self.context);
        source.used_by(&self.context);
        // SAFETY: both ranges are device memory that stays allocated: a span keeps its region, and a
        // region is freed only after the contexts that use it are idle (`used_by`). Rust has no
        // references into device memory, so nothing is aliased.
        check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(target.address(), source.address(), target.len(), self.raw)
        })
    }

    /// Queues the filling of device memory with one byte.
    pub fn fill(&self, target: &Span, byte: u8) -> Result<()> {
        self.context.bind()?;
        target.used_by(&self.context);
        // SAFETY: the range is device memory that stays allocated, as in `copy`.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(target.address(), byte, target.len(), self.raw)
        })
    }

    /// Copies `bytes` to device memory and waits for that and all before it on this stream.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the lengths differ.
    pub fn write(&self, target: &Span, bytes: &[u8]) -> Result<()> {
        equal_lengths("a write to a span", target.len(), bytes.len())?;
        self.context.bind()?;
        target.used_by(&self.context);
        // SAFETY: `bytes` is borrowed until the stream is synchronized below, so the source lives and
        // does not change; the target is device memory as in `copy`.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                target.address(),
                bytes.as_ptr().cast(),
                bytes.len(),
                self.raw,
            )
        };
        self.finish_host_copy("cuMemcpyHtoDAsync", result)
    }

    /// Copies device memory to `bytes` and waits for that and all before it on this stream.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the lengths differ.
    pub fn read(&self, source: &Span, bytes: &mut [u8]) -> Result<()> {
        equal_lengths("a read of a span", source.len(), bytes.len())?;
        self.context.bind()?;
        source.used_by(&self.context);
        // SAFETY: `bytes` is borrowed mutably until the stream is synchronized below, so nobody else
        // sees it; every bit pattern is a byte. The source is device memory as in `copy`.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                source.address(),
                bytes.len(),
                self.raw,
            )
        };
        self.finish_host_copy("cuMemcpyDtoHAsync", result)
    }

    /// A copy to or from borrowed host memory must not outlive the borrow, whatever happens: the
    /// stream is synchronized even if the copy was refused.
    fn finish_host_copy(&self, call: &'static str, result: CUresult) -> Result<()> {
        let done = self.synchronize();
        check(call, result)?;
        done
    }

    /// Queues a copy of device memory to pinned memory, from its first byte on.
    ///
    /// # Errors
    /// [`CudaError::Range`] if it does not fit.
    pub fn copy_to_pinned(&self, target: &Arc<PinnedRegion>, source: &Span) -> Result<()> {
        fits("a copy to pinned memory", source.len(), target.len())?;
        self.context.bind()?;
        source.used_by(&self.context);
        target.used_by(&self.context);
        // SAFETY: the pinned region has that many bytes and is freed only after this context is idle
        // (`used_by`); Rust sees it only through atomics. The source is device memory as in `copy`.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(target.base(), source.address(), source.len(), self.raw)
        })
    }

    /// Queues a copy of pinned memory, from its first byte on, to device memory.
    ///
    /// # Errors
    /// [`CudaError::Range`] if it does not fit.
    pub fn copy_from_pinned(&self, target: &Span, source: &Arc<PinnedRegion>) -> Result<()> {
        fits("a copy from pinned memory", target.len(), source.len())?;
        self.context.bind()?;
        target.used_by(&self.context);
        source.used_by(&self.context);
        // SAFETY: as in `copy_to_pinned`, the other way round.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(target.address(), source.base(), target.len(), self.raw)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once; "in case the device is still doing work in the stream
        // the function will return immediately and the resources will be released asynchronously".
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

fn equal_lengths(what: &'static str, target: usize, source: usize) -> Result<()> {
    if target == source {
        return Ok(());
    }
    Err(beyond(what, source, target))
}

fn fits(what: &'static str, bytes: usize, len: usize) -> Result<()> {
    if bytes <= len {
        return Ok(());
    }
    Err(beyond(what, bytes, len))
}

fn beyond(what: &'static str, end: usize, len: usize) -> CudaError {
    let start = 0;
    CudaError::Range { what, start, end, len }
}
