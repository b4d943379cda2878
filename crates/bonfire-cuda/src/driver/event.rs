//! Points in the order of a stream.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent, CUevent_flags_enum, CUresult};

use crate::driver::context::{Context, symbol};
use crate::error::version::CudaVersion;
use crate::error::{CudaError, Result, check};

/// A point in the order of a stream that others can wait for.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    context: Context,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventState {
    Done,
    Pending,
}

// SAFETY: an event handle is an opaque name for an object of the driver, whose functions may be
// called from any thread; the context is Send.
unsafe impl Send for Event {}
// SAFETY: as above; the functions that take it may be called from several threads at once.
unsafe impl Sync for Event {}

impl Event {
    /// An event for order only, the cheapest.
    pub fn new(context: &Context) -> Result<Self> {
        Self::with_flags(context, CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// An event that notes the time, for [`since`](Self::since).
    pub fn timed(context: &Context) -> Result<Self> {
        Self::with_flags(context, CUevent_flags_enum::CU_EVENT_DEFAULT as u32)
    }

    fn with_flags(context: &Context, flags: u32) -> Result<Self> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live pointer that the call writes; a context is current.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Whether it has happened; an event that was never recorded has.
    ///
    /// # Errors
    /// What the driver says, also about work that failed earlier.
    pub fn state(&self) -> Result<EventState> {
        // SAFETY: the handle is valid until drop.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(EventState::Pending),
            result => check("cuEventQuery", result).map(|()| EventState::Done),
        }
    }

    /// Waits for it on this thread until `deadline`: at first without sleeping, then in naps.
    ///
    /// # Errors
    /// What the driver says, also about work that failed earlier.
    pub fn wait_until(&self, deadline: Instant) -> Result<EventState> {
        /// Most collectives take less, and a sleep takes longer than that.
        const SPIN: Duration = Duration::from_micros(200);
        const NAP: Duration = Duration::from_micros(50);
        let started = Instant::now();
        loop {
            if self.state()? == EventState::Done {
                return Ok(EventState::Done);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(EventState::Pending);
            }
            if now - started > SPIN {
                thread::sleep(NAP);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// The time from `earlier` to this event. Both must be timed and have happened.
    ///
    /// # Errors
    /// What the driver says if they are not.
    pub fn since(&self, earlier: &Self) -> Result<Duration> {
        type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        // The bindings name it by another version for every release of CUDA; all drivers have this.
        // SAFETY: the driver's function of that name has this type since CUDA 2.0 (cuda.h).
        let elapsed = unsafe { symbol::<Elapsed>("cuEventElapsedTime") };
        let elapsed = elapsed.ok_or(CudaError::Missing {
            function: "cuEventElapsedTime",
            since: CudaVersion { major: 2, minor: 0 },
        })?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both handles are valid; `milliseconds` is a live float that the call writes.
        let result = unsafe { elapsed(&mut milliseconds, earlier.raw, self.raw) };
        check("cuEventElapsedTime", result)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once; cuEventDestroy may be called while the event is
        // pending, "the call does not block and resources are released when it has completed".
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}
