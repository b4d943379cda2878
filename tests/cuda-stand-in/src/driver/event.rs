//! Points in the order of streams.

use std::sync::{Arc, Mutex};

use crate::calls::tell;
use crate::driver::context::Context;
use crate::driver::stream::stream_of;
use crate::queue::Tick;
use crate::status::{Status, done, give};
use crate::table::{Table, lock};

pub(crate) static EVENTS: Table<Event> = Table::new(0xe000_0000);

const DISABLE_TIMING: u32 = 2;

pub(crate) struct Event {
    context: &'static Context,
    timed: bool,
    /// As it was last recorded.
    tick: Mutex<Option<Arc<Tick>>>,
}

impl Event {
    pub(crate) fn tick(&self) -> Option<Arc<Tick>> {
        lock(&self.tick).clone()
    }

    /// Records it in this context.
    pub(crate) fn set(
        &self,
        context: &Context,
        mark: impl FnOnce() -> Arc<Tick>,
    ) -> Result<(), Status> {
        if !self.context.is_same(context) {
            return Err(Status::InvalidHandle);
        }
        *lock(&self.tick) = Some(mark());
        Ok(())
    }
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Option<&mut usize>, flags: u32) -> Status {
    tell("cuEventCreate");
    done(Context::current().and_then(|context| {
        let made = Event { context, timed: flags & DISABLE_TIMING == 0, tick: Mutex::new(None) };
        give(event, EVENTS.insert(made))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    tell("cuEventDestroy_v2");
    done(EVENTS.remove(event).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    tell("cuEventRecord");
    done(stream_of(stream).and_then(|stream| {
        EVENTS.get(event)?.set(stream.context, || {
            let tick = Tick::of(1);
            stream.queue.mark(Arc::clone(&tick));
            tick
        })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Status {
    tell("cuEventQuery");
    done(EVENTS.get(event).and_then(|event| match event.tick() {
        Some(tick) if tick.at().is_none() => Err(Status::NotReady),
        _ => Ok(()),
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Status {
    tell("cuEventSynchronize");
    done(EVENTS.get(event).map(|event| {
        if let Some(tick) = event.tick() {
            tick.wait();
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(ms: Option<&mut f32>, begun: usize, ended: usize) -> Status {
    let at = |event: usize| {
        let event = EVENTS.get(event)?;
        let tick = event.tick().filter(|_| event.timed);
        let tick = tick.ok_or(Status::InvalidHandle)?;
        tick.at().ok_or(Status::NotReady)
    };
    done(at(begun).and_then(|begun| {
        let ended = at(ended)?;
        let time = ended.saturating_duration_since(begun);
        give(ms, (time.as_secs_f64() * 1e3) as f32)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(
    ms: Option<&mut f32>,
    begun: usize,
    ended: usize,
) -> Status {
    cuEventElapsedTime(ms, begun, ended)
}
