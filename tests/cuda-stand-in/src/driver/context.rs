//! The primary context of each device, the only ones there are.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::calls::tell;
use crate::driver::device::{known, reaches};
use crate::queue::Queue;
use crate::settings::Settings;
use crate::status::{Status, done, give};
use crate::table::lock;

/// All that happens on one device.
#[derive(Default)]
pub(crate) struct Context {
    pub(crate) device: usize,
    queues: Mutex<Vec<Arc<Queue>>>,
    /// Devices whose memory work of this context may touch.
    peers: Mutex<Vec<usize>>,
    default: OnceLock<Arc<Queue>>,
    pub(crate) used_bytes: AtomicUsize,
}

/// Handles are the number of the device behind this.
const FIRST: usize = 0xc0_0000;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn all() -> &'static [Context] {
    static CONTEXTS: OnceLock<Vec<Context>> = OnceLock::new();
    CONTEXTS.get_or_init(|| {
        let context = |device| Context { device, ..Context::default() };
        (0..Settings::get().devices).map(context).collect()
    })
}

impl Context {
    pub(crate) fn of_device(device: usize) -> &'static Self {
        &all()[device]
    }

    fn of_handle(handle: usize) -> Result<&'static Self, Status> {
        let number = handle.checked_sub(FIRST);
        let found = number.and_then(|number| all().get(number));
        found.ok_or(Status::InvalidContext)
    }

    /// The one of this thread.
    pub(crate) fn current() -> Result<&'static Self, Status> {
        Self::of_handle(CURRENT.get())
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.device == other.device
    }

    pub(crate) fn new_queue(&self) -> Arc<Queue> {
        let queue = Queue::start();
        lock(&self.queues).push(Arc::clone(&queue));
        queue
    }

    /// That of the stream without a handle.
    pub(crate) fn default_queue(&self) -> Arc<Queue> {
        Arc::clone(self.default.get_or_init(|| self.new_queue()))
    }

    fn queues(&self) -> Vec<Arc<Queue>> {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| !queue.is_over());
        queues.clone()
    }

    pub(crate) fn synchronize(&self) {
        self.queues().iter().for_each(|queue| queue.wait());
    }

    /// Whether its work may touch memory of a device.
    pub(crate) fn may_touch(&self, device: usize) -> bool {
        device == self.device || lock(&self.peers).contains(&device)
    }
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Option<&mut usize>, device: i32) -> Status {
    done(known(device).and_then(|number| give(context, FIRST + number)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Status {
    done(known(device).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    if context != 0 && Context::of_handle(context).is_err() {
        return Status::InvalidContext;
    }
    CURRENT.set(context);
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Option<&mut usize>) -> Status {
    done(give(context, CURRENT.get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: Option<&mut i32>) -> Status {
    done(Context::current().and_then(|context| give(device, context.device as i32)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    tell("cuCtxSynchronize");
    done(Context::current().map(Context::synchronize))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetStreamPriorityRange(
    least: Option<&mut i32>,
    greatest: Option<&mut i32>,
) -> Status {
    done(Context::current().and_then(|_| {
        give(least, 0)?;
        give(greatest, -5)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: usize, flags: u32) -> Status {
    done(Context::current().and_then(|context| {
        let peer = Context::of_handle(peer)?;
        if context.is_same(peer) || flags != 0 {
            return Err(Status::InvalidValue);
        }
        if !reaches(context.device, peer.device) {
            return Err(Status::PeerAccessUnsupported);
        }
        let mut peers = lock(&context.peers);
        if peers.contains(&peer.device) {
            return Err(Status::PeerAccessAlreadyEnabled);
        }
        peers.push(peer.device);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Option<&mut usize>, total: Option<&mut usize>) -> Status {
    done(Context::current().and_then(|context| {
        let all = Settings::get().memory_bytes;
        give(free, all.saturating_sub(context.used_bytes.load(Ordering::Relaxed)))?;
        give(total, all)
    }))
}
